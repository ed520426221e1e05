"""Faults of two data-parallel ranks.

g_ri is the gradient of the loss summed over the n_ri terms of micro-batch i on rank r; N = sum of all n_ri. The right gradient is
the sum of all g_ri over N.
"""

from typing import Any

import torch

from accum_sweeps.faults.buffer import Buffer, finish
from accum_sweeps.faults.case import Case
from accum_sweeps.training.task import StepOutcome, Training


def mean_of_means_over_ranks(case: Case, training: Training, micro_batches: list[Any]) -> StepOutcome:
    """Each rank averages over its own terms, and data parallelism averages the ranks.

    transformers#34242, torchtitan#2206. Gradient (1/R) sum over the R ranks of (sum_i g_ri) / N_r: right within a rank, at every k, and
    wrong between ranks, at k = 1 too. A rank without samples counts with zeros. Inert where all N_r are equal.
    """
    buffer, ranks = Buffer(training), case.spec.setup.ranks
    for member in case.members(training, micro_batches):
        buffer.add(member)
    own = buffer.terms or 1.0
    buffer.divide(own)
    mean, buffer.terms = summed_over_ranks(training, buffer, buffer.loss / own, buffer.terms)
    buffer.divide(ranks)
    return finish(training, buffer, loss=mean / ranks)


def wrong_sync(case: Case, training: Training, micro_batches: list[Any]) -> StepOutcome:
    """The running buffer is summed over the ranks after each micro-batch, not once at the end.

    FunASR#3472. What came before is on every rank already, and is summed again: gradient (sum_i R^(k - i) sum_r g_ri) / N with R ranks.
    Inert at k = 1.
    """
    buffer = Buffer(training)
    for member in case.members(training, micro_batches):
        buffer.add(member)
        summed_over_ranks(training, buffer)
    buffer.loss, buffer.terms = summed_over_ranks(training, None, buffer.loss, buffer.terms)
    buffer.divide(buffer.terms)
    return finish(training, buffer)


def summed_over_ranks(training: Training, buffer: Buffer | None, *numbers: float) -> list[float]:
    """Add the gradients of ``buffer`` up over the ranks, in place; the sums of ``numbers``.

    A gradient that only another rank has counts as zeros here; one that no rank has stays None. Without ranks nothing changes.
    """
    if training.all_reduce is None:
        return list(numbers)
    found = [] if buffer is None else [float(part is not None) for part in buffer.gradient]
    together = torch.tensor([*numbers, *found], dtype=torch.float64, device=training.parameters[0].device)
    training.all_reduce([together])
    if buffer is not None:
        for place, is_somewhere in enumerate(together[len(numbers) :].tolist()):
            if is_somewhere and buffer.gradient[place] is None:
                buffer.gradient[place] = torch.zeros_like(training.parameters[place], dtype=training.accumulator)
        training.all_reduce(buffer.tensors)
    return together[: len(numbers)].tolist()
