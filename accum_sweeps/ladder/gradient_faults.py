"""Faults that show in the gradient of one full window: read off the shares of its micro-batches, each proved by an experiment."""

import dataclasses
import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from accum_sweeps.ladder import changes
from accum_sweeps.ladder.bench import Bench, Step, shortened
from accum_sweeps.ladder.findings import UNKNOWN, Experiment, Finding
from accum_sweeps.ladder.geometry import geometry
from accum_sweeps.ladder.oracle import Tampering
from accum_sweeps.ladder.own_clipping import own_clipping
from accum_sweeps.ladder.shares import Pattern, norm, pattern, share_of_bf16
from accum_sweeps.plan.spec import RunSpec

SURE = 6.0  # standard errors
AVERAGED = 5e-4  # what bfloat16 rounding may do to the length of a whole gradient
CLIPPING = 1e-6  # relative: torch's clipping adds 1e-6 to a norm, an own one may not


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Seen:
    """A step, what its shares look like, and what rounding may do: to the gradient, relative, and to a share (``uncertainty``)."""

    step: Step
    pattern: Pattern
    tolerance: float
    uncertainty: float

    @property
    def is_right(self) -> bool:
        """The micro-batches' gradients, all of them, and nothing else."""
        return self.pattern.kind == "right" and not self.has_rest

    @property
    def has_rest(self) -> bool:
        """Something in the gradient is of no micro-batch."""
        return not self.step.shares.rest <= self.tolerance

    @property
    def off(self) -> float:
        """How far the gradient is from the right one, relative."""
        return self.step.shares.sums.relative


def seen(bench: Bench, spec: RunSpec, tampering: Tampering = Tampering()) -> Seen:  # noqa: B008 - frozen
    """The first step of the code under test by the settings of ``spec``."""
    return judged(bench, bench.step(spec, tampering))


def judged(bench: Bench, step: Step) -> Seen:
    """``step`` by its pattern."""
    tolerance = bench.tolerance(step)
    rest, error, rho = step.shares.rest, step.shares.error, step.shares.sums.rho
    loose = max(tolerance, 3 * rest) if rest < 0.05 else tolerance
    # Rounding goes with the length of the gradient under test, right or not.
    uncertainty = loose * (max(1.0, rho) if math.isfinite(rho) else 1.0)
    if step.shares.is_told and rest <= tolerance:  # noise, so that shares of micro-batches that are much alike are as uncertain as it says
        uncertainty = max(uncertainty, SURE * error)
    return Seen(step=step, pattern=pattern(step.shares, uncertainty), tolerance=tolerance, uncertainty=uncertainty)


def gradient_faults(bench: Bench, found: Seen) -> list[Finding]:
    """The faults of the full window ``found``, clipping aside."""
    if found.is_right or (bench.has_own_step and not found.step.seen.updates):  # updates that are missing are counted by windows
        return []
    beside, clear = _beside(bench, found)
    named = [*([beside] if beside is not None else []), *_of_shares(bench, clear.step.spec, clear)]
    if not named and found.pattern.kind == "scaled" and not found.has_rest and bench.hides_length:
        return []
    return named or [unknown(found)]


def unknown(found: Seen) -> Finding:
    """A gradient that is not the right one, and that nothing else explains."""
    if not math.isfinite(found.off):
        return Finding(name=UNKNOWN, rung=4, words="the gradient holds numbers that are not finite; the right code's are finite")
    words = f"the gradient is {found.off:.3g} from the right one, relative, and {found.step.shares.rest:.3g} of it is of no micro-batch"
    return Finding(name=UNKNOWN, rung=4, words=words)


def _beside(bench: Bench, found: Seen) -> tuple[Finding | None, Seen]:
    """What brings something into the gradient that is of no micro-batch, and a window without it, where there is one."""
    spec, rest = found.step.spec, found.step.shares.rest
    if not found.has_rest:
        return None, found
    quiet = changes.without_auxiliary_terms(spec)
    if quiet is not None and not (after := seen(bench, quiet)).has_rest:
        proof = Experiment(words="the auxiliary term's coefficient at 0", before=rest, after=after.step.shares.rest)
        words = "the error lies along the auxiliary term's gradient"
        return Finding(name="auxiliary_scale", rung=4, words=words, experiments=(proof,)), after
    if not (after := seen(bench, spec, Tampering(keeps_all=True))).has_rest and _drops(bench, spec):
        proof = Experiment(words="dropout off", before=rest, after=after.step.shares.rest)
        words = "the second pass drops others than the first"
        return Finding(name="replay_randomness", rung=4, words=words, experiments=(proof,)), after
    if (buffer := _low_buffer(bench, spec, found)) is not None:
        words = "the sum is rounded to a bfloat16 buffer"
        return Finding(name="accumulator_dtype", rung=4, words=words, experiments=(buffer,)), found
    return None, found


