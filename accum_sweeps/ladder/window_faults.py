"""Faults that show over several windows: the rate, the number of updates, the short last window of an epoch, a resume, the log."""

import dataclasses
import math
from collections.abc import Iterator, Sequence

from accum_sweeps.ladder import changes
from accum_sweeps.ladder.bench import Bench, Step
from accum_sweeps.ladder.findings import UNKNOWN, Experiment, Finding
from accum_sweeps.ladder.gradient_faults import Seen, judged
from accum_sweeps.ladder.shares import pattern, shares
from accum_sweeps.ladder.state_faults import state_faults
from accum_sweeps.plan.spec import RunSpec

FIRST_STEPS, RESUME_AFTER = 6, 2  # a bias is averaged over six windows
LAST = 3  # the last window of the epoch that a trainer makes
SAME = 1e-6  # relative: a rate, an update or a loss that is off by more is off by more than its rounding, in any dtype
EXACT = 1e-9  # the same in float64
EXPLAINED = 0.1  # of what was there before: not more is left where it is explained


class Windows:
    """The windows that are looked at: the first ones with a resume among them, and those around a short last window of an epoch."""

    def __init__(self, bench: Bench, spec: RunSpec) -> None:
        self.bench, self.spec = bench, spec
        self.begin = [judged(bench, step) for step in bench.history(spec, 1, FIRST_STEPS, RESUME_AFTER)]
        self.short, around = _around(bench, spec)
        self.around = [judged(bench, step) for step in around]
        self.same = EXACT if spec.setup.dtype == "fp64" else SAME

    @property
    def usual(self) -> Seen:
        """A full window of a run that was not resumed."""
        return self.begin[0]

    @property
    def telling(self) -> Seen:
        """The full window to read the gradient's faults from: the first, or another one where that happens to be right.

        Of terms that are as many everywhere a wrong mean is right. A window with something of no micro-batch, the one after the resume,
        and one after a window without an update, are judged beside the others.
        """
        k, is_after_update, full = len(self.usual.step.members), True, []
        for place, found in enumerate(self.begin):
            if is_after_update and place != RESUME_AFTER and len(found.step.members) == k:
                full.append(found)
            is_after_update = bool(found.step.seen.updates)
        wrong = [found for found in full if found.step.seen.updates and not found.is_right and not found.has_rest]
        return wrong[0] if self.usual.is_right and wrong else self.usual

    @property
    def updated(self) -> list[Seen]:
        """All windows in which an update was made."""
        return [found for found in (*self.begin, *self.around) if found.step.seen.updates]


