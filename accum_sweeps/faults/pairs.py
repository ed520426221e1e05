"""Two faults at once, each pair as the step that somebody would write who makes both mistakes.

Symbols as in ``faults.division``; what the two do by themselves is told where they stand alone.
"""

import dataclasses
from typing import Any

import torch

from accum_sweeps.faults.buffer import Buffer, finish, scale_of
from accum_sweeps.faults.case import Case
from accum_sweeps.faults.division import mean_of
from accum_sweeps.faults.schedule import advance_schedule
from accum_sweeps.faults.state import decay_times
from accum_sweeps.training.task import StepOutcome, Training


def missing_division_clip_per_micro_batch(case: Case, training: Training, micro_batches: list[Any]) -> StepOutcome:
    """b_i = clip(b_(i-1) + g_i / n_i): the sum of means, clipped within the loop."""
    return _clipped_in_the_loop(case, training, micro_batches, 1)


def mean_of_means_clip_per_micro_batch(case: Case, training: Training, micro_batches: list[Any]) -> StepOutcome:
    """b_i = clip(b_(i-1) + g_i / n_i / k): ``(loss / k).backward()`` and ``clip_grad_norm_`` side by side in the loop."""
    return _clipped_in_the_loop(case, training, micro_batches, len(micro_batches))


def _clipped_in_the_loop(case: Case, training: Training, micro_batches: list[Any], divisor: int) -> StepOutcome:
    buffer, members = Buffer(training), []
    for member in case.members(training, micro_batches):
        buffer.add(member, divided_by=member.terms * divisor)
        members.append(dataclasses.replace(member, gradient=[]))
        if training.max_norm is not None and len(members) < len(micro_batches):
            buffer.clip(training.max_norm * scale_of(training))
    return finish(training, buffer, loss=mean_of(members))


def missing_division_schedule_per_micro_batch(case: Case, training: Training, micro_batches: list[Any]) -> StepOutcome:
    """sum g_i / n_i, at a rate whose schedule runs k times too fast."""
    return _scheduled_in_the_loop(case, training, micro_batches, 1)


def mean_of_means_schedule_per_micro_batch(case: Case, training: Training, micro_batches: list[Any]) -> StepOutcome:
    """(1/k) sum g_i / n_i, at a rate whose schedule runs k times too fast."""
    return _scheduled_in_the_loop(case, training, micro_batches, len(micro_batches))


def _scheduled_in_the_loop(case: Case, training: Training, micro_batches: list[Any], divisor: int) -> StepOutcome:
    buffer, members = Buffer(training), []
    for member in case.members(training, micro_batches):
        buffer.add(member, divided_by=member.terms * divisor)
        members.append(dataclasses.replace(member, gradient=[]))
        advance_schedule(case, training, len(members))
    return finish(training, buffer, loss=mean_of(members))


def missing_division_reporting(case: Case, training: Training, micro_batches: list[Any]) -> StepOutcome:
    """sum g_i / n_i; logged is the last micro-batch's loss."""
    return _last_logged(case, training, micro_batches, 1)


def mean_of_means_reporting(case: Case, training: Training, micro_batches: list[Any]) -> StepOutcome:
    """(1/k) sum g_i / n_i; logged is the last micro-batch's loss."""
    return _last_logged(case, training, micro_batches, len(micro_batches))


def _last_logged(case: Case, training: Training, micro_batches: list[Any], divisor: int) -> StepOutcome:
    buffer, last = Buffer(training), 0.0
    for member in case.members(training, micro_batches):
        buffer.add(member, divided_by=member.terms * divisor)
        last = member.mean
    return dataclasses.replace(finish(training, buffer), loss=last)


def mean_of_means_short_window(case: Case, training: Training, micro_batches: list[Any]) -> StepOutcome:
    """(1/k) sum g_i / n_i with the k of the settings: ``(loss / k).backward()`` in every window, as most trainers once had it."""
    buffer, means = Buffer(training), 0.0
    for member in case.members(training, micro_batches):
        buffer.add(member, divided_by=member.terms * case.accum)
        means += member.mean
    return finish(training, buffer, loss=means / case.accum)


def double_division_state_per_micro_batch(case: Case, training: Training, micro_batches: list[Any]) -> StepOutcome:
    """r / k, and k times the weight decay."""
    buffer = Buffer(training)
    for member in case.members(training, micro_batches):
        buffer.add(member)
    buffer.divide(buffer.terms)
    buffer.divide(len(micro_batches))
    with decay_times(training, len(micro_batches)):
        return finish(training, buffer)


def lost_micro_batches_reporting(case: Case, training: Training, micro_batches: list[Any]) -> StepOutcome:
    """g_k / N; logged is the last micro-batch's loss: all of the others is gone."""
    buffer, last = Buffer(training), 0.0
    for member in case.members(training, micro_batches):
        buffer.clear()
        buffer.add(member)
        last = member.mean
    buffer.divide(buffer.terms)
    return dataclasses.replace(finish(training, buffer), loss=last)


def accumulator_dtype_wrong_divisor_terms(case: Case, training: Training, micro_batches: list[Any]) -> StepOutcome:
    """r N / (N + 1), summed and divided in bfloat16."""
    buffer = Buffer(training, torch.bfloat16)
    for member in case.members(training, micro_batches):
        buffer.add(member)
    counted = buffer.terms + 1
    buffer.divide(counted)
    return finish(training, buffer, loss=buffer.loss / counted)