def _drops(bench: Bench, spec: RunSpec) -> bool:
    """Whether dropout changes the right gradient at all."""
    sides = [bench.right(changes.one_rank(spec), tampering=Tampering(keeps_all=kept)) for kept in (False, True)]
    first, second = (side.observe().gradient for side in sides)
    return geometry(first, second).relative > 0


def _low_buffer(bench: Bench, spec: RunSpec, found: Seen) -> Experiment | None:
    """Whether the right sum in a bfloat16 buffer leaves as much as was found, or g's own entries are bfloat16 numbers."""
    if spec.setup.dtype == "bf16" or spec.setup.accumulator == "bf16":
        return None
    low = changes.changed(changes.one_rank(spec), accumulator="bf16")
    rest, own = found.step.shares.rest, bench.rounding(low)
    is_low = share_of_bf16(found.step.seen.gradient) > 0.99
    if not is_low and not (0.3 * own <= rest <= 3 * own and rest < 0.1):
        return None
    return Experiment(words="right accumulation in a bfloat16 buffer, and in the run's own", before=own, after=bench.rounding(spec))


def _of_shares(bench: Bench, spec: RunSpec, found: Seen) -> Iterator[Finding]:
    """The faults that a pattern of shares names."""
    kind, factor = found.pattern.kind, found.pattern.factor
    if kind == "right" and found.has_rest:
        yield from _behind_rounding(bench, spec)
    elif spec.setup.ranks > 1 and (over := list(_over_ranks(bench, spec, found))):
        yield from over
    elif kind in ("scaled", "means") and not bench.hides_length:
        yield from _scale(bench, spec, found, kind, factor)
    elif kind == "means":
        yield _mean_of_means(spec, (_regression(found),))
    elif kind in ("lost", "none"):
        lost = [place + 1 for place in found.pattern.lost]
        words = f"of the k={spec.accum} micro-batches {_listed(lost)} have no part in the gradient" if lost else "the gradient is zero"
        yield Finding(name="lost_micro_batches", rung=4, words=words, experiments=(_regression(found),))
    elif kind == "growing":
        words = f"each micro-batch counts {factor:.4g} times as much as the one before it"
        yield Finding(name="reweighted_buffer", rung=4, words=words, experiments=(_regression(found),), figures={"factor": factor})


def _behind_rounding(bench: Bench, spec: RunSpec) -> Iterator[Finding]:
    """A length that is off by less than a coarse buffer rounds single shares; over all elements rounding averages out."""
    factors = []
    for accum in (spec.accum, 1):
        step = dataclasses.replace(spec, accum=accum)
        low = changes.changed(changes.one_rank(step), accumulator="bf16")
        factors.append(geometry(bench.code(step).observe().gradient, bench.right(low).observe().gradient).multiple)
    together, alone = factors
    proof = Experiment(words="k=1 against one pass", before=abs(together - 1), after=abs(alone - 1))
    if abs(alone - 1) > AVERAGED:
        words = f"the gradient is {alone:.6g} times the right one at k=1, where nothing is accumulated"
        yield Finding(name="wrong_divisor", rung=4, words=words, experiments=(proof,), figures={"factor": alone})
    elif abs(together - 1) > AVERAGED:
        yield _division(spec, together, proof)


def _regression(found: Seen) -> Experiment:
    words = "the gradient written as a weighted sum of the micro-batches' own gradients"
    return Experiment(words=words, before=found.off, after=found.step.shares.rest)


def _scale(bench: Bench, spec: RunSpec, found: Seen, kind: str, factor: float) -> Iterator[Finding]:
    """A length that is off: at k=1 too (a divisor), with k (a division missing or made twice), or by the micro-batches' own counts."""
    alone = seen(bench, dataclasses.replace(spec, accum=1)) if spec.accum > 1 else found
    at_one = alone.pattern.factor if alone.pattern.kind in ("scaled", "means") else 1.0
    if alone.pattern.kind in ("scaled", "means"):
        proof = Experiment(words="k=1 against one pass", before=abs(factor - 1), after=abs(at_one - 1))
        words = f"the gradient is {at_one:.6g} times the right one at k=1, where nothing is accumulated"
        yield Finding(name="wrong_divisor", rung=4, words=words, experiments=(proof,), figures={"factor": at_one})
    rest, tolerance = factor / at_one, max(found.tolerance, 3 * found.step.shares.rest)
    proof = Experiment(words="k=1 against one pass", before=found.off, after=alone.off)
    if abs(rest - 1) > tolerance:
        yield _division(spec, rest, proof)
    if kind == "means" and rest <= 1 + tolerance:
        equal = changes.with_equal_lengths(spec)
        proofs = (
            (_regression(found),) if equal is None else (Experiment(words="all rows full", before=found.off, after=seen(bench, equal).off),)
        )
        yield _mean_of_means(spec, proofs)


