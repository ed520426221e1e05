"""The comparisons that people make now, on the same cases: k micro-batches against one batch, a tolerance, and a yes or no.

Each asks the code under test itself at k and at k=1, in the case's own dtype; at k=1 of two ranks there is the correct code alone.
"""

import dataclasses
import math
from typing import Any

import torch

from accum_sweeps.ladder import changes
from accum_sweeps.ladder.compare import ATOL, RTOL
from accum_sweeps.ladder.observation import Observation, State, Tensors
from accum_sweeps.ladder.oracle import Oracle
from accum_sweeps.plan.errors import ConfigError
from accum_sweeps.plan.parts import AdamW, Sgd
from accum_sweeps.plan.spec import RunSpec
from accum_sweeps.plan.together import check_setup
from tests.benchmarks.faults.effects import start_of

CHECKS = {
    "sgd": "weights after one SGD step, allclose(atol=1e-7)",
    "adamw": "weights after one AdamW step, allclose(atol=1e-7)",
    "gradient": "gradients, allclose(rtol=1e-5, atol=1e-4)",
    "loss": "loss after a step, within 1e-5 relative",
}
GRADIENT_RTOL, GRADIENT_ATOL, LOSS_RTOL = 1e-5, 1e-4, 1e-5
LR = 1e-3  # of both optimizers: that of the published test


def checks(spec: RunSpec) -> dict[str, bool]:
    """Whether each of CHECKS reports a difference. An optimizer that the fault cannot exist with reports none of it."""
    start = start_of(spec)
    sgd = _with(spec, Sgd, momentum=0.0, nesterov=False)
    adamw = _with(spec, AdamW, betas=(0.9, 0.95), eps=1e-8)
    own = [_steps(side, start, 2) for side in (spec, one_batch(spec))]
    gradients = [side[0].gradient for side in own]
    return {
        "sgd": not _is_close(*[_steps(side, start, 1)[0].after for side in (sgd, one_batch(sgd))], rtol=RTOL, atol=ATOL),
        "adamw": not _is_close(*[_steps(side, start, 1)[0].after for side in (adamw, one_batch(adamw))], rtol=RTOL, atol=ATOL),
        "gradient": not _is_close(*gradients, rtol=GRADIENT_RTOL, atol=GRADIENT_ATOL),
        "loss": not math.isclose(own[0][1].loss, own[1][1].loss, rel_tol=LOSS_RTOL),
    }


def one_batch(spec: RunSpec) -> RunSpec:
    """The same code in one batch, on one rank."""
    single = changes.one_batch(spec)
    return single if spec.setup.ranks == 1 else _clean(single)


def _clean(spec: RunSpec) -> RunSpec:
    return changes.changed(spec, fault="none", fault_strength=None)


def _with(spec: RunSpec, kind: type[Sgd] | type[AdamW], **settings: Any) -> RunSpec:
    """``spec`` with another optimizer, of the same decay, clipping and schedule; without the fault where it cannot exist with it."""
    own = spec.setup.optimizer
    kept = {key: getattr(own, key) for key in ("weight_decay", "max_norm", "schedule", "warmup_steps")}
    changed = changes.changed(spec, optimizer=kind(name=kind.kind, lr=min(own.lr, LR), **kept, **settings))
    try:
        check_setup(changed.setup)
    except ConfigError:
        return _clean(changed)
    return changed


def _steps(spec: RunSpec, start: State, count: int) -> list[Observation]:
    return [seen for _, seen in Oracle(spec, dataclasses.replace(start, optimizer={})).sequence(count)]


def _is_close(found: Tensors, right: Tensors, *, rtol: float, atol: float) -> bool:
    if found.keys() != right.keys():
        return False
    return all(torch.allclose(part.double(), right[name].double(), rtol=rtol, atol=atol) for name, part in found.items())
