"""Experiments on one step: what becomes of the difference between two gradients when one thing is changed.

Each gives again a pair of observations (arm, reference) at the same weights. All of them feed the optimizer with what the two
steps gave it, so that only what is named differs. A changed eps and a frozen tensor cost no further pass; gradients in float64 cost
two, accumulation in float64 one.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

from accum_sweeps.ladder.observation import Observation, State
from accum_sweeps.ladder.oracle import Oracle
from accum_sweeps.plan.parts import Sgd
from accum_sweeps.plan.spec import RunSpec


@dataclass(frozen=True, kw_only=True, eq=False)
class Pair:
    """The same step of ``spec`` made in two ways; ``has_settings_optimizer`` unless the user's class brings its own."""

    spec: RunSpec
    arm: Observation
    reference: Observation
    has_settings_optimizer: bool = True


def reference_of(spec: RunSpec) -> RunSpec:
    """The step of ``spec`` in one batch, without a control."""
    return dataclasses.replace(spec, accum=1, control="none")


def eps(pair: Pair, start: State, value: float) -> Pair:
    """The optimizer's eps at ``value``."""
    part = pair.spec.setup.optimizer
    assert not isinstance(part, Sgd)
    return _updated(changed(pair.spec, optimizer=dataclasses.replace(part, eps=value)), pair, start)


def frozen_tensor(pair: Pair, start: State, name: str) -> Pair:
    """The tensor ``name`` not trained; the others get the gradients that they had."""

    def without(seen: Observation) -> Observation:
        return dataclasses.replace(seen, clipped={n: g for n, g in seen.clipped.items() if n != name})

    return _updated(pair.spec, Pair(spec=pair.spec, arm=without(pair.arm), reference=without(pair.reference)), start)


def fp64_gradients(pair: Pair, start: State) -> Pair:
    """Both gradients computed in float64 at the same weights, clipped there, and then cast."""
    spec = changed(pair.spec, dtype="fp64", accumulator="param")
    seen = Pair(spec=spec, arm=Oracle(spec, start).observe(), reference=Oracle(reference_of(spec), start).observe())
    return _updated(pair.spec, seen, start)


def fp64_accumulation(pair: Pair, start: State) -> Pair:
    """The arm's micro-batches summed in float64. The one batch has nothing to sum: its rounded gradient is the same either way."""
    spec = changed(pair.spec, accumulator="fp64")
    return Pair(spec=spec, arm=Oracle(spec, start).observe(), reference=pair.reference)


def changed(spec: RunSpec, **settings: Any) -> RunSpec:
    """``spec`` with other settings of its setup."""
    return dataclasses.replace(spec, setup=dataclasses.replace(spec.setup, **settings))


def _updated(spec: RunSpec, pair: Pair, start: State) -> Pair:
    """The updates that the optimizer of ``spec`` makes from what it is given in ``pair``; clipping and controls are over by then."""
    plain = changed(spec, optimizer=dataclasses.replace(spec.setup.optimizer, max_norm=None))
    oracle = Oracle(dataclasses.replace(plain, control="none"), start)

    def again(seen: Observation) -> Observation:
        return dataclasses.replace(oracle.update(seen.clipped, seen.loss, seen.terms), gradient=seen.gradient)

    return Pair(spec=spec, arm=again(pair.arm), reference=again(pair.reference))
