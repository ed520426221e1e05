"""The gradient buffer of one optimizer step as a training loop holds it, and the way from it to the update."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

from accum_sweeps.training.accumulate import divide
from accum_sweeps.training.members import Gradient, Member
from accum_sweeps.training.step import update
from accum_sweeps.training.task import StepOutcome, Training

CLIP_EPS = 1e-6  # what torch's clipping adds to the norm


class Buffer:
    """Sums gradients in ``dtype``, None = the training's own choice, and counts what it was shown.

    ``loss`` is the sum of the losses and ``terms`` the number of terms of all micro-batches that the step has seen, lost ones included.
    """

    def __init__(self, training: Training, dtype: torch.dtype | None = None) -> None:
        self._dtype = dtype or training.accumulator
        self.gradient: Gradient = [None] * len(training.parameters)
        self.loss = self.terms = 0.0

    @property
    def mean(self) -> float:
        """The mean loss over all terms seen; not a number without terms."""
        return self.loss / self.terms if self.terms else math.nan

    def see(self, member: Member) -> None:
        """Count the member's loss and terms, whatever becomes of its gradient."""
        self.loss, self.terms = self.loss + member.loss, self.terms + member.terms

    def add(self, member: Member, *, divided_by: float = 1.0) -> None:
        """Add the member's gradient over ``divided_by``, and count it."""
        self.see(member)
        for place, part in enumerate(member.gradient):
            if part is None:
                continue
            share, held = part / divided_by, self.gradient[place]
            self.gradient[place] = share.to(self._dtype or share.dtype) if held is None else held.add_(share)

    def clear(self) -> None:
        """Drop the gradients, as ``zero_grad`` does."""
        self.gradient = [None] * len(self.gradient)

    @property
    def tensors(self) -> list[Tensor]:
        """The gradients that are there."""
        return [part for part in self.gradient if part is not None]

    def divide(self, divisor: float) -> None:
        """Divide all gradients."""
        divide(self.tensors, divisor)

    def multiply(self, factor: float) -> None:
        """Multiply all gradients."""
        for part in self.tensors:
            part.mul_(factor)

    def clip(self, max_norm: float | None) -> None:
        """Shorten the whole gradient to ``max_norm`` where it is longer; None = leave it."""
        if max_norm is not None:
            self.gradient = clipped(self.gradient, max_norm)

    def hand_over(self, training: Training) -> None:
        """Put the gradients where the optimizer looks for them."""
        for p, part in zip(training.parameters, self.gradient, strict=True):
            p.grad = None if part is None else part.to(p.dtype)


def clipped(gradient: Gradient, max_norm: float) -> Gradient:
    """``gradient``, scaled down to the L2 norm ``max_norm`` where it is longer."""
    present = [part for part in gradient if part is not None]
    factor = (max_norm / (get_total_norm(present) + CLIP_EPS)).clamp(max=1.0)
    return [None if part is None else part * factor.to(part.device, part.dtype) for part in gradient]


def scale_of(training: Training) -> float:
    """The factor on losses and gradients before they are unscaled; 1 without a loss scale."""
    return 1.0 if training.scaler is None else float(training.scaler.get_scale())


def finish(training: Training, buffer: Buffer, *, loss: float | None = None) -> StepOutcome:
    """Unscale, clip once, update once, with the gradients of ``buffer``; ``loss`` is logged in place of the mean over all terms.

    Raises ValueError for a step without a single term.
    """
    buffer.hand_over(training)
    total = buffer.loss if loss is None else loss * buffer.terms
    return update(training, torch.tensor(total, dtype=torch.float64, device=training.parameters[0].device), buffer.terms)


def kept(buffer: Buffer) -> dict[str, Any]:
    """``buffer`` for a checkpoint."""
    return {"gradient": buffer.gradient, "loss": buffer.loss, "terms": buffer.terms}


def restored(training: Training, state: dict[str, Any]) -> Buffer:
    """The buffer that :func:`kept` gave."""
    buffer = Buffer(training)
    buffer.gradient, buffer.loss, buffer.terms = list(state["gradient"]), state["loss"], state["terms"]
    return buffer
