"""A small ragged regression as a user's class, and the bench that its trainers are put on."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from accum_sweeps.ladder.audit import Audit, audit
from accum_sweeps.ladder.bench import Bench
from accum_sweeps.plan.spec import RunSpec
from accum_sweeps.subjects import Session
from accum_sweeps.subjects.python_hook import session_of
from tests.specs import make_spec

ROWS, LENGTH, FEATURES, CLASSES = 8, 6, 5, 4
IGNORED = -100
NONE = {"kind": "none", "name": "none"}
SGD = {"kind": "sgd", "name": "sgd", "lr": 0.1, "momentum": 0.9, "nesterov": False, "weight_decay": 0.01}
SGD |= {"max_norm": None, "schedule": "cosine", "warmup_steps": 2}


class Ragged:
    """Classifies each position of rows of different lengths; the loss is the mean over all positions."""

    dropout = 0.0

    def build(self, config: Any, seeds: Any) -> torch.nn.Module:
        layers = torch.nn.Linear(FEATURES, 8), torch.nn.Tanh(), torch.nn.Dropout(self.dropout), torch.nn.Linear(8, CLASSES)
        return torch.nn.Sequential(*layers)

    def batch(self, step: int, seed: int) -> Any:
        draw = torch.Generator().manual_seed(1000 * seed + step)
        y = torch.randint(CLASSES, (ROWS, LENGTH), generator=draw)
        lengths = torch.randint(1, LENGTH + 1, (ROWS, 1), generator=draw)
        y = torch.where(torch.arange(LENGTH) < lengths, y, IGNORED)
        return {"x": torch.randn(ROWS, LENGTH, FEATURES, generator=draw), "y": y}

    def loss(self, model: Any, samples: Any) -> tuple[Tensor, Tensor]:
        y = samples["y"].flatten()
        return cross_entropy(model(samples["x"]).flatten(0, 1), y, reduction="sum", ignore_index=IGNORED), (y != IGNORED).sum()


class Equal(Ragged):
    """The same with rows of one length."""

    def batch(self, step: int, seed: int) -> Any:
        samples = super().batch(step, seed)
        return samples | {"y": samples["y"] % CLASSES}


def bench_of(hook: Any, accum: int = 4, **changes: Any) -> Bench:
    """``hook`` on the bench, whatever file its class is in."""
    settings: dict[str, Any] = {"optimizer": SGD, "global_batch": ROWS, "accum": accum, "steps": 8, "eval_every": 0}
    subject = {"kind": "python", "name": "python", "target": "hooks:Ragged"}
    spec = make_spec(**settings | {"subject": subject, "model": NONE, "data": NONE} | changes)

    def made(spec: RunSpec, is_correct: bool) -> Session:
        return session_of(hook, spec, has_own_step=not is_correct)

    return Bench(spec, made)


def audited(hook: Any, accum: int = 4, **changes: Any) -> Audit:
    """The whole ladder on ``hook``."""
    return audit(bench_of(hook, accum, **changes), type(hook).__name__)


def words(found: Audit) -> list[str]:
    """What the findings say."""
    return [found.remark, *(each.words for each in (found.diagnosis.findings if found.diagnosis else ()))]
