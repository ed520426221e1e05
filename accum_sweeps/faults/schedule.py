"""Faults of the learning rate's schedule."""

from typing import Any

from accum_sweeps.faults.buffer import Buffer, finish
from accum_sweeps.faults.case import Case
from accum_sweeps.training import optimizers
from accum_sweeps.training.task import StepOutcome, Training


def schedule_per_micro_batch(case: Case, training: Training, micro_batches: list[Any]) -> StepOutcome:
    """``scheduler.step()`` stands behind every backward in place of every update, so that the schedule runs k times too fast.

    Lightning#1476, accelerate#963. All gradients are right; update t is made with the rate of step k (t - 1) + m for m micro-batches, that
    is of step k t in a full window. A cosine that is over comes up again. Inert at k = 1 and at a constant rate.
    """
    buffer = Buffer(training)
    for number, member in enumerate(case.members(training, micro_batches), 1):
        buffer.add(member)
        advance_schedule(case, training, number)
    buffer.divide(buffer.terms)
    return finish(training, buffer)


def advance_schedule(case: Case, training: Training, number: int) -> None:
    """Set the rate that follows ``number`` - 1 scheduler steps in this window, and k in each one before."""
    if training.lr_factor is not None:
        optimizers.set_lr(training.optimizer, training.lr_factor(training.position * case.accum + number))
