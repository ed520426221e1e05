"""Faults of what an update keeps or applies beside the gradient, once per micro-batch in place of once per update.

The gradient is right in all of them.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from accum_sweeps.faults.buffer import Buffer, finish
from accum_sweeps.faults.case import Case
from accum_sweeps.training.task import StepOutcome, Training


def state_per_micro_batch(case: Case, training: Training, micro_batches: list[Any]) -> StepOutcome:
    """Weight decay is multiplied by the number of micro-batches, as if each of them were an update.

    keras#19990; yolov5 scales its decay by the accumulation. Decoupled decay shrinks the weights by 1 - k lr wd, coupled decay adds
    k wd w to the gradient. Inert at k = 1 and without decay.
    """
    buffer = Buffer(training)
    for member in case.members(training, micro_batches):
        buffer.add(member)
    buffer.divide(buffer.terms)
    with decay_times(training, len(micro_batches)):
        return finish(training, buffer)


@contextlib.contextmanager
def decay_times(training: Training, factor: int) -> Iterator[None]:
    """The optimizer's weight decay multiplied by ``factor`` meanwhile."""
    groups = training.optimizer.param_groups
    before = [group.get("weight_decay", 0.0) for group in groups]
    for group, decay in zip(groups, before, strict=True):
        group["weight_decay"] = decay * factor
    try:
        yield
    finally:
        for group, decay in zip(groups, before, strict=True):
            group["weight_decay"] = decay


def state_per_micro_batch_ema(case: Case, training: Training, micro_batches: list[Any]) -> StepOutcome:
    """``ema.update()`` stands behind every backward in place of every update.

    F5-TTS#631. k - 1 times the average moves towards the old weights, then once towards the new ones: its decay is d^k in effect, and
    in the first step it begins with the initial weights. Weights are right. Inert at k = 1.
    """
    buffer = Buffer(training)
    for number, member in enumerate(case.members(training, micro_batches), 1):
        buffer.add(member)
        if training.average is not None and number < len(micro_batches):  # the last move is that of the update
            training.average.update_parameters(training.model)
    buffer.divide(buffer.terms)
    return finish(training, buffer)


def state_per_micro_batch_count(case: Case, training: Training, micro_batches: list[Any]) -> StepOutcome:
    """Adam's count of steps advances with each micro-batch, so that its bias corrections end k times too early.

    keras#19990. The first update is h times the right one, h = (1 - b1)/(1 - b1^k) sqrt((1 - b2^k)/(1 - b2)) where |g| is far above eps.
    Inert at k = 1 and without bias corrections.
    """
    buffer = Buffer(training)
    for number, member in enumerate(case.members(training, micro_batches), 1):
        buffer.add(member)
        if number < len(micro_batches):  # the last count is that of the update
            _count(training.optimizer)
    buffer.divide(buffer.terms)
    return finish(training, buffer)


def _count(optimizer: torch.optim.Optimizer) -> None:
    """One step more for every parameter of Adam's, with moments of zero where there are none yet."""
    for group in optimizer.param_groups:
        for p in group["params"] if "betas" in group else ():
            state = optimizer.state[p]
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32)
                state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(p), torch.zeros_like(p)
            state["step"] += 1
