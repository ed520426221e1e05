"""Faults of clipping: within the loop over micro-batches in place of once after it.

g_i, n_i and N as in ``faults.division``; c is the limit, optimizer.max_norm; clip(x) = x min(1, c / |x|). With a loss scale the limit
is multiplied by it, as somebody does who unscales first.
"""

import dataclasses
from typing import Any

from accum_sweeps.faults.buffer import Buffer, clipped, finish, scale_of
from accum_sweeps.faults.case import Case
from accum_sweeps.training.task import StepOutcome, Training


def clip_per_micro_batch(case: Case, training: Training, micro_batches: list[Any]) -> StepOutcome:
    """``clip_grad_norm_`` stands inside the loop, after each backward, and sees the running buffer.

    transformers#986, lingua#59. The buffer is b_i = clip(b_(i-1) + g_i / N): early micro-batches are shortened again and again, so the
    order counts. With g = [2, 0], then [0, 2], N = 1 and c = 1 the result is [.447, .894], where [.707, .707] is right.
    Inert at k = 1, and where the running buffer is never longer than c.
    """
    members = list(case.members(training, micro_batches))
    terms, limit = sum(member.terms for member in members), _limit(training)
    buffer = Buffer(training)
    for number, member in enumerate(members, 1):
        buffer.add(member, divided_by=terms)
        if number < len(members):  # the clipping after the last one is that of the update
            buffer.clip(limit)
    return finish(training, buffer)


def clip_each_micro_batch(case: Case, training: Training, micro_batches: list[Any]) -> StepOutcome:
    """Each micro-batch's own mean gradient is clipped by itself, before it goes into the buffer.

    A micro-batch is noisier than the whole and so is clipped where the whole is not. Gradient sum (n_i / N) clip(g_i / n_i), in any
    order. Inert at k = 1, and where no micro-batch's own mean gradient is longer than c.
    """
    buffer, limit = Buffer(training), _limit(training)
    for member in case.members(training, micro_batches):
        # The mean is longer than the limit where the sum is longer than the limit times the number of terms.
        gradient = member.gradient if limit is None else clipped(member.gradient, limit * member.terms)
        buffer.add(dataclasses.replace(member, gradient=gradient))
    buffer.divide(buffer.terms)
    return finish(training, buffer)


def _limit(training: Training) -> float | None:
    return None if training.max_norm is None else training.max_norm * scale_of(training)
