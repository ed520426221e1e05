"""Gradient accumulation: k micro-batches give the gradient that one batch k times as large would give.

The gradient of a mean over N terms is the sum of the micro-batches' summed gradients, divided once by the N of the whole
step. Dividing each micro-batch by its own count and averaging is another quantity wherever the counts differ.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

MicroBatch = TypeVar("MicroBatch")


def accumulate(
    parameters: Sequence[Tensor],
    micro_batches: Iterable[MicroBatch],
    loss: Callable[[MicroBatch], tuple[Tensor, Tensor | float]],
    *,
    dtype: torch.dtype | None = None,
    backward: Callable[[Tensor], object] = Tensor.backward,
    all_reduce: Callable[[Sequence[Tensor]], object] | None = None,
) -> tuple[Tensor, Tensor | float]:
    """Leave in every ``p.grad`` the gradient of (sum of all losses) / (number of all terms).

    ``loss(micro_batch)`` gives (loss summed over the micro-batch's terms, number of its terms). ``dtype`` is that of the
    buffer in which gradients are summed and divided; None sums in ``p.grad`` itself. Gradients that ``parameters`` hold
    before are dropped. A parameter that no loss depends on keeps ``grad = None``.

    ``backward`` sends a summed loss back; a loss scaler puts its factor in there. ``all_reduce`` adds tensors up over data-parallel
    ranks, in place; it is called twice per optimizer step, and a rank may be without micro-batches.

    Returns (sum of losses as a float64 scalar, number of terms); nothing here waits for the device, unless there are ranks.
    """
    buffers: list[Tensor | None] = [None] * len(parameters)
    losses: list[Tensor] = []
    terms: Tensor | float = 0
    drop_gradients(parameters)
    for micro_batch in micro_batches:
        summed, count = loss(micro_batch)
        backward(summed)
        losses.append(summed.detach().double())
        terms = terms + (count.double() if isinstance(count, Tensor) else count)  # a count in bf16 would lose terms: 512 + 1 = 512
        if dtype is not None:
            buffers = [added(buffer, p.grad, dtype) for buffer, p in zip(buffers, parameters, strict=True)]
            drop_gradients(parameters)
    if dtype is None:
        buffers = [p.grad for p in parameters]
    total = torch.stack(losses).sum() if losses else torch.zeros((), dtype=torch.float64)
    if all_reduce is not None:
        total, terms = _over_ranks(parameters, buffers, total, terms, dtype, all_reduce)
    divide([buffer for buffer in buffers if buffer is not None], terms)
    for p, buffer in zip(parameters, buffers, strict=True):
        p.grad = None if buffer is None else buffer.to(p.dtype)
    return total, terms


def _over_ranks(
    parameters: Sequence[Tensor],
    buffers: list[Tensor | None],
    total: Tensor,
    terms: Tensor | float,
    dtype: torch.dtype | None,
    all_reduce: Callable[[Sequence[Tensor]], object],
) -> tuple[Tensor, Tensor]:
    """Add ``buffers``, in place, and (sum of losses, number of terms) up over ranks.

    A gradient that only another rank has counts as zeros here; one that no rank has stays None, as in a single process.
    """
    device = parameters[0].device
    found = torch.tensor([buffer is not None for buffer in buffers], dtype=torch.float64, device=device)
    numbers = torch.cat([total.to(device)[None], torch.as_tensor(terms, dtype=torch.float64, device=device)[None], found])
    all_reduce([numbers])
    for place, is_somewhere in enumerate(numbers[2:].tolist()):
        if is_somewhere and buffers[place] is None:
            buffers[place] = torch.zeros_like(parameters[place], dtype=dtype)
    all_reduce([buffer for buffer in buffers if buffer is not None])
    return numbers[0], numbers[1]


def drop_gradients(parameters: Sequence[Tensor]) -> None:
    """Set every ``p.grad`` to None."""
    for p in parameters:
        p.grad = None


def added(buffer: Tensor | None, gradient: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """``buffer + gradient``, rounded once to ``dtype``."""
    if gradient is None or buffer is None:
        return buffer if gradient is None else gradient.to(dtype)
    return buffer.add_(gradient)


def divide(gradients: list[Tensor], terms: Tensor | float) -> None:
    """Divide in place; a zero-dimensional divisor leaves the gradients' dtype as it is."""
    if isinstance(terms, Tensor) and terms.is_cuda:
        # There the divisor is rounded to the dividend's dtype: in float16 65,520 terms would be infinitely many.
        for gradient in gradients:
            gradient.copy_(gradient.to(torch.promote_types(gradient.dtype, torch.float32)) / terms)
    elif gradients:
        torch._foreach_div_(gradients, terms)
