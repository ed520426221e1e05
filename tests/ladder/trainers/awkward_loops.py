"""Trainers with habits that have nothing to do with accumulation, and faults that have no name of their own."""

from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tests.ladder.trainers.hooks import CLASSES, FEATURES, IGNORED
from tests.ladder.trainers.loops import Loop, Undivided


class Transposed(nn.Module):
    def forward(self, x: Any) -> Any:
        return x.transpose(1, 2)


class BatchNorm(Loop):
    def build(self, config: Any, seeds: Any) -> nn.Module:
        norm = [Transposed(), nn.BatchNorm1d(8), Transposed()]
        return nn.Sequential(nn.Linear(FEATURES, 8), *norm, nn.Linear(8, CLASSES))


class Frozen(Loop):
    """A frozen parameter, and one that no loss depends on."""

    def build(self, config: Any, seeds: Any) -> nn.Module:
        model = super().build(config, seeds)
        first, second = list(model.children())[:2]
        first.get_parameter("weight").requires_grad_(False)
        second.add_module("unused", nn.Linear(2, 2))
        return model


class Clamped(Loop):
    """Clamps the weights after each update."""

    def finish(self, model: Any, optimizer: Any, scheduler: Any) -> None:
        super().finish(model, optimizer, scheduler)
        with torch.no_grad():
            for p in model.parameters():
                p.clamp_(-0.3, 0.3)


class Wrapped(Loop):
    """Trains a module around the model, and leaves the model in eval mode."""

    def train(self, model: Any, optimizer: Any, scheduler: Any, micro_batches: Any, accum: int) -> Any:
        logged = super().train(nn.Sequential(model), optimizer, scheduler, micro_batches, accum)
        model.eval()
        return logged


class SkippingLong(Loop):
    """Leaves out an update by a gradient that is very long or very short."""

    def finish(self, model: Any, optimizer: Any, scheduler: Any) -> None:
        if 1e-3 < nn.utils.get_total_norm([p.grad for p in model.parameters()]) < 1e3:
            super().finish(model, optimizer, scheduler)


class InBfloat16(Loop):
    def train(self, *given: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return super().train(*given)


class UndividedInBfloat16(InBfloat16, Undivided):
    pass


class WithAdamW(Loop):
    def optimizer(self, model: Any) -> Any:
        return torch.optim.AdamW(model.parameters(), lr=1e-3, amsgrad=True)


class UndividedWithAdamW(WithAdamW, Undivided):
    pass


class Unscheduled(Loop):
    """Leaves the scheduler alone."""

    def finish(self, model: Any, optimizer: Any, scheduler: Any) -> None:
        optimizer.step()
        optimizer.zero_grad()


class Noisy(Loop):
    """Adds noise to gradients, however long they are."""

    def finish(self, model: Any, optimizer: Any, scheduler: Any) -> None:
        for p in model.parameters():
            p.grad += 1e-3 * torch.randn_like(p)
        super().finish(model, optimizer, scheduler)


class OtherLoss(Loop):
    """Minimizes a smoothed loss, which is not the class's."""

    def loss_of(self, model: Any, samples: Any) -> Any:
        y = samples["y"].flatten()
        return cross_entropy(model(samples["x"]).flatten(0, 1), y, reduction="sum", label_smoothing=0.3), (y != IGNORED).sum()

    def train(self, *given: Any) -> Any:
        self.loss = self.loss_of  # type: ignore[method-assign]
        try:
            return super().train(*given)
        finally:
            del self.loss


class Stale(Loop):
    """Never zeroes the gradient."""

    def finish(self, model: Any, optimizer: Any, scheduler: Any) -> None:
        optimizer.step()
        scheduler.step()


class EverySecond(Loop):
    """An update for two windows."""

    tells = False

    def windows(self, micro_batches: Any, accum: int) -> Any:
        return super().windows(micro_batches, 2 * accum)


class TwoUpdates(Loop):
    """Two updates by one gradient."""

    def finish(self, model: Any, optimizer: Any, scheduler: Any) -> None:
        optimizer.step()
        super().finish(model, optimizer, scheduler)


class HalfOfTheLast(Loop):
    """Of the short last window it uses the first micro-batch alone, and counts the terms of that."""

    def windows(self, micro_batches: Any, accum: int) -> Any:
        return [window if len(window) == accum else window[:1] for window in super().windows(micro_batches, accum)]


class OneLossMore(Loop):
    def train(self, *given: Any) -> Any:
        return [*super().train(*given), 1.0]
