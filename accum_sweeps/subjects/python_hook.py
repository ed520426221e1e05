"""``subject=python``: the user's class with ``build``, ``batch`` and ``loss``, trained by the same loop as the built-in subject.

    build(config, seeds) -> torch.nn.Module      config: all configuration keys, nested; seeds.init, seeds.data, seeds.dropout
    batch(step, seed) -> samples                 the global_batch samples of optimizer step ``step`` = 1, 2, ...; a pure function
    loss(model, samples) -> (sum, count)         of a micro-batch: loss summed over its terms, number of terms
    evaluate(model) -> loss | (sum, count) | {name: value}          optional; without it eval_loss stays empty
    optimizer(model) -> torch.optim.Optimizer    optional; replaces group ``optimizer``, its schedule and its clipping
    step(model, optimizer, micro_batches) -> (sum, count)           optional; one whole optimizer step in the user's own words
    train(model, optimizer, scheduler, micro_batches, accum) -> losses | None    optional, for audits, in place of step; see below
    state() -> dict, restore(state)              optional; what a checkpoint must hold beside model and optimizer, such as a scheduler

Samples are a list, or tensors whose first dimension counts samples: one, or a tuple or dict of them. Before they reach
``loss`` they are cut into micro-batches and moved to the run's device, floating-point ones in the dtype of the weights.

``train`` hands ``model`` to a trainer of one's own that makes several optimizer steps by itself, such as transformers' Trainer. It
trains the model in place for one epoch over the list ``micro_batches``, in their order, each as ``loss`` would get it: an update after
each ``accum`` of them, by the given optimizer, and ``scheduler.step()`` (a torch LambdaLR) after each update. The last window may hold
fewer. It may return a list of the mean loss that it logged for each update. Two attributes tell more:

    lr = 0.1                  train has a plain SGD of its own with this rate, in place of the given optimizer
    last_window = "full"      train never sees an epoch whose last window has fewer micro-batches, so the audit leaves that out

Such a class can be audited (``acs.audit``, ``+grid=audit``); a sweep, which makes step after step, refuses it.
"""

import functools
import io
import math
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from accum_sweeps import faults
from accum_sweeps.plan.errors import UserError
from accum_sweeps.plan.parts import PythonHook
from accum_sweeps.plan.spec import RunSpec
from accum_sweeps.record.metrics import EVAL_LOSS
from accum_sweeps.subjects.hook_check import HookError, check_arguments, check_class, load_class, parameters_of
from accum_sweeps.subjects.identify import require_unchanged
from accum_sweeps.subjects.samples import are_equal, count, placed, selected
from accum_sweeps.subjects.sources import code_folder, code_hash, source_files
from accum_sweeps.training import seeding
from accum_sweeps.training.loop import TrainingSession
from accum_sweeps.training.precision import Precision
from accum_sweeps.training.step import train_step
from accum_sweeps.training.task import Rows, Step, StepOutcome, Terms, Training


@dataclass(frozen=True, kw_only=True)
class Seeds:
    """The three seed streams of a run."""

    init: int
    data: int
    dropout: int


def session(spec: RunSpec, *, has_own_step: bool = True) -> TrainingSession:
    """The training of the user's class, with the class's own step if it has one.

    The module is imported from the current folder or ``sys.path``.

    Raises UserError when the class cannot be used, or its files are not those that the sweep was planned with.
    """
    part = spec.setup.subject
    assert isinstance(part, PythonHook)
    kind = hook_class(part, code_folder())
    check_class(kind)
    check_arguments(parameters_of(kind), part.args)
    return session_of(kind(**part.args), spec, has_own_step=has_own_step)


def session_of(hook: Any, spec: RunSpec, *, has_own_step: bool = True) -> TrainingSession:
    """The training of an object of the user's, whatever class ``spec`` names. Raises UserError when it cannot be used."""
    check_class(type(hook))
    task = HookTask(hook, spec)
    return faults.session(spec, task, task.step if has_own_step else train_step)


def hook_class(part: PythonHook, cwd: Path) -> type:
    """The class of ``part``, imported once per process; UserError when its files changed since planning or since the import."""
    if not part.code_hash:
        return load_class(part.target)
    require_unchanged(part, cwd)
    kind, imported = _imported(part.target, part.files, cwd)
    if imported != part.code_hash:
        raise UserError(f"{part.target} was loaded by this worker before its source files changed; type the command again")
    return kind


