"""One optimizer step at given weights, seen from inside; the comparison's only way to a subject.

The step is the product's own: the subject's training session makes it, and what passes by is kept. Any subject that trains in
this process can be asked (lm, clip, python). What a user's own ``step`` does to the gradient's length is undone where the settings ask
for no limit.
"""

import contextlib
import dataclasses
import itertools
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from accum_sweeps import subjects
from accum_sweeps.ladder.observation import Member, Observation, State, Tensors, copied, copied_state, flat_state
from accum_sweeps.ladder.two_ranks import RankPair
from accum_sweeps.ladder.updates import SHRINK, Scaled, watched
from accum_sweeps.plan.errors import UserError
from accum_sweeps.plan.spec import RunSpec
from accum_sweeps.subjects import Session
from accum_sweeps.subjects.python_hook import HookTask
from accum_sweeps.training import controls, optimizers, seeding
from accum_sweeps.training.loop import TrainingSession
from accum_sweeps.training.precision import Precision, loss_scaler
from accum_sweeps.training.step import update
from accum_sweeps.training.task import Rows, StepOutcome

OnOutputs = Callable[[Rows, list[Tensor]], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tampering:
    """What an experiment does to the network beside the settings: each by default nothing.

    ``keeps_statistics``: BatchNorm normalizes by its running statistics. ``keeps_all``: no module drops anything. ``spoils``: number of the
    backward pass, counted from 0, that brings a parameter an infinite gradient. ``own_scale``: how many times longer gradients are until a
    step of the user's own makes its update, where the settings have no limit on their length: so short that the step's own is not reached.
    """

    keeps_statistics: bool = False
    keeps_all: bool = False
    spoils: int | None = None
    own_scale: float = SHRINK


UNTOUCHED = Tampering()


class Sessions(Protocol):
    """How the trainings that are asked are made."""

    def __call__(self, spec: RunSpec, is_correct: bool) -> Session:
        """The training of ``spec``; with ``is_correct`` by the product's own accumulation. Raises UserError where it cannot be had."""
        ...


def own_sessions(spec: RunSpec, is_correct: bool) -> Session:
    """By the subject that ``spec`` names."""
    return subjects.correct_session(spec) if is_correct else subjects.session(spec, Path(), 0)


class Oracle:
    """The optimizer steps of ``spec`` from ``start``, one for each question; by default from the run's own initial weights.

    With ``is_correct`` the same training by the product's own accumulation: without the fault, or the user's own step, that ``spec``
    names. Raises UserError where the subject cannot be had as specified, or does not train in this process.
    """

    def __init__(
        self,
        spec: RunSpec,
        start: State | None = None,
        *,
        is_correct: bool = False,
        tampering: Tampering = UNTOUCHED,
        sessions: Sessions = own_sessions,
    ) -> None:
        self.spec, self._is_correct, self._tampering, self._sessions = spec, is_correct, tampering, sessions
        self._adopt(self._session_of())
        self.start = start or self._own_start()

    def _session_of(self) -> TrainingSession:
        made = self._sessions(self.spec, self._is_correct)
        if not isinstance(made, TrainingSession):
            raise UserError(
                f"subject={self.spec.setup.subject.kind} keeps its weights and gradients to itself: there is no step to look into"
            )
        return made

    def _adopt(self, session: TrainingSession) -> None:
        self._session, self._training = session, session.training
        self._names = {id(p): name for name, p in self._training.model.named_parameters() if p.requires_grad}
        self._pair = RankPair(session, self._session_of()) if self.spec.setup.ranks > 1 else None

    @property
    def has_settings_optimizer(self) -> bool:
        """Whether the optimizer is the specification's, not one of the user's class."""
        return self._training.lr_factor is not None

    @property
    def max_norm(self) -> float | None:
        """The limit of the gradient's length, None without one."""
        return self._training.max_norm

    @property
    def has_train(self) -> bool:
        """Whether the user's class trains by a trainer of its own, which a TrainerOracle asks."""
        return isinstance(self._session.task, HookTask) and self._session.task.has_train

    @property
    def has_short_window(self) -> bool:
        """Whether that trainer may meet a last window with fewer micro-batches."""
        return isinstance(self._session.task, HookTask) and self._session.task.has_train and self._session.task.has_short_window

    @property
    def has_own_step(self) -> bool:
        """Whether the user's class makes its optimizer steps by itself."""
        return isinstance(self._session.task, HookTask) and self._session.task.has_own_step

    @property
    def has_moved(self) -> bool:
        """Whether the weights are not those of the start any more, after :meth:`members`, which make no update."""
        return any(not torch.equal(p, self.start.model[name].to(p.dtype)) for name, p in self._parameters())

    def observe(self, samples: Any = None, parts: Sequence[Rows] | None = None, on_outputs: OnOutputs | None = None) -> Observation:
        """One step on ``samples`` cut into ``parts``; by default the batch and the cut that the run itself would see.

        ``on_outputs(rows, tensors)`` gets what the network gave for each micro-batch, those of its tensors that have one entry
        for each row. It is never called for a subject whose loss does not call the network as such. With two ranks ``parts`` is a part for
        each micro-batch of rank 0, then of rank 1.
        """
        before = self._begin()
        parts = self.parts() if parts is None else parts
        handle = self._training.model.register_forward_hook(Outputs(parts, on_outputs)) if on_outputs else None
        try:
            return self._step(before, samples, parts)
        finally:
            if handle is not None:
                handle.remove()

    def sequence(self, steps: int, resume_after: int | None = None) -> Iterator[tuple[State, Observation]]:
        """``steps`` optimizer steps one after the other from the start, each with the state that it began from.

        The run is saved and continued from its checkpoint after ``resume_after`` of them.
        """
        before = self._begin()
        for number in range(1, steps + 1):
            state = self._state()
            seen = self._step(before, None, self.parts(state.step))
            yield state, seen
            self._training.position, before = state.step, seen.after
            if number == resume_after:
                self._resume()

    def members(self, samples: Any = None, parts: Sequence[Rows] | None = None) -> list[Member]:
        """Each micro-batch of the step by itself, forward and backward as the product does them; no update."""
        self._begin()
        number, training, setup = self.start.step, self._training, self.spec.setup
        micro_batches = self._split(number, samples, self.parts() if parts is None else parts)
        seeding.seed_dropout(self.spec.seed_dropout, number, setup.device)
        names = [self._names[id(p)] for p in training.parameters]
        training.scaler = None  # a member is seen as it is
        found = []
        with Precision.named(setup.dtype, setup.device).arithmetic():
            for member in self._session.members(training, micro_batches):
                gradient = {name: part for name, part in zip(names, member.gradient, strict=True) if part is not None}
                found.append(Member(loss=member.loss, terms=member.terms, gradient=gradient))
        return found

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

    def parts(self, step: int | None = None) -> list[Rows]:
        """The rows of each micro-batch of optimizer step ``step``, by default the start's, rank after rank."""
        number, task = step or self.start.step, self._session.task
        rows = task.rows(number)
        return [part for rank in range(self.spec.setup.ranks) for part in controls.partition(self.spec, number, rows, rank)]

    def samples(self, step: int | None = None) -> Any:
        """The samples of optimizer step ``step``, by default the start's."""
        return self._session.task.batch(step or self.start.step)

    def rows(self, step: int) -> int:
        """How many samples optimizer step ``step`` has."""
        return self._session.task.rows(step)

    def _split(self, number: int, samples: Any, parts: Sequence[Rows]) -> list[Any]:
        task = self._session.task
        return task.split(task.batch(number) if samples is None else samples, parts)

    def _own_start(self) -> State:
        if self.spec.control == "ulp_weights":  # the session has moved its weights already
            plain = dataclasses.replace(self.spec, control="none")
            return Oracle(plain, is_correct=self._is_correct, sessions=self._sessions).start
        return State(model=copied(self._training.model.state_dict()), optimizer={})

    def _state(self) -> State:
        """What the next step begins from."""
        training = self._training
        return State(
            model=copied(training.model.state_dict()),
            optimizer=copied_state(training.optimizer.state_dict()["state"]),
            average=copied(training.average.state_dict()) if training.average is not None else {},
            step=training.position + 1,
        )

    def _resume(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "checkpoint.pt"
            self._session.save(path)
            self._adopt(self._session_of())
            for session in (self._session, *([self._pair.second] if self._pair else [])):
                session.load(path)
        self._tamper()

    def _begin(self) -> Tensors:
        """Put weights and state back to the start; the weights there."""
        training = self._training
        _restore(training, self.start)
        if self._pair is not None:
            _restore(self._pair.second.training, self.start)
        training.scaler, training.position = loss_scaler(self.spec.setup), self.start.step - 1
        self._tamper()
        is_moved = controls.move_weights(self.spec, training)
        is_same = not is_moved and all(self.start.model[name].dtype == p.dtype for name, p in self._parameters())
        return {name: self.start.model[name] for name, _ in self._parameters()} if is_same else copied(dict(self._parameters()))

    def _tamper(self) -> None:
        tampering = self._tampering
        if tampering.keeps_all:
            self._training.model.eval()
        if tampering.keeps_all or tampering.keeps_statistics:
            for module in self._training.model.modules():
                if isinstance(module, _BatchNorm):
                    module.train(not tampering.keeps_statistics)

    def _step(self, before: Tensors, samples: Any, parts: Sequence[Rows]) -> Observation:
        number = self._training.position + 1
        micro_batches = self._split(number, samples, parts)
        with spoiled(self._training.parameters, self._tampering.spoils):
            seen = self._kept(before, lambda: self._make(number, micro_batches))
        return dataclasses.replace(seen, tokens=self._session.task.tokens(micro_batches, seen.terms))

    def _make(self, number: int, micro_batches: list[Any]) -> StepOutcome:
        if self._pair is None:
            return self._session.make_step(number, micro_batches)
        first = self.spec.accum
        return self._pair.make_step(number, micro_batches[:first], micro_batches[first:])

    def _kept(self, before: Tensors, make: Callable[[], StepOutcome], gradient: Tensors | None = None) -> Observation:
        training = self._training
        seen: dict[str, Tensors] = {} if gradient is None else {"gradient": gradient}
        updates: list[None] = []
        scaled = Scaled(training.parameters if self._has_own_scale and gradient is None else [], self._tampering.own_scale)

        def keep(name: str) -> None:
            seen[name] = {n: p.grad.detach().clone() for n, p in self._parameters() if p.grad is not None}

        def before_update() -> None:
            scaled.restore()
            is_changed = training.max_norm is not None or self.spec.control == "ulp_grads"
            if is_changed or "gradient" not in seen:
                keep("clipped")

        def after_update() -> None:
            updates.append(None)
            scaled.scale()

        training.on_gradient = None if gradient is not None else lambda: keep("gradient")
        try:
            with scaled, watched(training.optimizer, before_update, after_update):
                outcome = make()
        finally:
            training.on_gradient = None
        for p in training.parameters:
            p.grad = None
        whole = seen.get("gradient") or seen.get("clipped") or {}
        average = {} if training.average is None else dict(training.average.module.named_parameters())
        return Observation(
            loss=outcome.loss,
            terms=outcome.terms,
            lr=float(training.optimizer.param_groups[0]["lr"]),
            gradient=whole,
            clipped=seen.get("clipped", whole),
            before=before,
            after=copied(dict(self._parameters())),
            buffers=copied(dict(training.model.named_buffers())),
            average=copied(average),
            optimizer=flat_state(training.optimizer, self._names),
            updates=len(updates),
            logged=outcome.values,
        )

    @property
    def _has_own_scale(self) -> bool:
        """Whether gradients have another length until the update: no settings turn off the limit that a step of the user's own has."""
        return self.spec.setup.optimizer.max_norm is None and self.has_own_step and not self._is_correct

    def _parameters(self) -> list[tuple[str, Tensor]]:
        return [(self._names[id(p)], p) for p in self._training.parameters]


def _restore(training: Any, start: State) -> None:
    """Put ``training`` to ``start``; tensors are cast to its dtype."""
    optimizer = training.optimizer
    training.model.load_state_dict(start.model)
    optimizer.load_state_dict({"state": copied_state(start.optimizer), "param_groups": optimizer.state_dict()["param_groups"]})
    if training.average is not None:
        training.average.module.load_state_dict(start.model)
        training.average.n_averaged.zero_()
        if start.average:
            training.average.load_state_dict(start.average)


@contextlib.contextmanager
def spoiled(parameters: Sequence[Tensor], place: int | None) -> Iterator[None]:
    """Meanwhile backward pass number ``place`` (from 0) brings the first parameter an infinite gradient; None = none does."""
    passes = itertools.count()

    def spoil(gradient: Tensor) -> Tensor:
        if next(passes) != place:
            return gradient
        return gradient * torch.inf if gradient.is_sparse else torch.full_like(gradient, torch.inf)  # torch fills no sparse tensor

    if place is None:
        yield
        return
    handle = parameters[0].register_hook(spoil)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        handle.remove()


class Outputs:
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
