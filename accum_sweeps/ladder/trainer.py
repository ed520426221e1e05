"""A user's own trainer as a black box: it is called once for several windows, and its updates are read off the optimizer.

What it does between two updates is its own affair. Where it leaves the given optimizer alone and says that its own is a plain SGD, the
gradients are recovered from the weights before and after an update.
"""

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from accum_sweeps.ladder.observation import Observation, State, Tensors, copied
from accum_sweeps.ladder.oracle import OnOutputs, Oracle, Outputs, spoiled
from accum_sweeps.ladder.recorder import NotSeenError, Recorder, Update
from accum_sweeps.ladder.updates import Scaled
from accum_sweeps.plan.errors import UserError
from accum_sweeps.plan.spec import RunSpec
from accum_sweeps.subjects.python_hook import HookTask
from accum_sweeps.training import seeding
from accum_sweeps.training.precision import Precision
from accum_sweeps.training.task import Rows


@dataclass(frozen=True, kw_only=True, eq=False)
class Window:
    """The micro-batches of one optimizer step: ``samples`` (None = those of the run) cut into ``parts``."""

    samples: Any
    parts: Sequence[Rows]


class TrainerOracle(Oracle):
    """The optimizer steps that a class with method ``train`` makes. A resume cannot be asked for: a trainer's is its own affair.

    Raises UserError for settings that would have no effect, NotSeenError where updates are made in a way that cannot be seen.
    """

    def observe(self, samples: Any = None, parts: Sequence[Rows] | None = None, on_outputs: OnOutputs | None = None) -> Observation:
        """One window, of which the trainer makes one epoch."""
        parts = self.parts() if parts is None else parts
        [(_, seen)] = self.epoch([Window(samples=samples, parts=parts)], on_outputs)
        return seen

    def sequence(self, steps: int, resume_after: int | None = None) -> Iterator[tuple[State, Observation]]:
        """``steps`` windows in one call; without a resume, whatever ``resume_after`` says."""
        first = self.start.step
        yield from self.epoch([Window(samples=None, parts=self.parts(number)) for number in range(first, first + steps)])

    def epoch(self, windows: Sequence[Window], on_outputs: OnOutputs | None = None) -> list[tuple[State, Observation]]:
        """All ``windows`` in one call, each with the state that it began from; only the last one may have fewer parts."""
        _check(self.spec)
        scale = self._tampering.own_scale
        updates, losses, passes = self._trained(windows, on_outputs, scale)
        if not updates and scale != 1:  # there was no update at which the gradients could be given their own length
            updates, losses, passes = self._trained(windows, on_outputs, 1.0)
        counts = [len(window.parts) for window in windows]
        _require_one_epoch(len(updates), passes, counts)
        placed = _placed(updates, passes, counts)
        logged = _by_window(losses, len(updates), placed)
        return [self._seen(number, placed, logged[number], updates) for number in range(len(windows))]

    def _trained(
        self, windows: Sequence[Window], on_outputs: OnOutputs | None, scale: float
    ) -> tuple[list[Update], list[float] | None, int]:
        """Call the trainer once: its updates, the losses that it told, its backward passes."""
        self._begin()
        training, task, first, setup = self._training, self._session.task, self.start.step, self.spec.setup
        assert isinstance(task, HookTask)
        numbered = enumerate(windows, first)
        micro_batches = [each for number, window in numbered for each in self._split(number, window.samples, window.parts)]
        scheduler = self._scheduler()
        seeding.seed_dropout(self.spec.seed_dropout, first, setup.device)
        with contextlib.ExitStack() as stack:
            stack.enter_context(spoiled(training.parameters, self._tampering.spoils))
            scaled = stack.enter_context(Scaled(training.parameters, scale))
            recorder = Recorder(training, self._names, scaled, first, task.own_rate)
            stack.enter_context(recorder.watching())
            if on_outputs is not None:
                handle = training.model.register_forward_hook(Outputs([part for each in windows for part in each.parts], on_outputs))
                stack.callback(handle.remove)
            if self._tampering.keeps_all or self._tampering.keeps_statistics:
                stack.enter_context(_pinned(training.model))
            stack.enter_context(Precision.named(setup.dtype, setup.device).arithmetic())
            losses = task.train(training, scheduler, micro_batches, len(windows[0].parts))
        for p in training.parameters:
            p.grad = None
        return recorder.updates() if scale == 1 or recorder.is_given else [], losses, scaled.passes

    def _scheduler(self) -> torch.optim.lr_scheduler.LambdaLR:
        """The settings' schedule from the start's step on, as torch has schedules; constant for an optimizer of the user's own."""
        factor, first = self._training.lr_factor, self.start.step
        for group in self._training.optimizer.param_groups:
            group["lr"] = group.get("initial_lr", group["lr"])
        return torch.optim.lr_scheduler.LambdaLR(self._training.optimizer, lambda done: 1.0 if factor is None else factor(first + done))

    def _begin(self) -> Tensors:
        self._training.model.train()  # a trainer may have left it in another mode
        return super()._begin()

    def _seen(self, number: int, placed: Sequence[Sequence[int]], loss: float, updates: Sequence[Update]) -> tuple[State, Observation]:
        """What is seen of window ``number`` (from 0): the first of its updates, or that there is none."""
        following = [updates[update] for own in placed[number:] for update in own]
        state = dataclasses.replace(following[0].state if following else self._state(), step=self.start.step + number)
        if not placed[number]:
            return state, _without_update(state, loss, following[0].before if following else copied(dict(self._parameters())))
        made = following[0]
        seen = Observation(
            loss=loss,
            terms=math.nan,
            lr=made.lr,
            gradient=made.gradient,
            clipped=made.gradient,
            before=made.before,
            after=made.after,
            buffers=made.buffers,
            optimizer=made.optimizer,
            updates=len(placed[number]),
            resolution=made.resolution,
        )
        return state, seen


