"""The rungs of one comparison: what the code under test gives with k micro-batches against one batch by the right code.

Each rung carries its own noise floor, made on the right code alone: floor = max(3 x largest valid control, c u sqrt(N)), with u the unit
roundoff of what is compared and N the number of summed terms. A control changes nothing but rounding: another partition of the same
samples (where the subject does not depend on it), one unit in the last place of every weight.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from accum_sweeps.ladder import changes
from accum_sweeps.ladder.bench import Bench
from accum_sweeps.ladder.geometry import geometry
from accum_sweeps.ladder.measure import Outputs
from accum_sweeps.ladder.observation import Observation, Tensors
from accum_sweeps.ladder.roundoff import UNITS
from accum_sweeps.ladder.state_faults import updates_apart
from accum_sweeps.ladder.tensors import worst_tensor
from accum_sweeps.ladder.window_faults import Windows
from accum_sweeps.plan.spec import RunSpec
from accum_sweeps.plan.together import dependence as why_dependent
from accum_sweeps.plan.words import counted
from accum_sweeps.subjects import without_fault

CONTROLS = 3.0  # times the largest control
ROUNDOFF = 0.2  # c in c u sqrt(N); on right code 0.02 to 0.19 were measured


@dataclass(frozen=True, kw_only=True)
class Rung:
    """One thing compared. ``value`` and ``floor`` are of one measure, named in ``measure``; None = not observable."""

    number: int
    name: str
    measure: str
    value: float | None
    floor: float | None

    @property
    def is_above(self) -> bool:
        """More than rounding."""
        return self.value is not None and self.floor is not None and not self.value <= self.floor


@dataclass(frozen=True, kw_only=True, eq=False)
class Sides:
    """One step in one precision: ``arm`` of the code under test with k, ``whole`` and ``controls`` of the right code."""

    dtype: str
    arm: Observation
    whole: Observation
    controls: tuple[Observation, ...]
    outputs: float | None
    outputs_of_controls: tuple[float, ...]

    @property
    def unit(self) -> float:
        """Unit roundoff of the arithmetic."""
        return UNITS[self.dtype]

    def apart(self, part: Callable[[Observation], Tensors]) -> tuple[float, tuple[float, ...]]:
        """Relative differences from one batch: that of the code under test, those of the controls."""
        own, *controls = (geometry(part(seen), part(self.whole)).relative for seen in (self.arm, *self.controls))
        return own, tuple(controls)

    def floor(self, controls: tuple[float, ...]) -> float:
        """What rounding alone may do."""
        return max(CONTROLS * max(controls, default=0.0), ROUNDOFF * self.unit * math.sqrt(self.whole.terms))


def sides(bench: Bench, spec: RunSpec, is_dependent: bool) -> Sides:
    """The step of ``spec``; with ``is_dependent`` another partition is no control."""
    outputs = Outputs()
    whole = bench.right(changes.one_batch(spec)).observe(on_outputs=outputs.keep)
    arm = bench.code(spec).observe(on_outputs=outputs.compare)
    right = changes.one_rank(spec)
    if is_dependent or why_dependent(without_fault(right).setup) or not 1 < right.accum < spec.setup.global_batch:
        # One unit in the last place of a bfloat16 weight is much, so it stands in only where there is no other partition.
        controls = [dataclasses.replace(changes.one_batch(spec), control="ulp_weights", seed=seed) for seed in (1, 2)]
    else:
        controls = [changes.regrouped(spec, seed) for seed in (1, 2, 3)]
    seen, of_controls = [], []
    for control in controls:
        other = outputs.fresh()
        seen.append(bench.right(control).observe(on_outputs=other.compare))
        of_controls.append(_relative(other))
    return Sides(
        dtype=spec.setup.dtype,
        arm=arm,
        whole=whole,
        controls=tuple(seen),
        outputs=_relative(outputs),
        outputs_of_controls=tuple(value for value in of_controls if value is not None),
    )


def _relative(outputs: Outputs) -> float | None:
    return None if outputs.difference is None else outputs.difference.relative


def rungs(bench: Bench, step: Sides, windows: Windows) -> list[Rung]:
    """Rungs 0 to 9 of ``step``; the windows are those that the diagnosis looked at."""
    again = bench.code(bench.spec).observe()
    gradient, clipped, update = (step.apart(part) for part in (_gradient, _clipped, _update))
    losses = [abs(side.loss_sum - step.whole.loss_sum) / abs(step.whole.loss_sum or 1.0) for side in (step.arm, *step.controls)]
    rerun = geometry(again.gradient, step.arm.gradient).relative if step.arm.gradient else None
    is_moved = not math.isnan(step.arm.lr)  # by the settings' optimizer
    apart = [updates_apart(found.step, windows.same) for found in windows.begin]
    log = abs(windows.usual.step.seen.loss - windows.usual.step.loss) / abs(windows.usual.step.loss or 1.0)
    exact, tolerance = windows.spec.setup.dtype, max(found.tolerance for found in windows.begin)
    return [
        _known(0, "rerun", "gradient, the same step again", rerun, 0.0),
        _known(1, "terms", "number of terms less the right one", _told(step.arm.terms - step.whole.terms), 0.0),
        _rung(2, "outputs", "relative L2", step.outputs, step.outputs_of_controls, step),
        _rung(3, "loss", "relative", _told(losses[0]), tuple(losses[1:]), step),
        _rung(4, "gradient", "relative L2", *gradient, step),
        *_exact_gradient(windows, tolerance),
        _rung(5, "clipped gradient", "relative L2", *clipped, step),
        _rung(6, "update", "relative L2", update[0] if is_moved else None, update[1], step),
        _known(7, "state", f"weights and state by the same gradient, {exact}", _worst(apart) if is_moved else None, windows.same),
        _windows(windows, tolerance),
        _known(9, "log", f"logged loss, relative, {exact}", _told(log), max(windows.same, 10 * tolerance)),
    ]


def _exact_gradient(windows: Windows, tolerance: float) -> list[Rung]:
    """The tensor that differs most in a usual window, and the mean bias over windows: what is systematic adds up, rounding does not."""
    exact, usual = windows.spec.setup.dtype, windows.usual
    tensor = worst_tensor(usual.step.seen.gradient, usual.step.members, usual.tolerance) if usual.step.seen.updates else None
    bias = [found.step.shares.sums.bias for found in windows.updated]
    name, value, floor = (tensor.name, tensor.value, tensor.floor) if tensor else ("none", None, tolerance)
    mean = abs(math.fsum(bias) / len(bias)) if bias else None
    return [
        _known(4, "worst tensor", f"{name}: relative L2, {exact}", value, floor),
        _known(4, "bias", f"<g-r,r>/<r,r>, mean of {counted(len(bias), 'window')}, {exact}", mean, tolerance),
    ]


def _windows(windows: Windows, tolerance: float) -> Rung:
    off = [found.off for found in windows.updated]
    measure = f"worst gradient of {counted(len(off), 'window')}, {windows.spec.setup.dtype}"
    return _known(8, "windows", measure, max(off, default=None), tolerance)


def _known(number: int, name: str, measure: str, value: float | None, floor: float) -> Rung:
    """A rung whose floor needs no controls."""
    return Rung(number=number, name=name, measure=measure, value=value, floor=floor)


def _told(value: float) -> float | None:
    """A difference; None where a user's own trainer tells nothing to compare."""
    return None if math.isnan(value) else abs(value)