def _mean_of_means(spec: RunSpec, proofs: tuple[Experiment, ...]) -> Finding:
    words = f"each micro-batch's own mean counts 1/{spec.accum} although their numbers of terms differ"
    return Finding(name="mean_of_means", rung=4, words=words, experiments=proofs)


def _division(spec: RunSpec, factor: float, proof: Experiment) -> Finding:
    words = f"the gradient is {factor:.6g} times as long as it should be at k={spec.accum}, and right at k=1"
    name = "missing_division" if factor > 1 else "double_division"
    power = math.log(abs(factor)) / math.log(spec.accum) if factor > 0 and spec.accum > 1 else math.nan
    return Finding(name=name, rung=4, words=words, experiments=(proof,), figures={"factor": factor, "power_of_k": power})


def _over_ranks(bench: Bench, spec: RunSpec, found: Seen) -> Iterator[Finding]:
    """What is gone on one rank with the same micro-batches."""
    single = seen(bench, changes.one_rank(spec))
    proof = Experiment(words="the same micro-batches on one rank", before=found.off, after=single.off)
    values, terms, k = found.step.shares.values, found.step.shares.terms, spec.accum
    first, second = (float(terms[place].sum()) for place in (slice(0, k), slice(k, None)))
    sides = [values[:k] * first * 2 / terms.sum(), values[k:] * second * 2 / terms.sum()]
    if found.step.shares.is_told and all((abs(side - 1) <= found.uncertainty).all() for side in sides):
        words = f"each rank's own mean counts 1/2 although their numbers of terms differ: {first:g} and {second:g}"
        yield Finding(name="mean_of_means_over_ranks", rung=4, words=words, experiments=(proof,))
    elif found.step.shares.is_told and k > 1 and all(_halves(side, found.uncertainty) for side in (values[:k], values[k:])):
        words = "each micro-batch counts half as much as the one before: the running sum is added up over the ranks each time"
        yield Finding(name="wrong_sync", rung=4, words=words, experiments=(proof,))


def _halves(values: NDArray[np.float64], tolerance: float) -> bool:
    """Whether each share is half of the one before, and the last one is 1; the small ones drown in the rounding of the large ones."""
    right = 2.0 ** np.arange(len(values) - 1, -1, -1)
    return bool((np.abs(values - right) <= tolerance).all())


def clipping_faults(bench: Bench, found: Seen) -> list[Finding]:
    """What a limit of the gradient's length does, beside shortening the whole once, to the window ``found``, which has none."""
    free, spec = found.step, found.step.spec
    if bench.has_own_step:
        return list(own_clipping(bench, free, found.tolerance))
    if bench.spec.setup.optimizer.max_norm is None:
        return []
    lengths = [norm(member.gradient) for member in free.members]
    total = sum(member.terms for member in free.members)
    shortest = min((length / total for length in lengths if length > 0), default=0.0)
    if not shortest:
        return []
    limit = shortest / 2
    limited = bench.code(changes.clipped_at(spec, limit)).observe()
    apart = geometry(limited.clipped, shortened(free.seen.gradient, limit)).relative
    if apart <= max(found.tolerance, CLIPPING):
        return []
    words = f"with a limit of {limit:.3g} on the gradient's length the optimizer gets a gradient {apart:.3g} from the one shortened once"
    proof = Experiment(
        words="no limit of the gradient's length", before=apart, after=geometry(free.seen.clipped, free.seen.gradient).relative
    )
    is_before = geometry(limited.gradient, free.seen.gradient).relative > CLIPPING
    return [Finding(name="clip_per_micro_batch" if is_before else UNKNOWN, rung=5, words=words, experiments=(proof,))]


def _listed(places: list[int]) -> str:
    words = [str(place) for place in places]
    return ", ".join(words) if len(words) <= 8 else f"{', '.join(words[:7])}, ... ({len(words)} in all)"
