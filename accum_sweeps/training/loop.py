"""The training loop: optimizer steps, evaluation, probes of the weights, divergence, checkpoints.

It knows no subject, no scheduler and no logging; it yields one record for each optimizer step.
"""

import contextlib
import math
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from accum_sweeps.plan.spec import RunSpec
from accum_sweeps.record.metrics import EVAL_LOSS, EVAL_LOSS_EMA, LR, TOKENS, TRAIN_LOSS, StepRecord, is_divergence
from accum_sweeps.training import checkpoint, controls, optimizers, seeding
from accum_sweeps.training.average import moving_average
from accum_sweeps.training.members import Members, plain
from accum_sweeps.training.precision import Precision, accumulator_dtype, loss_scaler
from accum_sweeps.training.ranks import COMPARE, STEP, RankEnd, RankError, Ranks, kept_buffers
from accum_sweeps.training.sketch import sketch, tensor_sketches, weights_hash
from accum_sweeps.training.step import train_step
from accum_sweeps.training.task import Step, StepOutcome, Task, Terms, Training

# Rank 1 in a process of its own, at a checkpoint or the start: connected while the context is open.
SecondRank = Callable[[RunSpec, Path | None], AbstractContextManager[Ranks]]


class TrainingSession:
    """The training of ``task`` as ``spec`` says, driven step by step; a ``subjects.protocol.Session``.

    Resuming from a checkpoint gives the same bits as not having stopped: samples, dropout masks and the specification's
    learning rate are functions of the step's number, so weights, optimizer state, the token count and what the task itself
    asks for are all that is kept.

    ``members`` gives each micro-batch's own gradient, for whoever looks into a step. With two ranks this session is rank 0's, which
    ``second_rank`` connects to the other one, or rank 1's, which only follows.
    """

    keeps_own_checkpoints = False

    def __init__(self, spec: RunSpec, task: Task, step: Step = train_step, members: Members = plain) -> None:
        self._spec, self.task, self._step, self.members = spec, task, step, members
        self._tokens = 0.0
        self._is_diverged = False
        self._noted = _NotedRate()
        self.second_rank: SecondRank | None = None
        self._ranks: Ranks | None = None
        self._rank = 0
        self._loaded: Path | None = None
        self._precision = Precision.named(spec.setup.dtype, spec.setup.device)
        self.training = self._start()
        self.training.optimizer.register_step_pre_hook(self._noted)
        controls.install(spec, self.training)

    def _start(self) -> Training:
        setup, task, autocast = self._spec.setup, self.task, self._precision.autocast
        model = task.build().to(device=setup.device, dtype=self._precision.parameters).train()
        _densify(model)
        own = task.optimizer(model)

        def loss(micro_batch: Any) -> tuple[Tensor, Terms]:
            with autocast():
                return task.loss(model, micro_batch)

        return Training(
            model=model,
            optimizer=own or optimizers.make(setup.optimizer, model),
            loss=loss,
            accumulator=accumulator_dtype(setup.accumulator),
            max_norm=None if own else setup.optimizer.max_norm,
            lr_factor=None if own else optimizers.schedule(setup.optimizer, setup.steps),
            scaler=loss_scaler(setup),
            average=moving_average(model, setup.ema),
        )

    @property
    def position(self) -> int:
        """Optimizer steps done so far."""
        return self.training.position

    def steps(self) -> Generator[StepRecord]:
        """One record for each optimizer step after ``position``; the last one of the run, or a diverged one, ends it."""
        with self._connected():
            while self._goes_on:
                yield self._next()

    @property
    def _goes_on(self) -> bool:
        return self.position < self._spec.setup.steps and not self._is_diverged

    @contextlib.contextmanager
    def _connected(self) -> Iterator[None]:
        """With two ranks: connected with rank 1 meanwhile."""
        if self._spec.setup.ranks == 1 or not self._goes_on:
            yield
            return
        if self.second_rank is None:
            raise ValueError("ranks=2: this session has nothing to start rank 1 with")
        with self.second_rank(self._spec, self._loaded) as ranks:
            self._ranks = ranks
            self.join(ranks)
            self._compare(weights_hash(self.training.model))
            yield

    def join(self, end: RankEnd) -> None:
        """Be one of two ranks from now on: what is summed over ranks goes through ``end``."""
        self._rank, self.training.all_reduce = end.rank, end.all_reduce
        if self.training.scaler is not None:
            # It begins with the first loss that it scales; a rank without rows in its first step has to unscale too.
            self.training.scaler.scale(torch.zeros((), device=self._spec.setup.device))

    def _compare(self, hash_here: str) -> None:
        """Have rank 1 compare its weights: a subject that draws from elsewhere than its seeds may build others there."""
        if self._ranks is not None:
            self._ranks.lead(COMPARE, hash=hash_here)

    def follow(self, ranks: Ranks) -> None:
        """Be rank 1: make each step that rank 0 leads. Raises RankError where the weights are not equal bit by bit to rank 0's."""
        self._ranks = ranks
        self.join(ranks)
        for message in ranks.orders():
            if message["order"] == STEP:
                self._advance()
            elif message["hash"] != weights_hash(self.training.model):
                hint = "Weights, samples and losses must follow from the seeds alone, in any process."
                raise RankError(f"after optimizer step {self.position} its weights are not those of rank 0\n  {hint}")

    def _next(self) -> StepRecord:
        if self._ranks is not None:
            self._ranks.lead(STEP)
        values = self._values(self._advance())
        if self._is_diverged:
            return StepRecord(step=self.position + 1, values=values, is_diverged=True)
        return self._record(self.position, values)

    def _advance(self) -> StepOutcome:
        """One optimizer step, as far as this rank makes it; ``position`` follows where the loss is finite."""
        number, task, ranks = self.position + 1, self.task, self._ranks
        rows, of_rank = task.rows(number), []
        samples = task.batch(number)
        for rank in range(self._spec.setup.ranks):
            of_rank.append(task.split(samples, controls.partition(self._spec, number, rows, rank)))
        outcome = self.make_step(number, of_rank[ranks.rank if ranks else 0])
        if ranks is not None:
            ranks.take_from_first(kept_buffers(self.training.model))
        self._is_diverged = not math.isfinite(outcome.loss)
        if not self._is_diverged:
            self.training.position = number
            # Counted here for both ranks: what a step is made of does not depend on who makes it.
            self._tokens += task.tokens([micro_batch for part in of_rank for micro_batch in part], outcome.terms)
        return outcome

    def make_step(self, number: int, micro_batches: list[Any]) -> StepOutcome:
        """Optimizer step ``number`` with these micro-batches, under the run's own conditions; ``position`` stays as it is."""
        seeding.seed_dropout(self._spec.seed_dropout, number, self._spec.setup.device, self._rank)
        if self.training.lr_factor is not None:
            optimizers.set_lr(self.training.optimizer, self.training.lr_factor(number))
        self._noted(self.training.optimizer)
        with self._precision.arithmetic():
            return self._step(self.training, micro_batches)

    def _values(self, outcome: StepOutcome) -> dict[str, float]:
        return {TRAIN_LOSS: outcome.loss, LR: self._noted.rate, TOKENS: self._tokens, **outcome.values}

    def _record(self, number: int, values: dict[str, float]) -> StepRecord:
        setup = self._spec.setup
        is_last = number == setup.steps
        if is_last or (setup.eval_every and number % setup.eval_every == 0):
            values.update(self._evaluate())
            if is_divergence(values):
                self._is_diverged = True
                return StepRecord(step=number, values=values, is_diverged=True)
        if not is_last and number not in setup.probe_steps:
            return StepRecord(step=number, values=values)
        model = self.training.model
        whole, tensors = tensor_sketches(model) if setup.probe_tensors else (sketch(model), None)
        digest = weights_hash(model)
        self._compare(digest)
        return StepRecord(step=number, values=values, sketch=whole, weights_hash=digest, tensors=tensors)

    def _evaluate(self) -> Mapping[str, float]:
        average = self.training.average
        values = dict(self._evaluated(self.training.model))
        if average is not None and EVAL_LOSS in values:  # a user's class need not give one
            values[EVAL_LOSS_EMA] = self._evaluated(average.module)[EVAL_LOSS]
        return values

    def _evaluated(self, model: torch.nn.Module) -> Mapping[str, float]:
        model.eval()
        with torch.no_grad(), self._precision.arithmetic(), self._precision.autocast():
            values = self.task.evaluate(model)
        model.train()
        return values

    def save(self, path: Path) -> None:
        """Write weights, optimizer state and counters to ``path``, atomically."""
        training = self.training
        state = {"tokens": self._tokens, "task": self.task.state()}
        state |= {"model": training.model.state_dict(), "optimizer": training.optimizer.state_dict()}
        state |= {name: part.state_dict() for name, part in self._further_state().items()}
        checkpoint.save(path, run_id=self._spec.run_id, step=self.position, state=state)

    def _further_state(self) -> dict[str, Any]:
        """What else of the training must be kept, by name."""
        parts = {"scaler": self.training.scaler, "average": self.training.average}
        return {name: part for name, part in parts.items() if part is not None}

    def load(self, path: Path) -> int:
        """Continue from what :meth:`save` wrote; returns the step it continues after. UserError where that cannot be."""
        step, state = checkpoint.load(path, run_id=self._spec.run_id, device=self._spec.setup.device)
        self.training.model.load_state_dict(state["model"])
        self.training.optimizer.load_state_dict(state["optimizer"])
        for name, part in self._further_state().items():
            part.load_state_dict(state[name])
        self.task.restore(state["task"])
        self._tokens, self.training.position, self._loaded = state["tokens"], step, path
        return step


def _densify(model: torch.nn.Module) -> None:
    """Have embeddings with sparse gradients keep dense ones of the same values: sparse ones have no norm in torch."""

    def kept(parameter: Tensor) -> None:
        if parameter.grad is not None and parameter.grad.is_sparse:
            parameter.grad = parameter.grad.to_dense()

    for module in model.modules():
        if isinstance(module, torch.nn.Embedding | torch.nn.EmbeddingBag) and module.sparse and module.weight.requires_grad:
            module.weight.register_post_accumulate_grad_hook(kept)  # type: ignore[no-untyped-call]


class _NotedRate:
    """The learning rate that an optimizer steps with, noted before the step and by the optimizer itself as it steps.

    An own step may change the rate before that, or after. It knows no session: an optimizer that referred to its session
    would keep the weights of a finished run in memory until Python looks for cycles.
    """

    rate = 0.0

    def __call__(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self.rate = float(optimizer.param_groups[0]["lr"])
