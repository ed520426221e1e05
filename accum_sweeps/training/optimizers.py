"""torch's own optimizers from their specification, and the learning rate as a pure function of the optimizer step."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from accum_sweeps.plan.errors import UserError
from accum_sweeps.plan.parts import Adam, Muon, Optimizer, Sgd


def make(part: Optimizer, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer ``part`` over all parameters of ``model``, weight decay on all of them alike; frozen ones take no part.

    Raises UserError where Muon finds no hidden matrix.
    """
    if isinstance(part, Muon):
        return MuonWithAdamW(part, model)
    if isinstance(part, Sgd):
        momentum, nesterov, decay = part.momentum, part.nesterov, part.weight_decay
        return torch.optim.SGD(model.parameters(), lr=part.lr, momentum=momentum, nesterov=nesterov, weight_decay=decay)
    kind = torch.optim.Adam if isinstance(part, Adam) else torch.optim.AdamW
    return kind(model.parameters(), lr=part.lr, betas=part.betas, eps=part.eps, weight_decay=part.weight_decay)


class MuonWithAdamW(torch.optim.Optimizer):
    """torch.optim.Muon on the hidden matrices of a model, torch.optim.AdamW on its other parameters, as one optimizer.

    Groups and state are its own, so that learning rates, hooks, loss scalers and ``state_dict`` see one optimizer; the two of torch only
    compute. Group 0 is Muon's, group 1, if there is anything left to train, AdamW's.
    """

    def __init__(self, part: Muon, model: nn.Module) -> None:
        hidden = hidden_matrices(model)
        ids = {id(p) for p in hidden}
        others = [p for p in model.parameters() if p.requires_grad and id(p) not in ids]
        decay, nesterov = part.weight_decay, part.nesterov
        muon = torch.optim.Muon(hidden, lr=part.lr, weight_decay=decay, momentum=part.momentum, nesterov=nesterov, ns_steps=part.ns_steps)
        self._parts: list[torch.optim.Optimizer] = [muon]
        if others:
            self._parts.append(torch.optim.AdamW(others, lr=part.adamw_lr, betas=part.betas, eps=part.eps, weight_decay=decay))
        super().__init__([group for optimizer in self._parts for group in optimizer.param_groups], {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update all parameters by their gradients. Raises ValueError for a closure: nothing here evaluates a loss anew."""
        if closure is not None:
            raise ValueError("there is no step with a closure")
        for optimizer, group in zip(self._parts, self.param_groups, strict=True):
            # Handed over each time: load_state_dict puts new groups and a new state here.
            optimizer.param_groups, optimizer.state = [group], self.state
            optimizer.step()


def hidden_matrices(model: nn.Module) -> list[nn.Parameter]:
    """The trained weights of the hidden nn.Linear layers of ``model``, in the order of registration.

    Hidden are those inside repeated blocks: the items of an nn.ModuleList or nn.Sequential that are all of one class with layers of its
    own. Embeddings, projections and heads stand outside of them. A model without such blocks is taken as a chain of layers: there
    all but the first and the last nn.Linear are hidden. The weight of an nn.Embedding, as that of a tied head, never is.

    Raises UserError where there are none.
    """
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    inside = {id(layer) for block in _repeated_blocks(model) for layer in block.modules()}
    layers = [layer for layer in linear if id(layer) in inside] if inside else linear[1:-1]
    embedded = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    hidden = {id(layer.weight) for layer in layers} - embedded
    weights = [p for p in model.parameters() if id(p) in hidden and p.requires_grad]
    if not weights:
        raise UserError(
            f"optimizer=muon: {type(model).__name__} has no hidden matrix to train: no trained nn.Linear inside repeated blocks "
            "(items of one class in an nn.ModuleList or nn.Sequential) or, without blocks, between the first and the last nn.Linear"
            "\n  Take another optimizer, or give the class of subject=python a method optimizer."
        )
    return weights


def _repeated_blocks(model: nn.Module) -> Iterator[nn.Module]:
    for module in model.modules():
        if isinstance(module, nn.ModuleList | nn.Sequential):
            items = list(module)
            if len({type(item) for item in items}) == 1 and all(list(item.children()) for item in items):
                yield from items


def schedule(part: Optimizer, steps: int) -> Callable[[int], float]:
    """The factor on the learning rate at optimizer step 1, 2, ..., ``steps``.

    Linear from 1/warmup_steps to 1 over the warmup; then 1, or half a cosine wave that would reach 0 one step after the last.
    """

    def factor(step: int) -> float:
        if step <= part.warmup_steps:
            return step / part.warmup_steps
        if part.schedule == "constant":
            return 1.0
        done = (step - part.warmup_steps - 1) / (steps - part.warmup_steps)
        return 0.5 * (1.0 + math.cos(math.pi * done))

    return factor


def set_lr(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Give every parameter group ``factor`` times the learning rate that it started with."""
    for group in optimizer.param_groups:
        group["lr"] = group.setdefault("initial_lr", group["lr"]) * factor
