"""Gradient caching: the gradient of a loss that couples all samples of a batch, in the memory of one micro-batch.

A contrastive loss needs the embeddings of the whole batch at once, but not what the encoder computed on its way to them (Gao, Zhang,
Han and Callan 2021, "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup"). By the chain rule an encoder
weight's gradient is the sum over micro-batches of (gradient of the loss by the micro-batch's embeddings) x (derivative of these
embeddings by the weight); the first factor takes the embeddings alone, the second one micro-batch at a time.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from accum_sweeps.training.accumulate import added, divide, drop_gradients

MicroBatch = TypeVar("MicroBatch")


def accumulate_cached(
    parameters: Sequence[Tensor],
    micro_batches: Sequence[MicroBatch],
    encode: Callable[[MicroBatch], tuple[Tensor, ...]],
    loss: Callable[..., tuple[Tensor, Tensor | float]],
    *,
    dtype: torch.dtype | None = None,
    backward: Callable[[Tensor], object] = Tensor.backward,
) -> tuple[Tensor, Tensor | float]:
    """Leave in every ``p.grad`` the gradient of the mean loss over all samples of all micro-batches together.

    ``encode(micro_batch)`` gives embeddings, each (samples, ...); micro-batches may differ in size. It is called twice, the second
    time with the same random numbers from torch's generators, and must give the same both times: it changes nothing, draws random
    numbers elsewhere only as functions of the micro-batch, and enters its autocast context itself. ``loss(*embeddings)`` gives (loss
    summed over the samples of all micro-batches, number of samples) from the embeddings in the order of ``micro_batches``; parameters
    that it uses itself, such as a temperature, get their gradient there, once.

    ``dtype``, ``backward``, what is returned and gradients from before: as in :func:`accumulate`.
    """
    drop_gradients(parameters)
    states, embedded = [], []
    with torch.no_grad():
        for micro_batch in micro_batches:
            states.append(_random_state())
            embedded.append(encode(micro_batch))
    sizes = [[len(part) for part in column] for column in zip(*embedded, strict=True)]
    columns = [torch.cat(column).requires_grad_() for column in zip(*embedded, strict=True)]
    del embedded
    summed, terms = loss(*columns)
    backward(summed)
    total, terms = summed.detach().double(), terms.double() if isinstance(terms, Tensor) else terms
    del summed
    gradients = list(zip(*(_split(column.grad, parts) for column, parts in zip(columns, sizes, strict=True)), strict=True))
    del columns
    buffers = _moved(parameters, [None] * len(parameters), dtype)
    for micro_batch, state, wanted in zip(micro_batches, states, gradients, strict=True):
        with _replayed(state):
            _send_back(encode(micro_batch), wanted)
        buffers = _moved(parameters, buffers, dtype)
    if dtype is None:
        buffers = [p.grad for p in parameters]
    divide([buffer for buffer in buffers if buffer is not None], terms)
    for p, buffer in zip(parameters, buffers, strict=True):
        p.grad = None if buffer is None else buffer.to(p.dtype)
    return total, terms


def _moved(parameters: Sequence[Tensor], buffers: list[Tensor | None], dtype: torch.dtype | None) -> list[Tensor | None]:
    """The gradients added to the buffers, where they are summed in a ``dtype`` of their own, and dropped; else everything as it is."""
    if dtype is None:
        return buffers
    buffers = [added(buffer, p.grad, dtype) for buffer, p in zip(buffers, parameters, strict=True)]
    drop_gradients(parameters)
    return buffers


def _split(gradient: Tensor | None, sizes: list[int]) -> Sequence[Tensor | None]:
    """The gradient of all embeddings of one kind, cut into micro-batches; Nones where the loss does not depend on them."""
    return [None] * len(sizes) if gradient is None else torch.split(gradient, sizes)


def _send_back(embeddings: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
    """Backward from the embeddings that depend on a trained weight."""
    pairs = [(e, g) for e, g in zip(embeddings, gradients, strict=True) if e.requires_grad and g is not None]
    if pairs:
        torch.autograd.backward([e for e, _ in pairs], [g for _, g in pairs])


RandomState = tuple[Tensor, list[Tensor]]


def _random_state() -> RandomState:
    """The state of torch's generators: the CPU's, and that of every GPU where one is in use."""
    return torch.get_rng_state(), torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def _replayed(state: RandomState) -> Iterator[None]:
    """Random numbers as from ``state``; afterwards the generators go on where they were."""
    before = _random_state()
    _set_random_state(state)
    try:
        yield
    finally:
        _set_random_state(before)


def _set_random_state(state: RandomState) -> None:
    torch.set_rng_state(state[0])
    if state[1]:
        torch.cuda.set_rng_state_all(state[1])
