"""Each micro-batch's own gradient: by a pass over each one, or by gradient caching.

The correct step does without: it sums them where they arise. Faulty steps ask for them one after the other and go wrong with what
they do with them; the ladder asks which of them a step's gradient is made of.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from accum_sweeps.training.accumulate import drop_gradients
from accum_sweeps.training.task import Terms, Training

Gradient = list[Tensor | None]  # by parameter, in the order of training.parameters


@dataclass(frozen=True, kw_only=True, eq=False)
class Member:
    """One micro-batch of a step: its loss summed over its ``terms``, and that sum's gradient, times the loss scale if there is one."""

    loss: float
    terms: float
    gradient: Gradient

    @property
    def mean(self) -> float:
        """The micro-batch's own mean loss; not a number without terms."""
        return self.loss / self.terms if self.terms else math.nan


class Members(Protocol):
    """How a subject's micro-batches give their gradients."""

    def __call__(self, training: Training, micro_batches: list[Any]) -> Iterator[Member]:
        """One member for each micro-batch, in order; the gradients that the parameters hold before are dropped, and none are left."""
        ...


def plain(training: Training, micro_batches: list[Any]) -> Iterator[Member]:
    """Forward and backward for each micro-batch when its turn comes."""
    for micro_batch in micro_batches:
        drop_gradients(training.parameters)
        summed, terms = training.loss(micro_batch)
        training.backward(summed)
        yield Member(loss=_number(summed), terms=float(terms), gradient=taken(training))


def taken(training: Training) -> Gradient:
    """What the parameters hold as gradients, which they then hold no more."""
    gradient: Gradient = [p.grad for p in training.parameters]
    drop_gradients(training.parameters)
    return gradient


def _number(summed: Tensor) -> float:
    return float(summed.detach().double())


@dataclass(frozen=True, kw_only=True)
class Cached:
    """Gradient caching as in ``training.gradcache``, for encoders that draw no random numbers from torch's generators.

    The members' gradients add up to that of the loss of all embeddings together; parameters of the loss itself come with the first.
    """

    encode: Callable[[torch.nn.Module, Any], tuple[Tensor, ...]]
    contrast: Callable[..., tuple[Tensor, Terms]]
    autocast: Callable[[], AbstractContextManager[object]]

    def __call__(self, training: Training, micro_batches: list[Any]) -> Iterator[Member]:
        """One member for each micro-batch; ``loss`` and ``terms`` are its share of the whole by its number of samples."""
        return self.second_pass(training, micro_batches, micro_batches)

    def second_pass(self, training: Training, micro_batches: list[Any], again: list[Any]) -> Iterator[Member]:
        """The members where the first pass sees ``micro_batches`` and the second one ``again``, which should be the same."""
        drop_gradients(training.parameters)
        embedded = self._embedded(training, micro_batches)
        sizes = [len(parts[0]) for parts in embedded]
        columns = [torch.cat(column).requires_grad_() for column in zip(*embedded, strict=True)]
        with self.autocast():
            summed, terms = self.contrast(training.model, *columns)
        training.backward(summed)
        wanted = [torch.split(torch.zeros_like(c) if c.grad is None else c.grad, sizes) for c in columns]
        # What the loss's own parameters hold by now stays until the first member takes it.
        for place, (micro_batch, size) in enumerate(zip(again, sizes, strict=True)):
            with self.autocast():
                embeddings = self.encode(training.model, micro_batch)
            _send_back(embeddings, [column[place] for column in wanted])
            share = size / sum(sizes)
            yield Member(loss=_number(summed) * share, terms=float(terms) * share, gradient=taken(training))

    def _embedded(self, training: Training, micro_batches: Sequence[Any]) -> list[tuple[Tensor, ...]]:
        with torch.no_grad(), self.autocast():
            return [self.encode(training.model, micro_batch) for micro_batch in micro_batches]


def _send_back(embeddings: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
    pairs = [(e, g) for e, g in zip(embeddings, gradients, strict=True) if e.requires_grad]
    if pairs:
        torch.autograd.backward([e for e, _ in pairs], [g for _, g in pairs])
