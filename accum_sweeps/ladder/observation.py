"""What is seen of an optimizer step, and what it starts from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True, eq=False)
class State:
    """What a step starts from: the model's state dict, the ``state`` of the optimizer's ({} = none yet), and the step's number.

    ``average`` is the state dict of the weights' moving average, {} = it begins with this step, or there is none.
    """

    model: Mapping[str, Tensor]
    optimizer: Mapping[Any, Any]
    average: Mapping[str, Tensor] = field(default_factory=dict)
    step: int = 1


@dataclass(frozen=True, kw_only=True, eq=False)
class Observation:
    """What one optimizer step did, by the names of the trained parameters, in their dtype, on their device.

    ``loss`` is the mean over ``terms``, ``tokens`` the target tokens seen (0 for an update alone),
    ``lr`` the learning rate of the first parameter group. ``gradient`` is that of the mean
    loss; ``clipped`` is what the optimizer was given. A parameter that no loss depends on is missing in both. ``before`` and
    ``after`` are weights, ``buffers`` the model's buffers after the step, ``average`` the moving average of the weights, and
    ``optimizer`` the optimizer's state, "parameter.name" -> tensor. ``updates`` counts the optimizer's own steps. ``logged`` are the
    step's further metrics. ``resolution`` is how well the gradient is known, relative: more than 0 where it was recovered from weights.
    What cannot be seen is NaN, or empty.
    """

    loss: float
    terms: float
    lr: float
    gradient: Tensors
    clipped: Tensors
    before: Tensors
    after: Tensors
    buffers: Tensors
    tokens: float = 0.0
    average: Tensors = field(default_factory=dict)
    optimizer: Tensors = field(default_factory=dict)
    updates: int = 1
    logged: Mapping[str, float] = field(default_factory=dict)
    resolution: float = 0.0

    @property
    def loss_sum(self) -> float:
        """The loss summed over its terms."""
        return self.loss * self.terms


@dataclass(frozen=True, kw_only=True, eq=False)
class Member:
    """One micro-batch by itself: its loss summed over its ``terms``, and the gradient of that sum, without a loss scale."""

    loss: float
    terms: float
    gradient: Tensors


def copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors, on their own."""
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def copied_state(state: Mapping[Any, Any]) -> dict[Any, Any]:
    """An optimizer's state, on its own."""
    return {
        key: {name: value.detach().clone() if isinstance(value, Tensor) else value for name, value in held.items()}
        for key, held in state.items()
    }


def flat_state(optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> dict[str, Tensor]:
    """An optimizer's state as tensors; ``names`` are those of its parameters by their ``id``."""
    found = {}
    for parameter, held in optimizer.state.items():
        for name, value in held.items():
            if isinstance(value, Tensor | int | float):
                found[f"{names[id(parameter)]}.{name}"] = torch.as_tensor(value).detach().clone()
    return found
