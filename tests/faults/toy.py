"""A network small enough for closed forms: micro-batches with different numbers of rows, in float64, and what a step did to it."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from accum_sweeps.faults import Case, faulty_step
from accum_sweeps.plan.spec import RunSpec
from accum_sweeps.training.step import train_step
from accum_sweeps.training.task import Step, StepOutcome, Training
from tests.specs import make_spec

RAGGED, EQUAL = (1, 2, 5, 4), (3, 3, 3, 3)
ROUNDING = 1e-14  # sums of a dozen float64 terms in another order; every fault here is above 1e-3
MicroBatch = tuple[Tensor, Tensor]


def case(name: str, accum: int = len(RAGGED), strength: float | None = None, **settings: Any) -> Case:
    """The case of fault ``name``, whether or not a plan would allow it."""
    spec = dataclasses.replace(make_spec(), accum=accum)
    return Case(spec=changed(spec, fault=name, fault_strength=strength, **settings))


def changed(spec: RunSpec, **settings: Any) -> RunSpec:
    """``spec`` with settings of its setup that nobody checks."""
    return dataclasses.replace(spec, setup=dataclasses.replace(spec.setup, **settings))


def batches(sizes: Sequence[int], seed: int = 0) -> list[MicroBatch]:
    """Micro-batches with so many rows each; row by row the same for all ways to cut them."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(sum(sizes), 4, dtype=torch.float64, generator=generator)
    return [(part[:, :3], part[:, 3:]) for part in torch.split(rows, list(sizes))]


def network() -> torch.nn.Module:
    """Two layers with tanh between them, in float64, always at the same weights."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).double()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, dtype=torch.float64, generator=generator))
    return model


def squares(model: torch.nn.Module, micro_batch: MicroBatch) -> Tensor:
    """Summed squared errors; one term a row."""
    result: Tensor = ((model(micro_batch[0]) - micro_batch[1]) ** 2).sum()
    return result


def training(make: Callable[..., torch.optim.Optimizer] | None = None, **changes: Any) -> Training:
    """The network under plain SGD, or what ``make(parameters)`` gives."""
    model = network()
    optimizer = make(model.parameters()) if make else torch.optim.SGD(model.parameters(), lr=0.1)
    return Training(model=model, optimizer=optimizer, loss=lambda mb: (squares(model, mb), len(mb[0])), **changes)


def flat(tensors: Sequence[Tensor | None]) -> Tensor:
    """All entries in one row."""
    return torch.cat([tensor.detach().flatten().double() for tensor in tensors if tensor is not None])


def summed_gradients(micro_batches: list[MicroBatch]) -> list[Tensor]:
    """g_i: the gradient of each micro-batch's summed loss at the first weights, by plain autograd."""
    model = network()
    return [flat(torch.autograd.grad(squares(model, mb), list(model.parameters()))) for mb in micro_batches]


def right(micro_batches: list[MicroBatch]) -> Tensor:
    """The gradient of the mean over all terms, by plain autograd in one pass."""
    model = network()
    whole = torch.cat([x for x, _ in micro_batches]), torch.cat([y for _, y in micro_batches])
    return flat(torch.autograd.grad(squares(model, whole) / len(whole[0]), list(model.parameters())))


@dataclass
class Seen:
    """What a step did: gradients before and after clipping, weights before and after, what it reported."""

    before: Tensor
    gradients: list[Tensor] = field(default_factory=list)
    clipped: list[Tensor] = field(default_factory=list)
    outcome: StepOutcome = field(init=False)
    after: Tensor = field(init=False)

    @property
    def gradient(self) -> Tensor:
        [only] = self.gradients
        return only

    @property
    def update(self) -> Tensor:
        return self.after - self.before


def observed(state: Training, step: Step, micro_batches: list[Any]) -> Seen:
    """One call of ``step`` at ``state``, seen from inside."""
    seen = Seen(before=flat(state.parameters).clone())
    state.on_gradient = lambda: seen.gradients.append(flat([p.grad for p in state.parameters]))
    handle = state.optimizer.register_step_pre_hook(lambda *_: seen.clipped.append(flat([p.grad for p in state.parameters])))
    seen.outcome = step(state, micro_batches)
    handle.remove()
    state.on_gradient = None
    seen.after = flat(state.parameters).clone()
    return seen


def both(name: str, sizes: Sequence[int] = RAGGED, strength: float | None = None, **changes: Any) -> tuple[Seen, Seen]:
    """(the step with fault ``name``, the correct step) on the same micro-batches at the same weights."""
    micro_batches = batches(sizes)
    faulty = faulty_step(case(name, len(sizes), strength))
    return observed(training(**changes), faulty, micro_batches), observed(training(**changes), train_step, micro_batches)


def apart(found: Tensor, expected: Tensor) -> float:
    """Relative L2 distance."""
    return float((found - expected).norm() / expected.norm())