@functools.cache
def _imported(target: str, files: tuple[str, ...], cwd: Path) -> tuple[type, str]:
    current = code_hash(source_files(PythonHook(name="", target=target, files=files), cwd))
    if sys.path[:1] != [str(cwd)]:
        sys.path.insert(0, str(cwd))  # first, as for `python script.py`: the files were found there
    return load_class(target), current


class HookTask:
    """A user's object as a ``training.task.Task``."""

    def __init__(self, hook: Any, spec: RunSpec) -> None:
        self._hook, self._spec, self._rows = hook, spec, spec.setup.global_batch
        self._precision = Precision.named(spec.setup.dtype, spec.setup.device)
        self._is_pure = self._is_loadable = False

    @property
    def step(self) -> Step:
        """The user's own optimizer step, or the product's. One that trains by ``train`` has none, and says so when it is called."""
        if self.has_train:
            return _no_step
        return self._own_step if self._has("step") else train_step

    @property
    def has_train(self) -> bool:
        """Whether the user's class trains by its own trainer."""
        return self._has("train")

    @property
    def has_own_step(self) -> bool:
        """Whether the user's class has an optimizer step of its own."""
        return self._has("step")

    @property
    def own_rate(self) -> float | None:
        """The rate of a plain SGD that ``train`` has in place of the given optimizer; None = it uses the given one."""
        rate = getattr(self._hook, "lr", None)
        if rate is None:
            return None
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < math.inf:
            raise HookError(f"the attribute lr is {rate!r}", "It is the rate of the plain SGD that train has of its own, a number above 0.")
        return float(rate)

    @property
    def has_short_window(self) -> bool:
        """Whether the last window that ``train`` sees may be short."""
        last = getattr(self._hook, "last_window", "short")
        if last not in ("short", "full"):
            raise HookError(f"the attribute last_window is {last!r}", 'It is "short", the default, or "full".')
        return bool(last == "short")

    def train(self, training: Training, scheduler: Any, micro_batches: list[Any], accum: int) -> list[float] | None:
        """Have the user's trainer train over ``micro_batches``; the losses that it logged, if it tells."""
        with self._precision.autocast():
            given = self._hook.train(training.model, training.optimizer, scheduler, micro_batches, accum)
        if given is None:
            return None
        if not isinstance(given, Sequence) or isinstance(given, str):
            raise HookError(f"train returned {type(given).__name__}", "Return a list with the logged loss of each update, or None.")
        return [_number(loss) for loss in given]

    def build(self) -> torch.nn.Module:
        """The user's model; the global generators of torch, numpy and Python start from the ``init`` stream."""
        spec = self._spec
        seed = seeding.torch_seed_of("init", spec.seed_init)
        torch.manual_seed(seed), np.random.seed(seed % 2**32), random.seed(seed)
        seeds = Seeds(init=spec.seed_init, data=spec.seed_data, dropout=spec.seed_dropout)
        model = self._hook.build(spec.to_dict(), seeds)
        if not isinstance(model, torch.nn.Module):
            raise HookError(f"build returned {type(model).__name__}, not a torch.nn.Module", "Return the model itself.")
        return model

    def optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer | None:
        """The user's own optimizer, if there is one."""
        if not self._has("optimizer"):
            return None
        own = self._hook.optimizer(model)
        if not isinstance(own, torch.optim.Optimizer):
            raise HookError(f"optimizer returned {type(own).__name__}, not a torch.optim.Optimizer", "Return the optimizer itself.")
        return own

    def batch(self, step: int) -> Any:
        """The samples of one optimizer step, as many as ``global_batch`` says."""
        samples = self._hook.batch(step, self._spec.seed_data)
        found = count(samples)
        if found != self._rows:
            hint = f"Return that many, or set global_batch={found}." if found else "Return a list, a tensor, or a tuple or dict of tensors."
            raise HookError(f"batch({step}, {self._spec.seed_data}) gave {found} samples, but global_batch={self._rows}", hint)
        if not self._is_pure:
            self._require_pure(step, samples)
        return samples

    def _require_pure(self, step: int, samples: Any) -> None:
        """Ask once more: every k, every rerun and every resumed run must see the same samples."""
        if not are_equal(samples, self._hook.batch(step, self._spec.seed_data)):
            hint = "Draw from torch.Generator().manual_seed(...) of step and seed, not from a global generator or an iterator."
            raise HookError(f"batch({step}, {self._spec.seed_data}) gave other samples when it was called again", hint)
        self._is_pure = True

    def rows(self, step: int) -> int:
        """The global batch."""
        return self._rows

    def tokens(self, micro_batches: Sequence[Any], terms: float) -> float:
        """The terms of the user's loss."""
        return terms

    def split(self, samples: Any, parts: Sequence[Rows]) -> list[Any]:
        """The samples of each part, on the run's device, floating-point tensors in the dtype of the weights."""
        return [placed(selected(samples, rows), self._spec.setup.device, self._precision.parameters) for rows in parts]

    def loss(self, model: torch.nn.Module, micro_batch: Any) -> tuple[Tensor, Terms]:
        """The user's loss: (sum, count)."""
        return _pair(self._hook.loss(model, micro_batch), "loss")

    def evaluate(self, model: torch.nn.Module) -> Mapping[str, float]:
        """The user's evaluation; nothing without one."""
        if not self._has("evaluate"):
            return {}
        given = self._hook.evaluate(model)
        if isinstance(given, Mapping):
            return {str(key): _number(value) for key, value in given.items()}
        return {EVAL_LOSS: _mean(given, "evaluate")[0] if isinstance(given, tuple) else _number(given)}

    def state(self) -> dict[str, Any]:
        """What the user's object keeps beside model and optimizer; nothing without a method ``state``."""
        if not self._has("state"):
            return {}
        state = self._hook.state()
        if not isinstance(state, dict):
            raise HookError(f"state returned {type(state).__name__}, not a dict", "Return for example self.scheduler.state_dict().")
        if not self._is_loadable:
            _require_loadable(state)
            self._is_loadable = True
        return state

    def restore(self, state: dict[str, Any]) -> None:
        """Hand back what the user's object kept."""
        if self._has("restore"):
            self._hook.restore(state)

    def _has(self, name: str) -> bool:
        # Of the class: what its methods store under self.step or self.optimizer is no method of a training.
        return callable(getattr(type(self._hook), name, None))

    def _own_step(self, training: Training, micro_batches: list[Any]) -> StepOutcome:
        with self._precision.autocast():
            given = self._hook.step(training.model, training.optimizer, micro_batches)
        loss, terms = _mean(given, "step")
        if training.average is not None and math.isfinite(loss):
            training.average.update_parameters(training.model)
        return StepOutcome(loss=loss, terms=terms)


