"""Faults by which micro-batches are lost on their way into the buffer, or weigh more than others.

g_i, n_i and N as in ``faults.division``; the divisor is N, of all micro-batches.
"""

from typing import Any

from accum_sweeps.faults.buffer import Buffer, finish
from accum_sweeps.faults.case import Case
from accum_sweeps.training.task import StepOutcome, Training


def lost_micro_batches(case: Case, training: Training, micro_batches: list[Any]) -> StepOutcome:
    """``zero_grad`` stands inside the loop, before each backward, so that only the last micro-batch counts.

    open-instruct#1498, accelerate#1299. Gradient g_k / N. With a strength s < 1 it acts up to micro-batch s k alone and the later ones
    are kept: gradient (sum over i > s k of g_i) / N. Inert at k = 1.
    """
    lost = lost_of(case, len(micro_batches))
    buffer = Buffer(training)
    for number, member in enumerate(case.members(training, micro_batches), 1):
        buffer.add(member)
        if number <= lost:
            buffer.clear()
    buffer.divide(buffer.terms)
    return finish(training, buffer)


def lost_of(case: Case, micro_batches: int) -> int:
    """How many of a window's ``micro_batches`` are lost: the strength's share of them, at least one, but never the last."""
    return min(micro_batches - 1, max(1, round(case.strength_or(1.0) * micro_batches)))


def lost_micro_batches_first(case: Case, training: Training, micro_batches: list[Any]) -> StepOutcome:
    """The buffer of the second micro-batch is assigned, not added: a first one that was a special case is overwritten.

    Primus#1046. Gradient (g_2 + ... + g_k) / N. Inert at k = 1.
    """
    buffer = Buffer(training)
    for number, member in enumerate(case.members(training, micro_batches), 1):
        if number == 2:
            buffer.clear()
        buffer.add(member)
    buffer.divide(buffer.terms)
    return finish(training, buffer)


def lost_micro_batches_gated(case: Case, training: Training, micro_batches: list[Any]) -> StepOutcome:
    """A flag that should say whether to synchronize says whether to add, and is false for every second micro-batch.

    torchtitan#3575. Gradient (g_1 + g_3 + ...) / N. Inert at k = 1.
    """
    buffer = Buffer(training)
    for number, member in enumerate(case.members(training, micro_batches), 1):
        if number % 2:
            buffer.add(member)
        else:
            buffer.see(member)
    buffer.divide(buffer.terms)
    return finish(training, buffer)


def reweighted_buffer(case: Case, training: Training, micro_batches: list[Any]) -> StepOutcome:
    """The scaling that belongs to the new gradient, or to the end, is applied to the whole running buffer at each add.

    Megatron-LM#6660 (a buffer that doubles). Gradient (sum of s^(k - i) g_i) / N, s the strength, 1/2 unless set. Inert at k = 1.
    """
    buffer = Buffer(training)
    for member in case.members(training, micro_batches):
        buffer.multiply(case.strength)
        buffer.add(member)
    buffer.divide(buffer.terms)
    return finish(training, buffer)
