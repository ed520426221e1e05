"""One optimizer step with correct accumulation."""

import math
from typing import Any

import torch
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from accum_sweeps.record.metrics import GRAD_NORM
from accum_sweeps.training.accumulate import accumulate
from accum_sweeps.training.task import StepOutcome, Training


def train_step(training: Training, micro_batches: list[Any]) -> StepOutcome:
    """Accumulate, clip once, update once. The update is left out where the loss is not finite.

    Raises ValueError for a step without a single term.
    """
    parameters = training.parameters
    total, terms = accumulate(parameters, micro_batches, training.loss, dtype=training.accumulator)
    norm = get_total_norm([p.grad for p in parameters if p.grad is not None])
    if training.max_norm is not None:
        clip_grads_with_norm_(parameters, training.max_norm, norm)
    # The only wait for the device in a step: all three numbers at once.
    numbers = [total, torch.as_tensor(terms, dtype=torch.float64, device=total.device), norm.to(total.device, torch.float64)]
    loss_sum, count, grad_norm = torch.stack(numbers).tolist()
    if count == 0:
        raise ValueError(f"the {len(micro_batches)} micro-batches of optimizer step {training.position + 1} hold no term to average over")
    loss = loss_sum / count
    if math.isfinite(loss):
        training.optimizer.step()
    return StepOutcome(loss=loss, terms=count, values={GRAD_NORM: grad_norm})
