"""Faults that happen to do nothing in the first window, and show in a later one."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import accum_sweeps as acs


class Masked:
    """A regression whose rows count or not; in the batches of ``equal`` as many rows count in each micro-batch."""

    equal: tuple[int, ...] = (1,)

    def build(self, config: Any, seeds: Any) -> nn.Module:
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))

    def batch(self, step: int, seed: int) -> Any:
        generator = torch.Generator().manual_seed(1000 * seed + step)
        rows = torch.randn(16, 5, generator=generator)
        rows[:, 4] = 1.0 if step in self.equal else (torch.rand(16, generator=generator) < 0.6).float()
        rows[::4, 4] = 1.0  # each of four micro-batches has a row that counts
        return rows

    def loss(self, model: Any, samples: Any) -> tuple[Tensor, Any]:
        mask = samples[:, 4:]
        return ((model(samples[:, :3]) - samples[:, 3:4]).square() * mask).sum(), float(mask.sum())

    def step(self, model: Any, optimizer: Any, micro_batches: list[Any]) -> tuple[float, float]:
        optimizer.zero_grad()
        losses, terms = 0.0, sum(self.loss(model, each)[1] for each in micro_batches)
        for samples in micro_batches:
            total, count = self.loss(model, samples)
            (total / self.divisor(count, terms, len(micro_batches))).backward()
            losses += float(total.detach())
        optimizer.step()
        return losses, terms

    def divisor(self, count: float, terms: float, k: int) -> float:
        return terms


class MeanOfMeans(Masked):
    def divisor(self, count: float, terms: float, k: int) -> float:
        return count * k


class ShortBatchesTwice(Masked):
    """Twice too long where rows are left out, with one micro-batch too."""

    def divisor(self, count: float, terms: float, k: int) -> float:
        return terms if terms == 16 else terms / 2


class ShortBatchesUndivided(Masked):
    """Four times too long at k=4, where rows are left out."""

    def divisor(self, count: float, terms: float, k: int) -> float:
        return terms if terms == 16 else terms / k


class RightLater(MeanOfMeans):
    """The first window is the one that tells."""

    equal = (2, 3, 4, 5, 6)


FAULTS = {
    MeanOfMeans: "mean_of_means",
    RightLater: "mean_of_means",
    ShortBatchesTwice: "wrong_divisor",
    ShortBatchesUndivided: "missing_division",
    Masked: "rounding",
}


@pytest.mark.parametrize("setup", FAULTS)
def test_the_window_that_tells_gives_the_name(setup: type[Masked]) -> None:
    assert acs.audit(setup, accum=4).answers[4] == FAULTS[setup]
