"""torch's own optimizers from their specification, and the learning rate as a pure function of the optimizer step."""

import math
from collections.abc import Callable

import torch

from accum_sweeps.plan.parts import Adam, AdamW, Muon, Optimizer


def make(part: Optimizer, model: torch.nn.Module) -> torch.optim.Optimizer:
    """AdamW or SGD over all parameters of ``model``; weight decay applies to all of them alike."""
    if isinstance(part, AdamW):
        return torch.optim.AdamW(model.parameters(), lr=part.lr, betas=part.betas, eps=part.eps, weight_decay=part.weight_decay)
    if isinstance(part, Adam):
        return torch.optim.Adam(model.parameters(), lr=part.lr, betas=part.betas, eps=part.eps, weight_decay=part.weight_decay)
    if isinstance(part, Muon):
        raise NotImplementedError("optimizer=muon")
    return torch.optim.SGD(model.parameters(), lr=part.lr, momentum=part.momentum, nesterov=part.nesterov, weight_decay=part.weight_decay)


def schedule(part: Optimizer, steps: int) -> Callable[[int], float]:
    """The factor on the learning rate at optimizer step 1, 2, ..., ``steps``.

    Linear from 1/warmup_steps to 1 over the warmup; then 1, or half a cosine wave that would reach 0 one step after the last.
    """

    def factor(step: int) -> float:
        if step <= part.warmup_steps:
            return step / part.warmup_steps
        if part.schedule == "constant":
            return 1.0
        done = (step - part.warmup_steps - 1) / (steps - part.warmup_steps)
        return 0.5 * (1.0 + math.cos(math.pi * done))

    return factor


def set_lr(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Give every parameter group ``factor`` times the learning rate that it started with."""
    for group in optimizer.param_groups:
        group["lr"] = group.setdefault("initial_lr", group["lr"]) * factor
