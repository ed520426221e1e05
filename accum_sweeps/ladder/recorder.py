"""Every update of the weights while somebody else's code trains them: what it began from, what it was given, what it made."""

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from accum_sweeps.ladder.observation import State, Tensors, copied, copied_state, flat_state
from accum_sweeps.ladder.updates import Scaled, watched
from accum_sweeps.plan.errors import UserError
from accum_sweeps.training.task import Training


class NotSeenError(UserError):
    """What a trainer does cannot be seen; the message says why, and what would help."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Update:
    """One update of the weights, begun from ``state`` after ``passes`` backward passes since the trainer was called.

    ``resolution`` is how well ``gradient`` is known, relative; NaN in ``lr``: the update is not by the given optimizer.
    """

    passes: int
    state: State
    lr: float
    gradient: Tensors
    before: Tensors
    after: Tensors
    buffers: Tensors
    optimizer: Tensors
    resolution: float = 0.0


class Recorder:
    """Records the updates of ``training``: those of the given optimizer, and where it makes none, every change of the weights.

    ``rate`` is that of a plain SGD of the trainer's own, None = it has none.
    """

    def __init__(self, training: Training, names: Mapping[int, str], scaled: Scaled, first: int, rate: float | None) -> None:
        self._training, self._names, self._scaled, self._first, self._rate = training, names, scaled, first, rate
        self._given: list[Update] = []
        self._others: list[Update] = []
        self._last: Tensors = self._weights()
        self._last_state = self._state()
        self._begun: tuple[int, State, float, Tensors, Tensors] | None = None

    @property
    def is_given(self) -> bool:
        """Whether the given optimizer made an update."""
        return bool(self._given)

    def updates(self) -> list[Update]:
        """All updates in their order. Raises NotSeenError where they are not the given optimizer's and nothing tells their gradients."""
        if self._given or not self._others:
            return self._given
        if self._rate is None:
            hint = "Let train use the optimizer that it is given; or, where its own is a plain SGD, say its rate: the attribute lr = 0.1."
            raise NotSeenError(
                f"train moves the weights, but not by the optimizer that it is given: gradients are not observable\n  {hint}"
            )
        return self._others

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Meanwhile updates are recorded."""
        handle = self._training.model.register_forward_pre_hook(lambda *_: self._look())
        try:
            with watched(self._training.optimizer, self._before, self._after):
                yield
            self._look()
        finally:
            handle.remove()

    def _before(self) -> None:
        self._scaled.restore()
        named = [(self._names[id(p)], p) for p in self._training.parameters]
        gradient = {name: p.grad.detach().to_dense().clone() for name, p in named if p.grad is not None}
        lr = float(self._training.optimizer.param_groups[0]["lr"])
        self._begun = self._scaled.passes, self._state(), lr, gradient, self._weights()

    def _after(self) -> None:
        assert self._begun is not None
        passes, state, lr, gradient, before = self._begun
        self._given.append(self._update(passes, state, lr, gradient, before))
        self._scaled.scale()
        self._last, self._last_state = self._given[-1].after, self._state()

    def _look(self) -> None:
        """Record an update if the weights are not those that were last seen."""
        weights = self._weights()
        if all(torch.equal(weights[name], self._last[name]) for name in weights):
            return
        if not self._given:
            gradient = {name: (self._last[name] - weights[name]) / (self._rate or 1.0) for name in weights}
            made = self._update(self._scaled.passes, self._last_state, math.nan, gradient, self._last)
            self._others.append(dataclasses.replace(made, resolution=_resolution(self._last, weights)))
        self._last, self._last_state = weights, self._state()

    def _update(self, passes: int, state: State, lr: float, gradient: Tensors, before: Tensors) -> Update:
        return Update(
            passes=passes,
            state=state,
            lr=lr,
            gradient=gradient,
            before=before,
            after=self._weights(),
            buffers=copied(dict(self._training.model.named_buffers())),
            optimizer=flat_state(self._training.optimizer, self._names),
        )

    def _weights(self) -> dict[str, Tensor]:
        return {self._names[id(p)]: p.detach().clone() for p in self._training.parameters}

    def _state(self) -> State:
        held = copied_state(self._training.optimizer.state_dict()["state"])
        return State(model=copied(self._training.model.state_dict()), optimizer=held, step=self._first)


def _resolution(before: Tensors, after: Tensors) -> float:
    """What the rounding of weights leaves unknown of the update between them, relative."""
    moved = math.sqrt(sum(float((after[name].double() - before[name].double()).square().sum()) for name in before))
    size = math.sqrt(sum(float((part.double() * torch.finfo(part.dtype).eps).square().sum()) for part in before.values()))
    return size / moved if moved else math.inf
