"""A task small enough to be computed by hand: linear regression on fixed rows, with optional dropout."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from accum_sweeps.plan.spec import RunSpec
from accum_sweeps.training import seeding
from accum_sweeps.training.precision import Precision
from accum_sweeps.training.task import Rows

INPUTS = 5


class ToyTask:
    """Rows of INPUTS numbers with a linear target; ``bad_step`` gets an infinite target, each evaluation ``eval_loss`` on top."""

    def __init__(
        self, spec: RunSpec, *, dropout: float = 0.0, bad_step: int = 0, own_lr: float | None = None, eval_loss: float = 0.0
    ) -> None:
        self.spec, self.dropout, self.bad_step, self.own_lr, self.eval_loss = spec, dropout, bad_step, own_lr, eval_loss
        self.modes: list[bool] = []
        self.kept: dict[str, Any] = {}

    def build(self) -> torch.nn.Module:
        model = torch.nn.Sequential(torch.nn.Dropout(self.dropout), torch.nn.Linear(INPUTS, 1))
        rng = seeding.generator("init", self.spec.seed_init, "toy")
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.from_numpy(rng.standard_normal(tuple(parameter.shape))))
        return model

    def optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer | None:
        return None if self.own_lr is None else torch.optim.SGD(model.parameters(), lr=self.own_lr)

    def batch(self, step: int) -> Any:
        rng = seeding.generator("data", self.spec.seed_data, step)
        x = rng.standard_normal((self.spec.setup.global_batch, INPUTS))
        return x, x.sum(1, keepdims=True) + (np.inf if step == self.bad_step else 0.0)

    def rows(self, step: int) -> int:
        return self.spec.setup.global_batch

    def tokens(self, micro_batches: Sequence[Any], terms: float) -> float:
        return terms

    def split(self, samples: Any, parts: Sequence[Rows]) -> list[Any]:
        dtype = Precision.named(self.spec.setup.dtype, "cpu").parameters
        return [tuple(torch.from_numpy(values[rows]).to(dtype) for values in samples) for rows in parts]

    def loss(self, model: torch.nn.Module, micro_batch: Any) -> tuple[Tensor, int]:
        x, y = micro_batch
        return ((model(x) - y) ** 2).sum(), len(x)

    def evaluate(self, model: torch.nn.Module) -> Mapping[str, float]:
        self.modes.append(model.training)
        return {"eval_loss": self.eval_loss + float(model(torch.ones(1, INPUTS, dtype=next(model.parameters()).dtype)).detach())}

    def state(self) -> dict[str, Any]:
        return self.kept

    def restore(self, state: dict[str, Any]) -> None:
        self.kept = state
