"""What the training loop asks of the thing that is trained, and what it hands to one optimizer step.

The built-in language model and a user's Python class are both a :class:`Task`; correct accumulation, a user's own step
and a fault built in on purpose are all a :class:`Step`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim.swa_utils import AveragedModel

Rows = NDArray[np.intp]
Terms = Tensor | float  # how many terms a loss was summed over


class Task(Protocol):
    """What is trained: model, samples, loss. Every method is a pure function of its arguments and the run's seeds."""

    def build(self) -> torch.nn.Module:
        """The network with its initial weights, drawn from the ``init`` stream; the loop casts and moves it."""
        ...

    def optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer | None:
        """The task's own optimizer; None = the one in the specification, with its schedule and clipping."""
        ...

    def batch(self, step: int) -> Any:
        """The samples of optimizer step ``step`` (counted from 1), all of the global batch; the same for every k."""
        ...

    def rows(self, step: int) -> int:
        """How many samples :meth:`batch` gives: the global batch, or fewer in the last window of an epoch."""
        ...

    def tokens(self, micro_batches: Sequence[Any], terms: float) -> float:
        """How many target tokens the micro-batches hold; ``terms`` is what their losses are averaged over."""
        ...

    def split(self, samples: Any, parts: Sequence[Rows]) -> list[Any]:
        """The micro-batches: for each of ``parts``, the samples with these row numbers, in this order."""
        ...

    def loss(self, model: torch.nn.Module, micro_batch: Any) -> tuple[Tensor, Terms]:
        """(sum of the loss over the terms of the micro-batch, number of terms); runs under the run's autocast."""
        ...

    def evaluate(self, model: torch.nn.Module) -> Mapping[str, float]:
        """Metrics on a fixed set, the same for every run; ``eval_loss`` among them. Runs without gradients, in eval mode."""
        ...

    def state(self) -> dict[str, Any]:
        """What the task itself must keep in a checkpoint, in types that ``torch.load(weights_only=True)`` reads; {} if nothing."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Take back what :meth:`state` gave."""
        ...


@dataclass(kw_only=True)
class Training:
    """What one optimizer step works on.

    ``loss(micro_batch)`` gives (sum, terms) under the run's autocast. ``accumulator`` is the dtype of the gradient buffer,
    None = the parameters' own. ``max_norm`` clips the whole gradient once; None = off. ``lr_factor(step)`` is the
    schedule, which the loop has already applied to the optimizer when a step is called; None = the learning rate is the task's own.
    ``scaler`` scales the loss where gradients would underflow; ``average`` is a moving average of the weights; ``all_reduce`` adds
    tensors up over ranks, in place. ``on_gradient`` is called when the whole gradient is there, before it is clipped. None = there is none.
    """

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[Any], tuple[Tensor, Terms]]
    accumulator: torch.dtype | None = None
    max_norm: float | None = None
    lr_factor: Callable[[int], float] | None = None
    scaler: torch.amp.GradScaler | None = None
    average: AveragedModel | None = None
    all_reduce: Callable[[Sequence[Tensor]], object] | None = None
    on_gradient: Callable[[], object] | None = None
    position: int = 0
    parameters: list[torch.nn.Parameter] = field(init=False)

    def __post_init__(self) -> None:
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]

    def backward(self, summed: Tensor) -> None:
        """Send a summed loss back through the graph, multiplied by the loss scale where there is one."""
        scaled = summed if self.scaler is None else self.scaler.scale(summed)
        scaled.backward()  # type: ignore[no-untyped-call]


@dataclass(frozen=True, kw_only=True, slots=True)
class StepOutcome:
    """What one optimizer step reports: ``loss`` is the mean over its ``terms``, before the update.

    ``values`` are further metrics by name. A loss that is not finite ends the run as diverged.
    """

    loss: float
    terms: float
    values: Mapping[str, float] = field(default_factory=dict)


class Step(Protocol):
    """One optimizer step: gradients of all micro-batches, then one update of the weights."""

    def __call__(self, training: Training, micro_batches: list[Any]) -> StepOutcome:
        """Update ``training.model`` with the gradient over all ``micro_batches``; no update where the loss is not finite."""
        ...
