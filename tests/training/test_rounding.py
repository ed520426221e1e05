"""What correct accumulation may cost in rounding, dtype by dtype, and that a wrong denominator is seen in all of them.

The figures are those of the model with 271k parameters (model=tiny model.norm=rmsnorm) on 8 rows of 64 bytes of the
standard library on a CPU with one thread: relative L2 differences of the whole gradient, medians over six batches.
"""

import functools
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from accum_sweeps.plan.parts import StandardLibrary
from accum_sweeps.plan.spec import RunSpec
from accum_sweeps.subjects.lm import LanguageModelTask
from accum_sweeps.training.accumulate import accumulate
from accum_sweeps.training.controls import partition
from accum_sweeps.training.data import corpus
from accum_sweeps.training.loop import TrainingSession
from accum_sweeps.training.task import Training
from tests.specs import make_spec

STEPS = range(1, 7)
DTYPES = ["fp64", "fp32", "amp_bf16", "bf16"]
# Same k, another partition, against the plain one, k = 4; and k = 4 against k = 1.
REGROUPED = {"fp64": 2.0e-16, "fp32": 1.3e-7, "amp_bf16": 1.1e-3, "bf16": 4.0e-3}
FOUR_MICRO_BATCHES = {"fp64": 4.8e-16, "fp32": 1.3e-7, "amp_bf16": 1.7e-3, "bf16": 5.8e-3}


@functools.cache
def data_hash() -> str:
    made = corpus.identify(StandardLibrary(name="stdlib", seq_len=64, lengths="documents", eval_rows=32))
    return made.hash  # type: ignore[union-attr]


def spec(dtype: str, accum: int, **changes: Any) -> RunSpec:
    return make_spec(dtype=dtype, accum=accum, global_batch=8, **{"data.hash": data_hash()}, **changes)


Accumulate = Callable[[Training, Sequence[Any]], None]


def correct(training: Training, micro_batches: Sequence[Any]) -> None:
    accumulate(training.parameters, micro_batches, training.loss, dtype=training.accumulator)


def mean_of_means(training: Training, micro_batches: Sequence[Any]) -> None:
    """The classic mistake: each micro-batch's mean, averaged, although their numbers of targets differ."""
    training.optimizer.zero_grad()
    for micro_batch in micro_batches:
        total, terms = training.loss(micro_batch)
        (total / terms / len(micro_batches)).backward()


def gradient(run: RunSpec, step: int, method: Accumulate = correct) -> torch.Tensor:
    """The whole gradient at the initial weights, float64."""
    task = LanguageModelTask(run)
    training = TrainingSession(run, task).training
    method(training, task.split(task.batch(step), partition(run, step)))
    return torch.cat([p.grad.flatten().double() for p in training.parameters if p.grad is not None])


@functools.cache
def plain(dtype: str, accum: int, step: int) -> torch.Tensor:
    return gradient(spec(dtype, accum), step)


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("accum", [2, 4, 8])
@pytest.mark.parametrize("step", STEPS)
def test_in_float64_k_micro_batches_give_the_gradient_of_one_batch(accum: int, step: int) -> None:
    # Ragged rows: the micro-batches' numbers of targets differ.
    assert 0 < relative(plain("fp64", accum, step), plain("fp64", 1, step)) <= 1e-14


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_regrouped_control_has_the_size_of_rounding(dtype: str) -> None:
    differences = [relative(gradient(spec(dtype, 4, control="regroup"), step), plain(dtype, 4, step)) for step in STEPS]
    assert REGROUPED[dtype] / 3 < statistics.median(differences) < REGROUPED[dtype] * 3


@pytest.mark.parametrize("dtype", DTYPES)
def test_four_micro_batches_differ_from_one_by_rounding(dtype: str) -> None:
    differences = [relative(plain(dtype, 4, step), plain(dtype, 1, step)) for step in STEPS]
    assert FOUR_MICRO_BATCHES[dtype] / 3 < statistics.median(differences) < FOUR_MICRO_BATCHES[dtype] * 3


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_mean_of_means_is_seen_in_every_dtype(dtype: str) -> None:
    differences = [relative(gradient(spec(dtype, 4), step, mean_of_means), plain(dtype, 1, step)) for step in STEPS]
    assert 0.107 / 3 < statistics.median(differences) < 0.107 * 3


def test_a_mean_of_means_is_right_where_all_rows_are_full() -> None:
    full = {"data.lengths": "fixed"}
    one, four = gradient(spec("fp64", 1, **full), 1), gradient(spec("fp64", 4, **full), 1, mean_of_means)
    assert relative(four, one) < 1e-14


@pytest.mark.parametrize("accum", [2, 4, 8])
def test_micro_batches_are_no_less_accurate_than_one_batch(accum: int) -> None:
    def error(k: int) -> float:
        return statistics.median(relative(plain("fp32", k, step), plain("fp64", 1, step)) for step in STEPS)

    assert 0.7 < error(accum) / error(1) < 1.3


def test_a_bf16_buffer_adds_its_own_rounding_and_a_float64_buffer_does_not_help_float32() -> None:
    def error(accumulator: str) -> float:
        return statistics.median(
            relative(gradient(spec("fp32", 8, accumulator=accumulator), step), plain("fp64", 1, step)) for step in STEPS
        )

    in_float32 = error("fp32")
    assert error("bf16") > 1e3 * in_float32
    # Each micro-batch's own gradient was rounded before it reached the buffer.
    assert 0.8 < error("fp64") / in_float32 < 1.1


def test_the_gradient_is_the_absolute_reference_and_not_only_equal_over_k() -> None:
    # One pass in float64, the sum of the losses over N, without accumulate.
    run = spec("fp64", 1)
    task = LanguageModelTask(run)
    model = task.build().double()
    (batch,) = task.split(task.batch(1), partition(run, 1))
    total, terms = task.loss(model, batch)
    (total / terms).backward()
    reference = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    assert relative(plain("fp64", 4, 1), reference) < 1e-14