def _around(bench: Bench, spec: RunSpec) -> tuple[int, list[Step]]:
    """The number of a short last window, 0 = there is none, and the steps around it; a trainer's last window is its last step."""
    if bench.has_train:
        is_looked_at = bench.has_short_window and spec.accum > 1
        return (LAST, bench.epoch(spec, 1, LAST, spec.accum // 2)) if is_looked_at else (0, [])
    short = _first_short(bench, spec)
    return short, bench.history(spec, max(1, short - 1), 3 if short > 1 else 2) if short else []


def _first_short(bench: Bench, spec: RunSpec) -> int:
    """The number of the first step with fewer rows than the others; 0 = there is none within the run."""
    rows = getattr(spec.setup.data, "epoch_rows", None)
    if not rows or getattr(spec.setup.data, "last_window", "") != "short" or not rows % spec.setup.global_batch:
        return 0
    number = rows // spec.setup.global_batch + 1
    return number if number <= spec.setup.steps else 0


def window_faults(windows: Windows) -> list[Finding]:
    """All that shows over windows, beside what is wrong in every one of them."""
    counted = list(_counts(windows))
    rates = [] if counted else list(_schedule(windows))  # more updates take more steps of a schedule with them
    early = [] if counted else list(_early(windows))
    found = [
        *rates,
        *state_faults(windows.bench, [found.step for found in windows.begin], windows.same),
        *counted,
        *early,
        *_short(windows),
    ]
    return [*found, *_later(windows, is_all=not found)]


def _schedule(windows: Windows) -> Iterator[Finding]:
    """The rate of each update against the schedule's."""
    if not windows.bench.follows_schedule:
        return
    for found in [*windows.begin, *windows.around]:
        step = found.step
        if step.expected is not None and abs(step.seen.lr - step.expected.lr) > windows.same * abs(step.expected.lr):
            constant = changes.at_constant_rate(windows.spec)
            after = _rates_apart(windows.bench.history(constant, 1, 2))
            words = f"step {step.state.step} is made with a rate of {step.seen.lr:.6g}; the schedule's is {step.expected.lr:.6g}"
            proof = Experiment(words="a constant rate", before=_rates_apart([step]), after=after)
            yield Finding(name="schedule_per_micro_batch", rung=9, words=words, experiments=(proof,))
            return


def _rates_apart(steps: Sequence[Step]) -> float:
    return max((abs(s.seen.lr / s.expected.lr - 1) for s in steps if s.expected is not None and s.expected.lr), default=0.0)


def _counts(windows: Windows) -> Iterator[Finding]:
    """Full windows with more than one update, or without one; only a user's own step or trainer makes such."""
    counts = [found.step.seen.updates for found in windows.begin]
    if not windows.bench.has_own_step or counts == [1] * len(counts):
        return
    spec = dataclasses.replace(windows.spec, accum=1)
    alone = max(abs(step.seen.updates - 1) for step in windows.bench.history(spec, 1, 2))
    proof = Experiment(words="k=1: updates a window beside the one", before=max(abs(count - 1) for count in counts), after=alone)
    words = (
        f"the first {len(counts)} windows of {windows.spec.accum} micro-batches make {', '.join(map(str, counts))} updates, not one each"
    )
    is_early = windows.usual.pattern.kind == "lost" and min(counts) > 1
    yield Finding(name="early_step" if is_early else UNKNOWN, rung=8, words=words, experiments=(proof,))


def _early(windows: Windows) -> Iterator[Finding]:
    """Updates made from the micro-batches before them: the window's own are in the next update."""
    second = windows.begin[1]
    if not second.has_rest:
        return
    state = second.step.state
    before = windows.bench.members(windows.spec, state, state.step - 1)
    both = shares(second.step.seen.gradient, [*before, *second.step.members])
    if both.residual <= min(10 * second.tolerance, EXPLAINED * second.step.shares.rest) and both.is_told:
        words = f"step 2 is made from micro-batches of step 1 and {int((abs(both.values[len(before) :]) > SAME).sum())} of its own"
        proof = Experiment(
            words="the micro-batches of the step before at the weights of this one", before=second.step.shares.rest, after=both.residual
        )
        yield Finding(name="early_step", rung=8, words=words, experiments=(proof,))


def _short(windows: Windows) -> Iterator[Finding]:
    """The short last window of an epoch, and the one after it."""
    places = [place for place, found in enumerate(windows.around) if found.step.state.step == windows.short]
    if not places:
        return
    short, *following = windows.around[places[0] :]
    if not short.step.seen.updates:
        yield _without_update(windows, short, following[0]) if following else _dropped(short)
        return
    now, usual = short.pattern.scale, _usual_scale(windows, short)
    count = len(short.step.members)
    full = Experiment(words="a full window", before=short.off, after=windows.usual.off)
    if now and usual and abs(now / usual - 1) > short.tolerance:
        words = f"the window of {count} micro-batches at the end of the epoch gives {now / usual:.6g} times the gradient of a full one"
        yield Finding(name="short_window", rung=8, words=words, experiments=(full,), figures={"factor": now / usual})
    elif windows.bench.has_train and not now and all(found.is_right for found in windows.begin):
        is_lost = short.pattern.kind == "lost" and not short.has_rest
        words = f"the window of {count} micro-batches at the end of the epoch is {short.off:.3g} from the right one, a full one is not"
        yield Finding(name="lost_micro_batches" if is_lost else UNKNOWN, rung=8, words=words, experiments=(full,))


def _usual_scale(windows: Windows, short: Seen) -> float | None:
    """The scale of a window of as many micro-batches as ``short`` that is full: what is always wrong may depend on their number."""
    bench, count = windows.bench, len(short.step.members)
    if bench.hides_length:
        return None
    if bench.has_train:
        [alone] = bench.epoch(windows.spec, LAST, 1, count)
        return judged(bench, alone).pattern.scale
    parts = bench.right(changes.one_rank(windows.spec), short.step.state).parts()
    full = bench.code(dataclasses.replace(windows.spec, accum=count), short.step.state).observe(parts=parts)
    return pattern(shares(full.gradient, short.step.members), short.tolerance).scale


def _dropped(short: Seen) -> Finding:
    """What a trainer leaves undone as it ends."""
    count = len(short.step.members)
    words = f"the last window of the epoch, of {count} micro-batches, makes no update"
    return Finding(name="dropped_window", rung=8, words=words, experiments=(Experiment(words="a full window", before=1.0, after=0.0),))


def _without_update(windows: Windows, short: Seen, following: Seen) -> Finding:
    before = windows.bench.members(windows.spec, following.step.state, short.step.state.step)
    both = shares(following.step.seen.gradient, [*before, *following.step.members])
    rest, off, limit = following.step.shares.rest, following.off, 10 * following.tolerance
    # Where the next epoch has the same rows, they have a part in its window in any case, and there is no rest.
    is_same_rows = not following.has_rest and not following.is_right and both.sums.eta <= limit
    left, after = (off, both.sums.eta) if is_same_rows else (rest, both.residual)
    proof = Experiment(words="the next update with the micro-batches of both windows", before=left, after=after)
    if is_same_rows or (following.has_rest and both.residual <= min(limit, EXPLAINED * rest)):
        words = "the short window at the end of the epoch makes no update, and its micro-batches are in the next one"
        return Finding(name="merged_window", rung=8, words=words, experiments=(proof,))
    words = "the short window at the end of the epoch makes no update, and its micro-batches are in no other"
    return Finding(name="dropped_window", rung=8, words=words, experiments=(proof,))


def _later(windows: Windows, is_all: bool) -> Iterator[Finding]:
    """Later windows beside the first of the run, such as that after a resume; ``is_all``: nothing else was found that disturbs them."""
    usual = windows.usual
    if not windows.telling.is_right:
        return
    if windows.bench.has_train:
        wrong = [found for found in windows.begin[1:] if found.step.seen.updates and not found.is_right]
        yield from [_wrong(wrong[0], usual, f"the gradient of window {wrong[0].step.state.step}")] if wrong and is_all else []
        return
    after = windows.begin[RESUME_AFTER]
    if after.is_right or len(after.step.members) != len(usual.step.members):
        return
    if after.pattern.kind in ("lost", "none") and not after.has_rest:
        words = f"the first update after a resume lacks {len(after.pattern.lost)} of its {len(after.step.members)} micro-batches"
        proof = Experiment(words="the first step of the run, without a resume", before=after.off, after=usual.off)
        yield Finding(name="resume_inside_window", rung=8, words=words, experiments=(proof,))
    elif is_all:
        yield _wrong(after, usual, "the first update after a resume")


def _wrong(found: Seen, usual: Seen, what: str) -> Finding:
    words = f"{what} is {found.off:.3g} from the right one, the first of the run {usual.off:.3g}"
    return Finding(name=UNKNOWN, rung=8, words=words, experiments=(Experiment(words="the first step", before=found.off, after=usual.off),))


def log_faults(windows: Windows, gradient_is_right: bool) -> list[Finding]:
    """The logged loss against the losses of the step's micro-batches."""
    found = windows.usual
    step, logged = found.step, found.step.seen.loss
    if windows.bench.has_train and math.isnan(logged):  # it was not told
        return []
    same = max(windows.same, 10 * found.tolerance)
    factor = found.pattern.scale or 1.0
    told = [step.loss, *([] if gradient_is_right else [step.mean_of_losses, step.loss * factor])]
    if any(_is_close(logged, value, same) for value in told):
        return []
    k = len(step.members)
    if _is_close(logged, step.last_loss, same):
        words = f"the logged loss {logged:.6g} is the last micro-batch's; that of the step is {step.loss:.6g}"
        return [Finding(name="reporting", rung=9, words=words, experiments=(_log_proof(windows, logged),))]
    if gradient_is_right:
        words = f"the logged loss {logged:.6g} is {logged / step.loss:.6g} times the step's, {step.loss:.6g}, at k={k}"
        return [Finding(name="reporting", variant="reporting_scaled", rung=9, words=words, experiments=(_log_proof(windows, logged),))]
    return []


def _log_proof(windows: Windows, logged: float) -> Experiment:
    """At k=1 there is nothing to choose from: the log is right there."""
    found = windows.usual
    off = abs(logged / found.step.loss - 1) if found.step.loss else math.inf
    if windows.bench.has_train:
        return Experiment(words="the gradient in place of the log", before=off, after=found.off)
    alone = windows.bench.step(dataclasses.replace(windows.spec, accum=1))
    return Experiment(words="k=1", before=off, after=abs(alone.seen.loss / alone.loss - 1) if alone.loss else 0.0)


def _is_close(value: float, other: float, same: float) -> bool:
    return abs(value - other) <= same * max(abs(other), 1e-300)