def _no_step(training: Training, micro_batches: list[Any]) -> StepOutcome:
    raise HookError("the class has the method train, which is for audits", "A sweep makes step after step: give it a method step, or none.")


def _mean(given: Any, name: str) -> tuple[float, float]:
    """(mean, number of terms) of the (sum, count) that method ``name`` gave."""
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], int | float):
        given = torch.tensor(given[0], dtype=torch.float64), given[1]
    total, terms = _pair(given, name)
    if not terms:
        raise HookError(f"{name} returned a count of 0", "There must be a term to average over.")
    return _number(total) / _number(terms), _number(terms)


def _number(value: Any) -> float:
    """``value`` as a float; a tensor may still hang in the graph of its gradient."""
    return float(value.detach() if isinstance(value, Tensor) else value)


def _require_loadable(state: dict[str, Any]) -> None:
    """HookError unless a checkpoint with ``state`` can be read again; found out as it is saved, not when all depends on it."""
    with io.BytesIO() as file:
        try:
            torch.save(state, file)
            file.seek(0)
            torch.load(file, weights_only=True)
        except Exception as error:
            hint = "Keep tensors, numbers, text, and lists and dicts of them."
            raise HookError(f"what state returned cannot be kept in a checkpoint: {type(error).__name__}", hint) from error


def _pair(given: Any, name: str) -> tuple[Tensor, Terms]:
    """``given`` if it is (sum, count), both scalars; HookError otherwise."""
    if isinstance(given, tuple) and len(given) == 2:
        total, terms = given
        if isinstance(total, Tensor) and total.ndim == 0 and (not isinstance(terms, Tensor) or terms.ndim == 0):
            return total, terms
    shown = f"a tensor of shape {tuple(given.shape)}" if isinstance(given, Tensor) else f"a {type(given).__name__}"
    hint = "Return the loss summed over its terms, and their number: losses = cross_entropy(..., reduction='none')"
    raise HookError(f"{name} returned {shown}, not (sum, count) of scalars", f"{hint}; losses.sum(), losses.numel()")