def _worst(apart: list[tuple[str, float] | None]) -> float:
    return max((each[1] for each in apart if each), default=0.0)


def _rung(number: int, name: str, measure: str, value: float | None, controls: tuple[float, ...], step: Sides) -> Rung:
    return _known(number, name, measure, value, step.floor(controls))


def _gradient(seen: Observation) -> Tensors:
    return seen.gradient


def _clipped(seen: Observation) -> Tensors:
    return seen.clipped


def _update(seen: Observation) -> Tensors:
    return {name: seen.after[name].double() - seen.before[name].double() for name in seen.after}


@dataclass(frozen=True, kw_only=True)
class Precision:
    """The gradient's relative difference from one batch in one dtype: the code under test, and the range of the controls.

    ``error`` and ``error_of_one_batch``: relative differences of both from one batch in float64, None where the subject does not run in it.
    """

    dtype: str
    unit: float
    arm: float
    low: float
    high: float
    error: float | None
    error_of_one_batch: float | None


def precisions(bench: Bench, is_dependent: bool, known: Mapping[str, Sides]) -> list[Precision]:
    """The same step in float64, float32, the run's own dtype and bfloat16 autocast, those that the subject can run, from fine to coarse."""
    own = bench.spec.setup.dtype
    wanted = dict.fromkeys([*(["fp64", "fp32"] if bench.has_fp64 else []), own, *([] if UNITS[own] >= UNITS["amp_bf16"] else ["amp_bf16"])])
    found: list[Precision] = []
    truth: Tensors | None = None  # fp64 comes first
    for dtype in sorted(wanted, key=lambda name: UNITS[name]):
        accumulator = bench.spec.setup.accumulator if dtype == own else "param"
        spec = changes.changed(bench.spec, dtype=dtype, accumulator=accumulator)
        try:
            step = known.get(dtype) or sides(bench, spec, is_dependent)
        except RuntimeError:  # a user's network may have no kernel for a dtype that nobody asked for
            continue
        arm, controls = step.apart(_gradient)
        truth = step.whole.gradient if dtype == "fp64" else truth
        errors = [None if truth is None else geometry(side.gradient, truth).relative for side in (step.arm, step.whole)]
        found.append(
            Precision(
                dtype=dtype,
                unit=step.unit,
                arm=arm,
                low=min(controls),
                high=max(controls),
                error=errors[0],
                error_of_one_batch=errors[1],
            )
        )
    return found
