"""Faults of low precision: the dtype of the gradient buffer, and the loss scale.

g_i, N and r as in ``faults.division``; S is the loss scale, which multiplies every g_i until it is taken out.
"""

import dataclasses
from typing import Any

import torch

from accum_sweeps.faults.buffer import Buffer, finish, scale_of
from accum_sweeps.faults.case import Case
from accum_sweeps.training.task import StepOutcome, Training


def accumulator_dtype(case: Case, training: Training, micro_batches: list[Any]) -> StepOutcome:
    """The gradient buffer is bfloat16, whatever the settings say: each add rounds to eight bits, 256 + 1 = 256.

    DeepSpeed#1800, pytorch#194628. The relative error grows with k, about as k^0.4 from 2^-9 on. Inert where all partial sums have
    eight significant bits.
    """
    buffer = Buffer(training, torch.bfloat16)
    for member in case.members(training, micro_batches):
        buffer.add(member)
    buffer.divide(buffer.terms)
    return finish(training, buffer)


def loss_scaling(case: Case, training: Training, micro_batches: list[Any]) -> StepOutcome:
    """The running buffer is unscaled after each micro-batch, and with it, again, what was unscaled before.

    Lightning#9694. Gradient (sum of S^-(k - i) g_i) / N: with a usual scale little more than the last micro-batch. Inert at k = 1 and
    S = 1.
    """
    buffer, scale = Buffer(training), scale_of(training)
    for number, member in enumerate(case.members(training, micro_batches), 1):
        buffer.add(member)
        if number < len(micro_batches):  # the unscaling after the last one is that of the update
            buffer.divide(scale)
    buffer.divide(buffer.terms)
    return finish(training, buffer)


def loss_scaling_clip(case: Case, training: Training, micro_batches: list[Any]) -> StepOutcome:
    """``clip_grad_norm_`` is called without ``scaler.unscale_`` before it, and clips gradients that are S times as long.

    Lightning#4427, #9694. The limit is max_norm / S in effect, at k = 1 too. Inert at S = 1, and with a huge max_norm.
    """
    buffer = Buffer(training)
    for member in case.members(training, micro_batches):
        buffer.add(member)
    buffer.divide(buffer.terms)
    buffer.clip(training.max_norm)
    return finish(dataclasses.replace(training, max_norm=None), buffer)


def loss_scaling_overflow(case: Case, training: Training, micro_batches: list[Any]) -> StepOutcome:
    """``nan_to_num`` after each backward sets what is not finite to 0, so that the scaler sees no overflow and the update is made.

    espnet#3283. An entry that overflowed in one micro-batch lacks that one, the divisor stays N, the scale never falls. Inert while all
    gradients are finite.
    """
    buffer = Buffer(training)
    for member in case.members(training, micro_batches):
        finite = [None if part is None else part.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0) for part in member.gradient]
        buffer.add(dataclasses.replace(member, gradient=finite))
    buffer.divide(buffer.terms)
    return finish(training, buffer)
