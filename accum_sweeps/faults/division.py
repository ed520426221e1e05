"""Faults of the division: means of means, a division that is missing, made twice, or by a wrong number.

In the closed forms g_i is the gradient of the loss summed over the n_i terms of micro-batch i = 1 ... k, and N = n_1 + ... + n_k;
the right gradient is r = (g_1 + ... + g_k) / N.
"""

from typing import Any

from accum_sweeps.faults.buffer import Buffer, finish
from accum_sweeps.faults.case import Case
from accum_sweeps.training.members import Member
from accum_sweeps.training.task import StepOutcome, Training


def mean_of_means(case: Case, training: Training, micro_batches: list[Any]) -> StepOutcome:
    """The loss function averages over its own micro-batch, and the loop averages the averages.

    A term of a short micro-batch weighs more than one of a long micro-batch. The most frequent one of all, found in nearly every
    trainer in 2024: transformers#34191, torchtune#1875, mlx-lm#1413. Gradient (1/k) sum g_i / n_i. Inert where all n_i are equal.
    """
    buffer, means = Buffer(training), []
    for member in case.members(training, micro_batches):
        buffer.add(member, divided_by=member.terms)
        means.append(member.mean)
    buffer.divide(len(micro_batches))
    return finish(training, buffer, loss=sum(means) / len(means))


def missing_division(case: Case, training: Training, micro_batches: list[Any]) -> StepOutcome:
    """The loop calls backward on each micro-batch's mean and forgets to divide by their number.

    nanoGPT#168, transformers#34263, #35438. Gradient k^s times the mean of the means, s the strength, 1 unless set: rho = k where all
    n_i are equal. Adam hides it but for its eps, clipping and coupled decay. The log is right. Inert at k = 1.
    """
    buffer, means = Buffer(training), []
    for member in case.members(training, micro_batches):
        buffer.add(member, divided_by=member.terms)
        means.append(member.mean)
    if case.strength < 1:
        buffer.divide(len(micro_batches) ** (1 - case.strength))
    return finish(training, buffer, loss=sum(means) / len(means))


def double_division(case: Case, training: Training, micro_batches: list[Any]) -> StepOutcome:
    """The loss is averaged over all terms of the step, and the loop divides by the number of micro-batches all the same.

    Two layers that each think it is their task: rf-detr#1503, trl#6024. Gradient r / k^s, s the strength, 1 unless set. Inert at k = 1.
    """
    buffer = Buffer(training)
    for member in case.members(training, micro_batches):
        buffer.add(member)
    buffer.divide(buffer.terms)
    buffer.divide(len(micro_batches) ** case.strength)
    return finish(training, buffer)


def wrong_divisor(case: Case, training: Training, micro_batches: list[Any]) -> StepOutcome:
    """The step's divisor is the number of all targets, padding included.

    OLMo#634, Megatron-LM#2417. Gradient r N / (N + s P) with P padded places, s the strength, 1 unless set. It is wrong by the same
    factor at every k, so that only an absolute reference shows it. Inert without padding.
    """
    buffer = Buffer(training)
    for member in case.members(training, micro_batches):
        buffer.add(member)
    places = sum(micro_batch.targets.numel() for micro_batch in micro_batches)
    counted = buffer.terms + case.strength * (places - buffer.terms)
    buffer.divide(counted)
    return finish(training, buffer, loss=buffer.loss / counted)


def wrong_divisor_terms(case: Case, training: Training, micro_batches: list[Any]) -> StepOutcome:
    """The step's divisor counts a term that is not there, such as a label that the shift by one has dropped.

    Megatron-LM#2417. Gradient r N / (N + s), s the strength, 1 unless set: below what a tolerance catches, at every k.
    """
    buffer = Buffer(training)
    for member in case.members(training, micro_batches):
        buffer.add(member)
    counted = buffer.terms + case.strength
    buffer.divide(counted)
    return finish(training, buffer, loss=buffer.loss / counted)


def mean_of(members: list[Member]) -> float:
    """The mean of the micro-batches' own mean losses."""
    return sum(member.mean for member in members) / len(members)
