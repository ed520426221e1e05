"""Turns the step records of a session into events, sketches, checkpoints and the run's final values."""

import contextlib
import math
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from accum_sweeps.record.events import EventWriter
from accum_sweeps.record.metrics import EVAL_LOSS, EVAL_LOSS_EMA, TOKENS, TRAIN_LOSS, UNITS, StepRecord
from accum_sweeps.record.sketches import Sketches, load_sketches
from accum_sweeps.record.state import newest_claim
from accum_sweeps.record.store import History, RunDir


class Saved(Protocol):
    """What the recorder asks of a session: where it stands, and to save and load that."""

    keeps_own_checkpoints: bool

    @property
    def position(self) -> int:
        """Optimizer steps done."""

    def save(self, path: Path) -> None:
        """Write a checkpoint, atomically."""

    def load(self, path: Path) -> int:
        """Continue from a checkpoint; returns its step."""


SavedSession = TypeVar("SavedSession", bound=Saved)
_WITH_FINALS = (TRAIN_LOSS, EVAL_LOSS, EVAL_LOSS_EMA, TOKENS)


@dataclass
class Recorder:
    """Turns step records into events, sketches and the run's final values."""

    writer: EventWriter
    run_dir: RunDir
    history: History
    facts: dict[str, Any]
    step: int = 0
    is_started: bool = False
    curve: dict[int, dict[str, float]] = field(default_factory=dict)
    sketches: Sketches = field(default_factory=Sketches)
    earlier_s: float = 0.0
    began: float = field(default_factory=time.monotonic)
    diverged_step: int | None = None
    texts: dict[str, str] = field(default_factory=dict)

    def begin(self, make: Callable[[], SavedSession]) -> SavedSession:
        """A session that stands where the newest usable checkpoint left off, or at its start.

        Each try is made with a session of its own: a checkpoint that fails half-way may have changed its weights. A subject
        with checkpoints of its own says later where it continues.
        """
        session = make()
        if session.keeps_own_checkpoints:
            return session
        for number in sorted(self.run_dir.attempts(), reverse=True):
            path = self.run_dir.checkpoint_path(number)
            if number < self.writer.attempt and path.exists():
                try:
                    step = session.load(path)
                    self.sketches = load_sketches(self.run_dir.sketches_path(number), step)
                except Exception as error:  # whatever is wrong with the files, an older checkpoint or a fresh start is right
                    print(f"{path} cannot be used ({type(error).__name__}: {error}); looking for an older one", file=sys.stderr)
                    session, self.sketches = make(), Sketches()
                    continue
                self._start(number, step)
                return session
        self._start(None, 0)
        return session

    def add(self, record: StepRecord) -> None:
        """Record what one optimizer step gave."""
        if not self.is_started and (record.values or record.is_checkpoint):
            self._start_before(record)
        self.step = max(self.step, record.step)
        if record.values:
            self.curve.setdefault(record.step, {}).update(record.values)
            self.writer.metrics(record.step, record.values)
        if record.sketch is not None:
            self.sketches.by_step[record.step] = (record.sketch, record.weights_hash)
        if record.tensors is not None:
            self.sketches.tensors[record.step] = record.tensors
        self.texts.update(record.texts)
        if record.is_diverged:
            self.diverged_step = record.step
        if record.is_checkpoint:
            self.writer.checkpoint(record.step)

    def save(self, session: Saved) -> None:
        """A checkpoint of the session, and the event that makes it count.

        Points and sketches come first: from the moment the checkpoint is there, it covers them.
        """
        if session.keeps_own_checkpoints or not self.is_started:
            return
        self.writer.sync()
        self._save_sketches()
        session.save(self.run_dir.checkpoint_path(self.writer.attempt))
        self.writer.checkpoint(session.position)

    def end(self, status: str) -> str:
        """Final values, and the event that finishes the run. Checkpoints are not needed any more."""
        if not self.is_started:
            self._start(None, 0)
        self._save_sketches()
        self.writer.end(status, self.step, self._final(), self.texts)
        if newest_claim(self.run_dir.path.parent) <= self.writer.attempt:  # else somebody took over and may need them
            for number in self.run_dir.attempts():
                self.run_dir.checkpoint_path(number).unlink(missing_ok=True)
        return status

    def _save_sketches(self) -> None:
        if self.sketches.by_step:
            self.sketches.save(self.run_dir.sketches_path(self.writer.attempt))

    def _start(self, from_attempt: int | None, from_step: int) -> None:
        self.writer.start(from_attempt, from_step, **self.facts)
        self.is_started, self.step = True, from_step
        if from_attempt is None:
            return
        for attempt, last in self.history.chain(from_attempt, from_step):
            points = [point for point in attempt.points if last is None or point.step <= last]
            for point in points:
                self.curve.setdefault(point.step, {}).update(point.values)
            if points and attempt.started_ms is not None:
                self.earlier_s += (points[-1].time_ms - attempt.started_ms) / 1000

    def _start_before(self, first: StepRecord) -> None:
        """The start of a subject with checkpoints of its own: it continues before the first step that it reports."""
        before = self.history.newest
        continues = before is not None and first.step > 1
        self._start(before.number if continues and before else None, first.step - 1 if continues else 0)

    def _final(self) -> dict[str, float]:
        """The values of record.metrics.FINAL_UNITS, as far as the subject gave what they are made of."""
        steps = sorted(self.curve)
        by_key = {key: [self.curve[s][key] for s in steps if key in self.curve[s]] for key in _WITH_FINALS}
        final: dict[str, float] = {
            "steps": self.step,
            "wall_s": self.earlier_s + time.monotonic() - self.began,
            "peak_mem_gb": peak_memory_gb(),
        }
        if losses := by_key[TRAIN_LOSS]:
            final |= {"train_loss_final": losses[-1], "train_loss_area": math.fsum(losses) / len(losses)}
        if (losses := by_key[EVAL_LOSS]) and self.diverged_step is None:
            final |= {"eval_loss_final": losses[-1], "eval_perplexity_final": _exp(losses[-1])}
        if (losses := by_key[EVAL_LOSS_EMA]) and self.diverged_step is None:
            final["eval_loss_ema_final"] = losses[-1]
        if by_key[TOKENS]:
            final["tokens"] = by_key[TOKENS][-1]
        if self.diverged_step is not None:
            final["diverged_step"] = self.diverged_step
        return {**self._own_finals(steps), **final}

    def _own_finals(self, steps: list[int]) -> dict[str, float]:
        """Last values of the metrics that only this subject has, under ``<metric>_final``."""
        last = {key: value for step in steps for key, value in self.curve[step].items() if key not in UNITS}
        return {f"{key}_final": value for key, value in last.items()}


def _exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def peak_memory_gb() -> float:
    """Largest resident memory of this process so far, GiB; on a GPU the largest allocated memory there instead."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        return float(torch.cuda.max_memory_allocated()) / 2**30
    with contextlib.suppress(OSError, ValueError, StopIteration):
        # Not getrusage: that maximum is inherited from the process that started this one.
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
