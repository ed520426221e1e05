"""Micro-batches that add up rightly to something else than one batch gives: what the subject itself makes of the cut."""

from accum_sweeps.ladder import changes
from accum_sweeps.ladder.bench import Bench
from accum_sweeps.ladder.findings import UNKNOWN, Experiment, Finding
from accum_sweeps.ladder.geometry import geometry
from accum_sweeps.ladder.observation import Member, Tensors
from accum_sweeps.ladder.oracle import UNTOUCHED, Tampering
from accum_sweeps.ladder.shares import pattern, shares
from accum_sweeps.plan.spec import RunSpec

KINDS = ("batch_statistics", "in_batch_negatives", "dropout_stream")
LEAST = 1e-9  # relative, in float64: less is rounding, more is not
LEAST_COARSE = 0.03  # where there is no float64


def dependence(bench: Bench, spec: RunSpec) -> Finding | None:
    """What makes the right accumulation differ from one batch, if anything does; a mean of means is a fault even if the loss makes it."""
    whole, apart = _apart(bench, spec)
    least = max(LEAST, 10 * bench.noise) if spec.setup.dtype == "fp64" else LEAST_COARSE
    if apart <= least:
        return None
    for name, words, after in _cures(bench, spec):
        if after <= max(least, apart / 1e3):
            return Finding(name=name, rung=4, words=f"{apart:.3g} from one batch, relative", experiments=(_proof(words, apart, after),))
    members = bench.right(changes.one_rank(spec)).members()
    found = shares(whole, members)
    if found.residual <= least and pattern(found, least).kind != "right":
        words = "one batch is another weighted sum of the micro-batches: each one's own mean counts although their terms differ"
        return Finding(
            name="mean_of_means", rung=4, words=words, experiments=(_proof("another weight for each micro-batch", apart, found.residual),)
        )
    coupled = _coupling(members, bench, spec)
    if coupled is not None:
        return coupled
    return Finding(name=UNKNOWN, rung=4, words=f"right accumulation is {apart:.3g} from one batch, relative, for an unknown reason")


def _apart(bench: Bench, spec: RunSpec, tampering: Tampering = UNTOUCHED) -> tuple[Tensors, float]:
    """The gradient of one batch, and how far the right accumulation is from it."""
    sides = [bench.right(side, tampering=tampering) for side in (changes.one_rank(spec), changes.one_batch(spec))]
    arm, whole = (side.observe().gradient for side in sides)
    return whole, geometry(arm, whole).relative


def _cures(bench: Bench, spec: RunSpec) -> list[tuple[str, str, float]]:
    """(kind, what was changed, what is left of the difference)."""
    found = [
        ("batch_statistics", "batch norm by its running statistics", _apart(bench, spec, Tampering(keeps_statistics=True))[1]),
        ("dropout_stream", "dropout off", _apart(bench, spec, Tampering(keeps_all=True))[1]),
    ]
    equal = changes.with_equal_lengths(spec)
    if equal is not None:
        found.append(("mean_of_means", "all rows full", _apart(bench, equal)[1]))
    return found


def _coupling(members: list[Member], bench: Bench, spec: RunSpec) -> Finding | None:
    """Whether the loss of a batch is another sum than that of its micro-batches'."""
    one = bench.right(changes.one_batch(spec)).observe()
    parts = sum(member.loss for member in members)
    if abs(one.loss_sum - parts) <= LEAST * abs(one.loss_sum):
        return None
    words = (
        f"the loss of a batch is {one.loss_sum:.6g}, the losses of its micro-batches add up to {parts:.6g}: samples see each other in it"
    )
    return Finding(name="in_batch_negatives", rung=3, words=words)


def _proof(words: str, before: float, after: float) -> Experiment:
    return Experiment(words=words, before=before, after=after)
