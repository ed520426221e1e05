"""One optimizer step with correct accumulation."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from accum_sweeps.record.metrics import GRAD_NORM, LOSS_SCALE
from accum_sweeps.training.accumulate import accumulate
from accum_sweeps.training.task import StepOutcome, Terms, Training


def train_step(training: Training, micro_batches: list[Any]) -> StepOutcome:
    """Accumulate, clip once, update once. The update is left out where the loss is not finite.

    Raises ValueError for a step without a single term.
    """
    total, terms = accumulate(
        training.parameters,
        micro_batches,
        training.loss,
        dtype=training.accumulator,
        backward=training.backward,
        all_reduce=training.all_reduce,
    )
    return update(training, total, terms)


def update(training: Training, total: Tensor, terms: Terms) -> StepOutcome:
    """The second half of an optimizer step: the gradients are there, of the mean over ``terms`` of losses that sum to ``total``."""
    parameters, scaler = training.parameters, training.scaler
    if scaler is not None:
        scaler.unscale_(training.optimizer)
    if training.on_gradient is not None:
        training.on_gradient()
    norm = get_total_norm([p.grad for p in parameters if p.grad is not None])
    if training.max_norm is not None:
        clip_grads_with_norm_(parameters, training.max_norm, norm)
    # The only wait for the device in a step: all three numbers at once.
    numbers = [total, torch.as_tensor(terms, dtype=torch.float64, device=total.device), norm.to(total.device, torch.float64)]
    loss_sum, count, grad_norm = torch.stack(numbers).tolist()
    if count == 0:
        raise ValueError(f"the micro-batches of optimizer step {training.position + 1} hold no term to average over")
    loss = loss_sum / count
    values = {GRAD_NORM: grad_norm} if scaler is None else {GRAD_NORM: grad_norm, LOSS_SCALE: float(scaler.get_scale())}
    if math.isfinite(loss):
        _move(training)
    return StepOutcome(loss=loss, terms=count, values=values)


def _move(training: Training) -> None:
    """Update the weights, unless gradients overflowed under a loss scale, and their moving average."""
    if training.scaler is None:
        training.optimizer.step()
    else:
        training.scaler.step(training.optimizer)
        training.scaler.update()
    if training.average is not None:
        training.average.update_parameters(training.model)
