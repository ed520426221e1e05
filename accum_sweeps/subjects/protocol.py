"""What the service needs of a training, whoever wrote it: a session that is driven step by step."""

from collections.abc import Generator
from pathlib import Path
from typing import Protocol

from accum_sweeps.record.metrics import StepRecord


class Session(Protocol):
    """One run's training, held in memory by the worker that executes it."""

    keeps_own_checkpoints: bool
    """True where the subject saves and continues by itself (a program); then save and load are never called, its records
    say what is saved (``is_checkpoint``), and a record without values is a sign of life."""

    @property
    def position(self) -> int:
        """Optimizer steps done so far; 0 before the first one."""
        ...

    def steps(self) -> Generator[StepRecord]:
        """One record for each optimizer step after ``position``, up to ``spec.setup.steps``.

        A record is yielded when its step is complete, so that between two records the session can be saved. The last
        step's record holds ``eval_loss``, a sketch of the weights and their hash (where the subject has weights in this
        process). A record with ``is_diverged`` is the last one.
        """
        ...

    def save(self, path: Path) -> None:
        """Write all that continuing needs to ``path``, atomically: beside it, fsynced, renamed."""
        ...

    def load(self, path: Path) -> int:
        """Continue from what :meth:`save` wrote; returns the optimizer step it continues after.

        Loads with ``weights_only=True``. Raises UserError where ``path`` is damaged or belongs to another run.
        """
        ...