def _without_update(state: State, loss: float, weights: Tensors) -> Observation:
    buffers = {name: part for name, part in state.model.items() if name not in weights}
    return Observation(
        loss=loss, terms=math.nan, lr=math.nan, gradient={}, clipped={}, before=weights, after=weights, buffers=buffers, updates=0
    )


def _placed(updates: Sequence[Update], passes: int, counts: Sequence[int]) -> list[list[int]]:
    """The numbers of each window's updates, by the micro-batch after which they come: by the backward passes until then.

    In turn where there is one pass for each update, as of micro-batches that are put together, or where passes cannot be counted.
    """
    found: list[list[int]] = [[] for _ in counts]
    ends = [sum(counts[: place + 1]) for place in range(len(counts))]
    each = passes // ends[-1] if passes and passes % ends[-1] == 0 else 1
    is_in_turn = passes in (0, len(updates)) and passes < ends[-1]
    for number, update in enumerate(updates):
        place = number if is_in_turn else sum(update.passes > end * each for end in ends)
        found[min(place, len(counts) - 1)].append(number)
    return found


def _require_one_epoch(updates: int, passes: int, counts: Sequence[int]) -> None:
    epochs = passes // sum(counts)
    if epochs > 1 and passes % sum(counts) == 0 and updates == epochs * len(counts):
        hint = "Let train go over the micro-batches that it is given once."
        raise NotSeenError(f"train makes {updates} updates of {len(counts)} windows, in {epochs} epochs\n  {hint}")


def _by_window(losses: list[float] | None, updates: int, placed: Sequence[Sequence[int]]) -> list[float]:
    """The logged loss of each window; NaN = it was not told."""
    if losses is None:
        return [math.nan] * len(placed)
    if len(losses) == updates:
        return [losses[own[0]] if own else math.nan for own in placed]
    if len(losses) == len(placed):
        return losses
    raise UserError(f"train returned {len(losses)} losses, but made {updates} updates\n  Return one for each update, or None.")


@contextlib.contextmanager
def _pinned(model: torch.nn.Module) -> Iterator[None]:
    """Meanwhile every module of ``model`` keeps the mode that it is in: trainers call ``train()`` as they begin."""
    model.train = lambda mode=True: model  # type: ignore[method-assign]
    try:
        yield
    finally:
        del model.train


def _check(spec: RunSpec) -> None:
    """UserError for settings that only the product's own step carries out."""
    setup = spec.setup
    words = {
        "ranks=2": setup.ranks > 1,
        "dtype=amp_fp16": setup.dtype == "amp_fp16",
        f"accumulator={setup.accumulator}": setup.accumulator != "param",
        f"ema={setup.ema}": bool(setup.ema),
    }
    for name, is_set in words.items():
        if is_set:
            raise UserError(f"{name} has no effect on a class with the method train, which accumulates by itself\n  Leave it out.")
