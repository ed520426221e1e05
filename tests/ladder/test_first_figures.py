"""The ladder on right code against the figures that a first investigation of the same model measured, within a factor of two.

The investigation's control exchanged rows between two micro-batches and was compared with the uncut same k; the ladder's band is right
code, regrouped at random, from one batch, which is farther: in float64 three times as far. Both are measured here.
"""

import functools
import math

import numpy as np
import pytest

from accum_sweeps.ladder import changes
from accum_sweeps.ladder.bench import Bench
from accum_sweeps.ladder.geometry import geometry
from accum_sweeps.ladder.observation import Tensors
from accum_sweeps.ladder.rungs import Precision, precisions
from accum_sweeps.plan.spec import RunSpec
from tests.faults.subjects import corpus_hash
from tests.specs import make_spec

AS_MEASURED = {"fp64": 4.8e-16, "fp32": 1.3e-7, "amp_bf16": 1.7e-3, "bf16": 5.8e-3}  # k=4 from one batch, relative L2
CONTROLS = {"fp64": 2e-16, "fp32": 1.3e-7, "amp_bf16": 1.1e-3, "bf16": 4.0e-3}
EVEN = [[0, 1], [2, 3], [4, 5], [6, 7]]
EXCHANGED = [[0, 2], [1, 3], [4, 5], [6, 7]]


def spec(dtype: str) -> RunSpec:
    """The investigation's model and batch: 271k parameters, 8 rows of 64 bytes in four micro-batches."""
    return make_spec(**{"dtype": dtype, "accum": 4, "global_batch": 8, "data.lengths": "fixed", "data.hash": corpus_hash()})


@functools.cache
def found(dtype: str) -> Precision:
    [one] = [each for each in precisions(Bench(spec(dtype)), False, {}) if each.dtype == dtype]
    return one


def summed(bench: Bench, spec: RunSpec, parts: list[list[int]]) -> Tensors:
    """The gradient of the sum of losses, added micro-batch by micro-batch in the buffer's own dtype."""
    first, *others = [member.gradient for member in bench.right(spec).members(parts=[np.array(part) for part in parts])]
    total = dict(first)
    for other in others:
        total = {name: total[name] + part for name, part in other.items()}
    return total


@pytest.mark.parametrize("dtype", AS_MEASURED)
def test_k_4_differs_from_one_batch_as_was_measured(dtype: str) -> None:
    assert 0.5 < found(dtype).arm / AS_MEASURED[dtype] < 2


@pytest.mark.parametrize("dtype", CONTROLS)
def test_a_control_by_exchanged_rows_differs_from_its_twin_as_was_measured(dtype: str) -> None:
    one = spec(dtype)
    bench = Bench(one)
    apart = geometry(summed(bench, one, EXCHANGED), summed(bench, one, EVEN)).relative
    assert 0.5 < apart / CONTROLS[dtype] < 2


@pytest.mark.parametrize(("dtype", "least", "most"), [("fp64", 2.0, 4.5), ("fp32", 1.0, 2.0), ("amp_bf16", 1.0, 2.0), ("bf16", 0.8, 2.0)])
def test_the_band_from_one_batch_is_wider_and_the_arm_lies_in_its_reach(dtype: str, least: float, most: float) -> None:
    one = found(dtype)
    assert least < one.low / CONTROLS[dtype] <= one.high / CONTROLS[dtype] < most
    assert 0.5 < one.arm / one.high < 2


@pytest.mark.parametrize("dtype", AS_MEASURED)
def test_a_divisor_one_term_too_large_is_the_same_in_every_precision_but_for_rounding(dtype: str) -> None:
    """As measured there: 3.5e-3, 3.5e-3, 4.6e-3 and 7.5e-3, where the fault and the rounding of 0, 0, 1.7e-3 and 5.8e-3 add in squares."""
    one = changes.changed(spec(dtype), fault="wrong_divisor_terms")
    [arm] = [each.arm for each in precisions(Bench(one), False, {}) if each.dtype == dtype]
    effect = 1 / (8 * 64 + 1)
    assert arm == pytest.approx(math.hypot(effect, found(dtype).arm), rel=0.15)
    assert (arm == pytest.approx(effect, rel=1e-3)) == (dtype in ("fp64", "fp32"))
