"""Rounding that an optimizer makes large: how much larger an update differs than its gradient, and by which way."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from accum_sweeps.ladder import changes
from accum_sweeps.ladder.amplification import Amplification, amplification, first_step, soft_eps
from accum_sweeps.ladder.bench import Bench
from accum_sweeps.ladder.findings import Experiment
from accum_sweeps.ladder.observation import Observation
from accum_sweeps.plan.parts import Muon

LEAST_GAIN = 4.0  # below it an update differs about as much as its gradient
DROP = 3.0  # an intervention cures if it makes the difference at least so many times smaller
MECHANISMS = {
    "soft_region": "Adam's update is steep where |g| is not much larger than eps",
    "sign_flips": "the sign of gradients below the noise flips, and Adam's update with it",
    "zero_gradient": "a tensor whose gradient is zero but for rounding moves by the full rate",
    "low_precision_optimizer": "the optimizer computes in low precision, whatever the gradient's",
}


@dataclass(frozen=True, kw_only=True)
class Amplified:
    """``mechanism`` is one of MECHANISMS, "" where nothing is amplified, or by none of them."""

    gain: float
    update: float
    soft_share: float
    flip_share: float
    mechanism: str
    experiments: tuple[Experiment, ...] = ()


def amplified(bench: Bench, arm: Observation, whole: Observation) -> Amplified:
    """What the first update makes of the difference between ``arm`` and ``whole``, of the run's own precision."""
    setup = bench.spec.setup
    rule = first_step(setup.optimizer, whole.lr) if bench.has_settings_optimizer else None
    found = amplification(arm, whole, rule, soft_eps(setup.optimizer))
    proofs = tuple(_experiments(bench, arm, whole, found)) if found.gain > LEAST_GAIN else ()
    mechanism = _mechanism(found, {proof.words: proof for proof in proofs}, isinstance(setup.optimizer, Muon)) if proofs else ""
    if not proofs and found.gain > LEAST_GAIN:
        mechanism = "low_precision_optimizer" if isinstance(setup.optimizer, Muon) else ""
    return Amplified(
        gain=found.gain,
        update=found.update,
        soft_share=found.soft_share,
        flip_share=found.flip_share,
        mechanism=mechanism,
        experiments=proofs,
    )


LARGE_EPS, SMALL_EPS, FROZEN = "eps at 1e-4", "eps at 1e-15", "the tensor with the largest share not trained"


def _experiments(bench: Bench, arm: Observation, whole: Observation, found: Amplification) -> Iterator[Experiment]:
    """The update made again from the same gradients, with one thing changed."""
    part = bench.spec.setup.optimizer
    if not hasattr(part, "eps") or not bench.has_settings_optimizer:
        return
    for words, value in ((LARGE_EPS, 1e-4), (SMALL_EPS, 1e-15)):
        yield Experiment(words=words, before=found.update, after=_again(bench, arm, whole, {"eps": value}, ""))
    yield Experiment(words=FROZEN, before=found.update, after=_again(bench, arm, whole, {}, found.largest_tensor))


def _again(bench: Bench, arm: Observation, whole: Observation, settings: dict[str, Any], frozen: str) -> float:
    """The relative difference of the two updates with other ``settings`` of the optimizer, or without the tensor ``frozen``."""
    spec = changes.one_batch(changes.optimizer(bench.spec, **settings | {"max_norm": None}))
    made = []
    for seen in (arm, whole):
        given = {name: part for name, part in seen.clipped.items() if name != frozen}
        made.append(bench.right(spec).update(given, seen.loss, seen.terms))
    return amplification(made[0], made[1], None, 0.0).update


def _mechanism(found: Amplification, proofs: dict[str, Experiment], is_muon: bool) -> str:
    cures = {words: proof.after <= proof.before / DROP for words, proof in proofs.items()}
    if cures[FROZEN]:
        return "zero_gradient"
    if found.flip_share > 0.4 and cures[LARGE_EPS]:
        return "sign_flips"
    # A small eps cures as well, unless the sign of a single tiny gradient flips, which it makes a whole step of.
    if found.soft_share > 0.5 and cures[LARGE_EPS]:
        return "soft_region"
    return "low_precision_optimizer" if is_muon else ""
