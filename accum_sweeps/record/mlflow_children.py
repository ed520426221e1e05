"""Which runs of MLflow stand for a run: one for each environment in which it is done, or one for its newest claim.

All of it follows from what is on disk now, so that a database filled while the runs went on equals one that is rebuilt.
"""

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accum_sweeps.plan.words import counted
from accum_sweeps.record.state import RunState
from accum_sweeps.record.store import DamagedRunError, History, RootDir


@dataclass(frozen=True, kw_only=True, eq=False)
class Child:
    """A run in one environment: its history, and in ``damage`` what cannot be read of it."""

    run_id: str
    env_id: str
    history: History
    damage: str = ""

    @property
    def key(self) -> str:
        """Names the child in the cursor."""
        return f"{self.run_id}/{self.env_id}"

    @property
    def number(self) -> int:
        """The newest attempt that started here; 0 if none did."""
        return self.history.newest.number if self.history.newest else 0

    def state(self, newest: RunState) -> RunState:
        """The child's state: its own outcome where it is done, else that of the run's newest claim."""
        attempt = self.history.newest
        if attempt is not None and attempt.outcome is not None and self.history.is_finished:
            return RunState(run_id=self.run_id, status=attempt.outcome, attempt=attempt.number, env_id=self.env_id, step=attempt.step)
        if self.damage and not self.history.attempts:
            return dataclasses.replace(newest, status="failed", reason=f"damaged: {self.damage}")
        return newest


def read_children(root: RootDir, run_id: str) -> list[Child]:
    """The run in every environment in which it was ever started, whether that is to be shown or not."""
    return [_read(root, run_id, env_id) for env_id in root.environments(run_id)]


def shown(children: list[Child], newest_env: str) -> list[Child]:
    """Those that MLflow is to have, in the order in which their attempts began; the same as in the tables.

    Of a run that is done nowhere it is the environment of its newest claim; what others left undone counts no more.
    """
    done = sorted((child for child in children if child.history.is_finished), key=lambda child: child.number)
    return done or [child for child in children if child.env_id == newest_env]


def seen(folder: Path) -> list[Any]:
    """The newest attempt claimed in a run's folder and the bytes of events by environment: changes with all that is to be told."""
    number, sizes = 0, {}
    try:
        entries = list(os.scandir(folder))
    except FileNotFoundError:
        return [0, {}]
    for entry in entries:
        kind, _, attempt = entry.name.partition(".")
        if kind == "claim" and attempt.isdigit():
            number = max(number, int(attempt))
        elif not attempt and entry.is_dir():
            sizes[kind] = _events_size(entry.path)
    return [number, sizes]


def _events_size(folder: str) -> int:
    try:
        return sum(entry.stat().st_size for entry in os.scandir(folder) if entry.name.startswith("events."))
    except OSError:
        return -1


def _read(root: RootDir, run_id: str, env_id: str) -> Child:
    run_dir = root.run_dir(run_id, env_id)
    try:
        history = run_dir.history()
        if history.attempts:  # before, the directory may just be being made
            run_dir.read_spec()
            run_dir.read_environment()
    except (DamagedRunError, OSError) as error:
        return Child(run_id=run_id, env_id=env_id, history=History({}), damage=str(error))
    lines = sum(attempt.damaged_lines for attempt in history.attempts.values())
    damage = f"{run_dir.path}: {counted(lines, 'line')} of its events cannot be read" if lines else ""
    return Child(run_id=run_id, env_id=env_id, history=history, damage=damage)
