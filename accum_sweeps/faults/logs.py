"""Faults of what is logged, and of resuming. All gradients of a run that is not resumed are right.

g_i and N as in ``faults.division``.
"""

import dataclasses
from typing import Any

from accum_sweeps.faults.buffer import Buffer, finish
from accum_sweeps.faults.case import Case
from accum_sweeps.training.task import StepOutcome, Training


def reporting(case: Case, training: Training, micro_batches: list[Any]) -> StepOutcome:
    """``loss.item()`` after the loop is the loss of the last micro-batch.

    DeepSpeed#1107, nanochat#52. Weights are right, the log is noisier than it should be. Inert at k = 1.
    """
    buffer, last = Buffer(training), 0.0
    for member in case.members(training, micro_batches):
        buffer.add(member)
        last = member.mean
    buffer.divide(buffer.terms)
    return dataclasses.replace(finish(training, buffer), loss=last)


def reporting_scaled(case: Case, training: Training, micro_batches: list[Any]) -> StepOutcome:
    """The loss is logged after it was divided by k for the backward pass, or with another factor s, the strength.

    Weights are right. Logged is the loss over k, or times s. Inert at k = 1 without a strength.
    """
    buffer = Buffer(training)
    for member in case.members(training, micro_batches):
        buffer.add(member)
    buffer.divide(buffer.terms)
    outcome = finish(training, buffer)
    return dataclasses.replace(outcome, loss=outcome.loss * case.strength_or(1 / len(micro_batches)))


class ResumeInsideWindow:
    """A checkpoint is written between two micro-batches of a window; after the restart the data goes on, the partial gradients are gone.

    transformers#22143. The first update after a resume is (sum over i > s k of g_i) / N, s the strength, 1/2 unless set; all others are
    right. Inert in a run that is not resumed, and at k = 1.
    """

    def __init__(self, case: Case) -> None:
        self._case = case
        self._is_resumed = False

    def resume(self) -> None:
        """The run was continued from a checkpoint."""
        self._is_resumed = True

    def __call__(self, training: Training, micro_batches: list[Any]) -> StepOutcome:
        """One optimizer step, whole unless it is the first after a resume."""
        before = self._before(len(micro_batches)) if self._is_resumed else 0
        self._is_resumed = False
        buffer = Buffer(training)
        for number, member in enumerate(self._case.members(training, micro_batches), 1):
            if number <= before:
                buffer.see(member)
            else:
                buffer.add(member)
        buffer.divide(buffer.terms)
        return finish(training, buffer)

    def _before(self, micro_batches: int) -> int:
        """How many were seen before the restart: the strength's share, at least one, but never the last."""
        return min(micro_batches - 1, max(1, round(self._case.strength * micro_batches)))
