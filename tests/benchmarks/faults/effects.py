"""How large a case's fault is: the step with the fault beside the one without, from the same state, at the rung where the fault acts.

In float64; a fault that exists only with a loss scale in the case's own dtype. The detector has no part in it.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator

from accum_sweeps.ladder import changes
from accum_sweeps.ladder.geometry import geometry
from accum_sweeps.ladder.observation import Observation, State, Tensors
from accum_sweeps.ladder.oracle import UNTOUCHED, Oracle, Tampering
from accum_sweeps.plan.faults import classes_of
from accum_sweeps.plan.spec import RunSpec
from tests.benchmarks.faults.cases import SCALED

INERT = 1e-12
STEPS, RESUME_AFTER = 4, 2
Pair = tuple[Observation, Observation]  # with the fault, without


@dataclasses.dataclass(frozen=True, kw_only=True)
class Effect:
    """``size`` is a relative difference at ``rung``, in ``dtype``."""

    size: float
    rung: str
    dtype: str


def effect(spec: RunSpec) -> Effect:
    """The effect of the fault that ``spec`` names; of two at once the smaller one, since both are to be found."""
    parts = spec.setup.fault.split("+")
    found = [
        _of_one(changes.changed(spec, fault=part, fault_strength=spec.setup.fault_strength if len(parts) == 1 else None)) for part in parts
    ]
    return min(found, key=lambda each: each.size)


def rung_of(fault: str) -> str:
    """Where a single ``fault`` acts: gradient, given (to the optimizer), update, average, window, log, or resume."""
    if fault in ("clip_per_micro_batch", "clip_each_micro_batch", "loss_scaling_clip"):
        return "given"
    if fault == "state_per_micro_batch_ema":
        return "average"
    if fault == "loss_scaling_overflow":
        return "overflow"
    places = {
        "schedule_per_micro_batch": "update",
        "state_per_micro_batch": "update",
        "short_window": "window",
        "merged_window": "window",
        "dropped_window": "window",
        "reporting": "log",
        "resume_inside_window": "resume",
    }
    return places.get(classes_of(fault)[0], "gradient")


def _of_one(spec: RunSpec) -> Effect:
    rung = rung_of(spec.setup.fault)
    if spec.setup.fault not in SCALED:
        spec = changes.in_fp64(spec)
    return Effect(size=MEASURES[rung](spec), rung=rung, dtype=spec.setup.dtype)


def relative(found: Tensors, right: Tensors) -> float:
    """The relative L2 difference; infinite where only one side is finite."""
    apart = geometry(found, right).relative
    return math.inf if math.isnan(apart) else apart


def start_of(spec: RunSpec) -> State:
    """The run's initial weights."""
    return Oracle(changes.one_batch(spec), is_correct=True).start


def steps(spec: RunSpec, count: int, resume_after: int | None = None) -> Iterator[tuple[State, Pair]]:
    """The first steps of the run with the fault, each beside the step without it from the same state."""
    start = State(model=start_of(spec).model, optimizer={})
    for state, seen in Oracle(spec, start).sequence(count, resume_after):
        yield state, (seen, _right(spec, state).observe())


def _right(spec: RunSpec, state: State, tampering: Tampering = UNTOUCHED) -> Oracle:
    return Oracle(spec, state, is_correct=True, tampering=tampering)


def _first(spec: RunSpec) -> Pair:
    return next(steps(spec, 1))[1]


def _gradient(spec: RunSpec) -> float:
    found, right = _first(spec)
    return relative(found.gradient, right.gradient)


def _given(spec: RunSpec) -> float:
    found, right = _first(spec)
    return relative(found.clipped, right.clipped)


def moved(seen: Observation) -> Tensors:
    """What an update changed."""
    return {name: part.double() - seen.before[name].double() for name, part in seen.after.items()}


def _update(spec: RunSpec) -> float:
    """Beside what the right optimizer makes of the very same gradient."""
    largest = 0.0
    for state, (seen, _) in steps(spec, STEPS):
        expected = _right(changes.without_clipping(changes.one_rank(spec)), state).update(seen.clipped, seen.loss, seen.terms)
        largest = max(largest, relative(moved(seen), moved(expected)))
    return largest


def _average(spec: RunSpec) -> float:
    """The averages' difference over the length of an update."""
    largest = 0.0
    for _, (found, right) in steps(spec, STEPS):
        apart = {name: part.double() - right.average[name].double() for name, part in found.average.items()}
        largest = max(largest, _length(apart) / _length(moved(right)) if _length(moved(right)) else 0.0)
    return largest


def _length(tensors: Tensors) -> float:
    return math.sqrt(sum(float(part.double().square().sum()) for part in tensors.values()))


def _window(spec: RunSpec) -> float:
    """The largest one over the windows of the first epoch, the short one and the one after it; without an update there is no gradient."""
    return max(relative(found.gradient, right.gradient) for _, (found, right) in steps(spec, 3))


def _log(spec: RunSpec) -> float:
    found, right = _first(spec)
    return abs(found.loss / right.loss - 1) if right.loss else abs(found.loss)


def _resume(spec: RunSpec) -> float:
    _, (found, right) = list(steps(spec, RESUME_AFTER + 1, RESUME_AFTER))[-1]
    return relative(found.gradient, right.gradient)


def _overflow(spec: RunSpec) -> float:
    """1 where the update is made from an infinite gradient as if it were none, and the right step's is not finite or not made."""
    spoiled, start = Tampering(spoils=0), start_of(spec)
    found = Oracle(spec, start, tampering=spoiled).observe()
    right = _right(spec, start, spoiled).observe()
    is_made, is_right_made = _length(moved(found)), _length(moved(right))
    is_wrong = math.isfinite(is_made) and is_made > 0 and not (math.isfinite(is_right_made) and is_right_made > 0)
    return 1.0 if is_wrong else 0.0


MEASURES: dict[str, Callable[[RunSpec], float]] = {
    "gradient": _gradient,
    "given": _given,
    "update": _update,
    "average": _average,
    "window": _window,
    "log": _log,
    "resume": _resume,
    "overflow": _overflow,
}
