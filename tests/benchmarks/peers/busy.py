"""A short training that every program of bench_peers.py runs: 60 optimizer steps, which keep a core busy for 0.2 s."""

import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

STEPS, RUN_S = 60, 0.2


class Busy:
    """The training as ``subject=python`` takes it."""

    def build(self, config: dict[str, Any], seeds: dict[str, int]) -> torch.nn.Module:
        """A model of five parameters."""
        return torch.nn.Linear(4, 1)

    def batch(self, step: int, seed: int) -> Tensor:
        """Four rows; from here on the step's time runs."""
        self.until = time.perf_counter() + RUN_S / STEPS
        return torch.ones(4, 4)

    def loss(self, model: torch.nn.Module, samples: Tensor) -> tuple[Tensor, int]:
        """(sum over rows, rows), once the step's time is over."""
        total = model(samples).pow(2).sum()
        while time.perf_counter() < self.until:
            pass
        return total, len(samples)


def train() -> Iterator[tuple[int, float]]:
    """The same training as a hand-written loop: (step, loss) after each step."""
    task = Busy()
    model = task.build({}, {})
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(1, STEPS + 1):
        samples = task.batch(step, 0)
        optimizer.zero_grad()
        total, rows = task.loss(model, samples)
        loss = total / rows
        loss.backward()
        optimizer.step()
        yield step, loss.item()
