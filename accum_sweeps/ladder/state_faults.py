"""Faults of what an update applies or keeps beside the gradient: weight decay, the optimizer's count of steps, the moving average.

Each is known by what it would make of the step: a name is given only where that is what was made.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence

from accum_sweeps.ladder import changes
from accum_sweeps.ladder.bench import Bench, Step
from accum_sweeps.ladder.compare import difference
from accum_sweeps.ladder.findings import UNKNOWN, Experiment, Finding
from accum_sweeps.ladder.geometry import geometry
from accum_sweeps.ladder.observation import Tensors

NAME = "state_per_micro_batch"
COUNT = ".step"  # how torch's optimizers call it
EXPLAINED = 0.05  # of a difference: not more is left where a decay before or behind the update explains it
LESS = 0.9  # k=1 decays k times less, or a part of k


def state_faults(bench: Bench, steps: Sequence[Step], same: float) -> Iterator[Finding]:
    """What the updates of the first ``steps`` make of the gradients that they are given, beside the right ones at the same rate."""
    for step in steps:
        apart = updates_apart(step, same)
        if apart is not None:
            # The second step is the first that begins with a state.
            yield _finding(bench, max(step, steps[1], key=lambda each: each.state.step), same, apart, step.state.step)
            return


def _finding(bench: Bench, step: Step, same: float, apart: tuple[str, float], number: int) -> Finding:
    what, value = apart
    words = f"step {number}: {what} is {value:.3g} from what the optimizer makes of the same gradient, relative"
    decay = Experiment(words="weight decay at 0", before=value, after=_without_decay(bench, step, same))
    if decay.after == 0:
        return Finding(name=NAME, variant=NAME, rung=7, words=words, experiments=(decay,))
    if (shrunk := _shrunk(bench, step)) is not None:
        words += f"; it is {-shrunk.before:.3g} times the weights"
        return Finding(name=NAME, variant=NAME, rung=7, words=words, experiments=(shrunk,))
    if extra := _counted_too_often(step):
        words += f"; it counts {extra + 1:g} steps where one is made"
        count = Experiment(words="the right update with that count", before=value, after=_counting(bench, step, same, extra))
        if count.after == 0:
            return Finding(name=NAME, variant=f"{NAME}_count", rung=7, words=words, experiments=(count,))
    if step.seen.average and step.state.average:
        moved = Experiment(words="the right average, moved with each micro-batch", before=value, after=_averaging(step))
        if moved.after <= same:
            return Finding(name=NAME, variant=f"{NAME}_ema", rung=7, words=words, experiments=(moved,))
    return Finding(name=UNKNOWN, rung=7, words=words, experiments=(decay,))


def _without_decay(bench: Bench, step: Step, same: float) -> float:
    """The largest difference of the first two updates without weight decay."""
    calm = [updates_apart(each, same) for each in bench.history(changes.without_decay(step.spec), 1, 2)]
    return max(each[1] if each else 0.0 for each in calm)


def _shrunk(bench: Bench, step: Step) -> Experiment | None:
    """Whether the weights shrink beside the right update, at k=1 less than with k micro-batches: a decay that the settings do not know."""
    multiples = []
    for each in (step, bench.step(dataclasses.replace(step.spec, accum=1), state=step.state)):
        if each.expected is None or not each.seen.updates:
            return None
        moved, expected = _moves(each)
        beside = geometry({name: moved[name] - expected[name] for name in moved}, {name: each.seen.before[name] for name in moved})
        if each is step and not beside.eta <= EXPLAINED:
            return None
        multiples.append(abs(beside.multiple))
    many, one = multiples
    return Experiment(words="k=1: the multiple of the weights", before=many, after=one) if one < LESS * many else None


def _counted_too_often(step: Step) -> float:
    """How many steps more than the right one the optimizer counts in ``step``; 0 where parameters do not agree, or nothing is counted."""
    right = step.expected.optimizer if step.expected is not None else {}
    extra = {float(count - right[name]) for name, count in step.seen.optimizer.items() if name.endswith(COUNT) and name in right}
    return extra.pop() if len(extra) == 1 else 0.0


def _counting(bench: Bench, step: Step, same: float, extra: float) -> float:
    """How far the update is from the right one of an optimizer that gets ``extra`` steps ahead, before the update or behind it."""
    ahead = {key: held | ({"step": held["step"] + extra} if "step" in held else {}) for key, held in step.state.optimizer.items()}
    before = bench.judged(step.spec, dataclasses.replace(step.state, optimizer=ahead), step.seen)
    counted = {name: part - extra if name.endswith(COUNT) else part for name, part in step.seen.optimizer.items()}
    behind = dataclasses.replace(step, seen=dataclasses.replace(step.seen, optimizer=counted))
    apart = [updates_apart(each, same) for each in (before, behind)]
    return min(each[1] if each else 0.0 for each in apart)


def _averaging(step: Step) -> float:
    """How far the moving average is from one that moves to the old weights k - 1 times, then to the new ones; relative."""
    decay, k = step.spec.setup.ema or 0.0, step.spec.accum
    found = {name: step.seen.average[name].double() for name in step.seen.after}
    expected = {}
    for name, after in step.seen.after.items():
        old, average = step.seen.before[name].double(), step.state.average[f"module.{name}"].double()
        nearer = old + (average - old) * decay ** (k - 1)
        expected[name] = decay * nearer + (1 - decay) * after.double()
    return difference(found, expected).whole.relative


def updates_apart(step: Step, same: float) -> tuple[str, float] | None:
    """The first of weights, state, buffers and average that is not what the right update makes of the same gradient, and how far."""
    right, seen = step.expected, step.seen
    if right is None:
        return None
    moved, expected = _moves(step)
    apart = geometry(moved, expected).relative
    if apart > max(same, _roundoff_of_weights(seen.before, expected)):
        return "the update", apart
    for name, own, other in (
        ("the optimizer's state", seen.optimizer, right.optimizer),
        ("the moving average", seen.average, right.average),
    ):
        found = _tensors_apart(own, other)
        if found > same:
            return name, found
    return None


def _moves(step: Step) -> tuple[Tensors, Tensors]:
    """How the weights moved, and how the right update moves them at the rate that was used; float64."""
    right, seen = step.expected, step.seen
    assert right is not None
    scale = abs(seen.lr / right.lr) if right.lr else 1.0
    moved = {name: seen.after[name].double() - seen.before[name].double() for name in seen.after}
    return moved, {name: (right.after[name].double() - right.before[name].double()) * scale for name in right.after}


def _roundoff_of_weights(before: Tensors, update: Tensors) -> float:
    """How much of an update the rounding of the weights themselves can be; relative."""
    unit = 4 * max(2.0 ** -(52 if part.dtype.itemsize == 8 else 23 if part.dtype.itemsize == 4 else 7) for part in before.values())
    size = math.sqrt(sum(float(part.double().square().sum()) for part in before.values()))
    length = math.sqrt(sum(float(part.square().sum()) for part in update.values()))
    return unit * size / length if length else math.inf


def _tensors_apart(own: Tensors, other: Tensors) -> float:
    """The largest relative difference of a tensor; those that only one side has count as different."""
    if own.keys() != other.keys():
        return math.inf
    return max((difference({"": own[name].double()}, {"": other[name].double()}).whole.relative for name in own), default=0.0)
