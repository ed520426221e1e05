"""One optimizer step at given weights, seen from inside; the comparison's only way to a subject.

The step is the product's own: the subject's training session makes it, and what passes by is kept. Any subject that trains in
this process can be asked (lm, clip, python); a user's own ``step`` shows no gradient before clipping.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from accum_sweeps import subjects
from accum_sweeps.plan.errors import UserError
from accum_sweeps.plan.spec import RunSpec
from accum_sweeps.training import controls, optimizers
from accum_sweeps.training.loop import TrainingSession
from accum_sweeps.training.precision import Precision, loss_scaler
from accum_sweeps.training.step import update
from accum_sweeps.training.task import Rows, StepOutcome

Tensors = Mapping[str, Tensor]
OnOutputs = Callable[[Rows, list[Tensor]], None]


@dataclass(frozen=True, kw_only=True, eq=False)
class State:
    """What a step starts from: the model's state dict, the ``state`` of the optimizer's ({} = none yet), and the step's number."""

    model: Mapping[str, Tensor]
    optimizer: Mapping[Any, Any]
    step: int = 1


@dataclass(frozen=True, kw_only=True, eq=False)
class Observation:
    """What one optimizer step did, by the names of the trained parameters, in their dtype, on their device.

    ``loss`` is the mean over ``terms``, ``tokens`` the target tokens seen (0 for an update alone),
    ``lr`` the learning rate of the first parameter group. ``gradient`` is that of the mean
    loss; ``clipped`` is what the optimizer was given. A parameter that no loss depends on is missing in both. ``before`` and
    ``after`` are weights, ``buffers`` the model's buffers after the step.
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

    @property
    def loss_sum(self) -> float:
        """The loss summed over its terms."""
        return self.loss * self.terms


class Oracle:
    """The optimizer steps of ``spec`` from ``start``, one for each question; by default from the run's own initial weights.

    Raises UserError where the subject cannot be had as specified, or does not train in this process.
    """

    def __init__(self, spec: RunSpec, start: State | None = None) -> None:
        session = subjects.session(spec, Path(), 0)
        if not isinstance(session, TrainingSession):
            raise UserError(f"subject={spec.setup.subject.kind} keeps its weights and gradients to itself: there is no step to look into")
        self.spec, self._session = spec, session
        self._training = session.training
        self._names = {id(p): name for name, p in self._training.model.named_parameters() if p.requires_grad}
        self.start = start or self._own_start()

    @property
    def has_settings_optimizer(self) -> bool:
        """Whether the optimizer is the specification's, not one of the user's class."""
        return self._training.lr_factor is not None

    def observe(self, samples: Any = None, parts: Sequence[Rows] | None = None, on_outputs: OnOutputs | None = None) -> Observation:
        """One step on ``samples`` cut into ``parts``; by default the batch and the cut that the run itself would see.

        ``on_outputs(rows, tensors)`` gets what the network gave for each micro-batch, those of its tensors that have one entry
        for each row. It is never called for a subject whose loss does not call the network as such.
        """
        task, number = self._session.task, self.start.step
        parts = controls.partition(self.spec, number, task.rows(number)) if parts is None else parts
        micro_batches = task.split(task.batch(number) if samples is None else samples, parts)
        before = self._begin()
        handle = self._training.model.register_forward_hook(_Outputs(parts, on_outputs)) if on_outputs else None
        try:
            seen = self._kept(before, lambda: self._session.make_step(number, micro_batches))
            return dataclasses.replace(seen, tokens=task.tokens(micro_batches, seen.terms))
        finally:
            if handle is not None:
                handle.remove()

    def update(self, gradient: Tensors, loss: float, terms: float) -> Observation:
        """The step's second half, with a given gradient (cast to the parameters' dtype) in place of the run's own.

        A parameter without a gradient is not moved. No loss scale is applied.
        """
        training, setup = self._training, self.spec.setup
        before = self._begin()
        training.scaler = None
        if training.lr_factor is not None:
            optimizers.set_lr(training.optimizer, training.lr_factor(self.start.step))
        given = {name: gradient[name].to(p.dtype) for name, p in self._parameters() if name in gradient}
        for name, p in self._parameters():
            p.grad = given[name].clone() if name in given else None
        total = torch.tensor(loss * terms, dtype=torch.float64, device=setup.device)
        with Precision.named(setup.dtype, setup.device).arithmetic():
            return self._kept(before, lambda: update(training, total, terms), given)

    def _own_start(self) -> State:
        if self.spec.control == "ulp_weights":  # the session has moved its weights already
            return Oracle(dataclasses.replace(self.spec, control="none")).start
        return State(model=_copied(self._training.model.state_dict()), optimizer={})

    def _begin(self) -> Tensors:
        """Put weights and state back to the start; the weights there."""
        training, optimizer = self._training, self._training.optimizer
        training.model.load_state_dict(self.start.model)
        optimizer.load_state_dict({"state": dict(self.start.optimizer), "param_groups": optimizer.state_dict()["param_groups"]})
        training.scaler, training.position = loss_scaler(self.spec.setup), self.start.step - 1
        is_moved = controls.move_weights(self.spec, training)
        is_same = not is_moved and all(self.start.model[name].dtype == p.dtype for name, p in self._parameters())
        return {name: self.start.model[name] for name, _ in self._parameters()} if is_same else _copied(dict(self._parameters()))

    def _kept(self, before: Tensors, make: Callable[[], StepOutcome], gradient: Tensors | None = None) -> Observation:
        training = self._training
        seen: dict[str, Tensors] = {} if gradient is None else {"gradient": gradient}

        def keep(name: str) -> None:
            seen[name] = {n: p.grad.detach().clone() for n, p in self._parameters() if p.grad is not None}

        def before_update(*_: Any) -> None:
            is_changed = training.max_norm is not None or self.spec.control == "ulp_grads"
            if is_changed or "gradient" not in seen:
                keep("clipped")

        training.on_gradient = None if gradient is not None else lambda: keep("gradient")
        handle = training.optimizer.register_step_pre_hook(before_update)
        try:
            outcome = make()
        finally:
            training.on_gradient = None
            handle.remove()
        for p in training.parameters:
            p.grad = None
        whole = seen.get("gradient") or seen.get("clipped") or {}
        return Observation(
            loss=outcome.loss,
            terms=outcome.terms,
            lr=float(training.optimizer.param_groups[0]["lr"]),
            gradient=whole,
            clipped=seen.get("clipped", whole),
            before=before,
            after=_copied(dict(self._parameters())),
            buffers=_copied(dict(training.model.named_buffers())),
        )

    def _parameters(self) -> list[tuple[str, Tensor]]:
        return [(self._names[id(p)], p) for p in self._training.parameters]


class _Outputs:
    """A forward hook: hands the first output of each micro-batch on. Gradient caching embeds every micro-batch a second time."""

    def __init__(self, parts: Sequence[Rows], on_outputs: OnOutputs) -> None:
        self._parts, self._on_outputs, self._calls = parts, on_outputs, 0

    def __call__(self, module: torch.nn.Module, inputs: Any, output: Any) -> None:
        if self._calls < len(self._parts):
            rows = self._parts[self._calls]
            tensors = [t for t in _tensors(output) if t.ndim and len(t) == len(rows)]
            if tensors:
                self._on_outputs(rows, tensors)
        self._calls += 1


def _tensors(output: Any) -> list[Tensor]:
    if isinstance(output, Tensor):
        return [output.detach()] if output.is_floating_point() else []
    parts = output.values() if isinstance(output, Mapping) else output if isinstance(output, tuple | list) else ()
    return [tensor for part in parts for tensor in _tensors(part)]


def _copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}
