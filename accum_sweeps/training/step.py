"""One optimizer step with correct accumulation."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from accum_sweeps.record.metrics import GRAD_NORM, LOSS_SCALE
from accum_sweeps.training.accumulate import accumulate
from accum_sweeps.training.gradcache import accumulate_cached
from accum_sweeps.training.task import Step, StepOutcome, Terms, Training


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


def cached_step(
    encode: Callable[[Module, Any], tuple[Tensor, ...]],
    contrast: Callable[..., tuple[Tensor, Terms]],
    autocast: Callable[[], AbstractContextManager[object]],
) -> Step:
    """The step with gradient caching: ``contrast(model, *embeddings)`` is the loss of all micro-batches' embeddings together.

    ``encode(model, micro_batch)`` gives a micro-batch's; both run under ``autocast()``, as two contexts.
    """

    def step(training: Training, micro_batches: list[Any]) -> StepOutcome:
        def encoded(micro_batch: Any) -> tuple[Tensor, ...]:
            with autocast():
                return encode(training.model, micro_batch)

        def loss(*embeddings: Tensor) -> tuple[Tensor, Terms]:
            with autocast():
                return contrast(training.model, *embeddings)

        total, terms = accumulate_cached(
            training.parameters, micro_batches, encoded, loss, dtype=training.accumulator, backward=training.backward
        )
        return update(training, total, terms)

    return step


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
        _move(training, is_overflow=scaler is not None and not math.isfinite(grad_norm))
    return StepOutcome(loss=loss, terms=count, values=values)


def _move(training: Training, *, is_overflow: bool) -> None:
    """Update the weights and their moving average; neither where gradients overflowed under the loss scale, which is then halved."""
    if training.scaler is None:
        training.optimizer.step()
    else:
        training.scaler.step(training.optimizer)
        training.scaler.update()
    if training.average is not None and not is_overflow:
        training.average.update_parameters(training.model)
