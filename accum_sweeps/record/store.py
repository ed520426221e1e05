"""The root folder and the run directories in it: layout, append, read, atomic finish.

    root/root.json                                     version of this layout
    root/runs/<2 hex>/<run_id>/claim.<attempt>         who runs it (see record.state)
    root/runs/<2 hex>/<run_id>/<env_id>/spec.json, env.json, events.<attempt>.jsonl, checkpoint.<attempt>.pt,
                                        sketches.<attempt>.npz, log.<attempt>.txt
    root/sweeps/<name>/                                plans and tables (see record.sweep)

The run directory is the truth. An attempt writes only into its own files, so an owner that lost its claim can do no harm.
"""

import functools
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accum_sweeps.plan.errors import UserError
from accum_sweeps.plan.spec import RunSpec, canonical, from_dict
from accum_sweeps.record.events import DONE, Attempt, EventWriter, Point, read_attempt
from accum_sweeps.record.files import create_exclusive

LAYOUT_VERSION = 1


class DamagedRunError(Exception):
    """A run directory that cannot be read; the message names it and says what is wrong."""


@dataclass(frozen=True)
class RootDir:
    """The folder that holds all sweeps and runs; made by :func:`open_root`."""

    path: Path

    def run_folder(self, run_id: str) -> Path:
        """Where a run's claims and environments are."""
        return self.path / "runs" / run_id[:2] / run_id

    def run_dir(self, run_id: str, env_id: str) -> "RunDir":
        """The run's directory in one environment."""
        return RunDir(self.run_folder(run_id) / env_id)

    def environments(self, run_id: str) -> list[str]:
        """Ids of the environments in which the run was ever started."""
        try:
            entries = sorted(os.scandir(self.run_folder(run_id)), key=lambda entry: entry.name)
        except FileNotFoundError:
            return []
        return [entry.name for entry in entries if "." not in entry.name and entry.is_dir()]


def open_root(path: Path, *, create: bool = False) -> RootDir:
    """The root at ``path``; ``create`` makes it (mode 0700) if it is missing.

    Raises UserError if it is missing, cannot be written, is no root, or is of a newer layout.
    """
    mark = path / "root.json"
    try:
        if create:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not mark.exists():
                _create_root(path)
        version = json.loads(mark.read_text())["layout_version"]
    except (ValueError, KeyError, TypeError):
        raise UserError(f'root={path}: {mark.name} in it is damaged.\n  Restore it: {{"layout_version": {LAYOUT_VERSION}}}') from None
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not create:
            raise UserError(f"root={path}: there is no sweep root here.\n  Give root=FOLDER or set ACCUM_SWEEPS_ROOT.") from None
        raise UserError(f"root={path}: {error.strerror}.\n  Give a folder that you can write: root=FOLDER") from None
    if not isinstance(version, int) or version > LAYOUT_VERSION:
        raise UserError(
            f"root={path}: written by a newer release (layout {version}, this one reads up to {LAYOUT_VERSION}).\n"
            "  Update accum_sweeps, or give another root=FOLDER."
        )
    if create and not os.access(path, os.W_OK | os.X_OK):
        raise UserError(f"root={path}: no permission to write here.\n  Give a folder that you can write: root=FOLDER")
    return RootDir(path)


def _create_root(path: Path) -> None:
    others = [entry.name for entry in path.iterdir() if not entry.name.startswith(".")]
    if others and not set(others) <= {"runs", "sweeps", "root.json"}:
        raise UserError(f"root={path}: this folder holds other things ({others[0]}, ...).\n  Give an empty or new folder: root=FOLDER")
    create_exclusive(path / "root.json", json.dumps({"layout_version": LAYOUT_VERSION}) + "\n")


@dataclass(frozen=True)
class RunDir:
    """One run in one environment."""

    path: Path

    def create(self, spec: RunSpec, environment: dict[str, Any]) -> None:
        """Make the directory with spec.json and env.json; nothing changes if it is there already.

        Not synced: what a power cut leaves of a new run is recognized as damaged, and the run is done again.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        for name, value in (("spec.json", spec.to_dict()), ("env.json", environment)):
            create_exclusive(self.path / name, canonical(value) + "\n", sync=False)

    def read_spec(self) -> RunSpec:
        """The specification; DamagedRunError if it is missing, unreadable or not that of this directory."""
        try:
            spec = from_dict(json.loads((self.path / "spec.json").read_text()))
        except (OSError, ValueError, TypeError, KeyError, AttributeError, UserError) as error:
            raise DamagedRunError(f"{self.path}: spec.json cannot be read ({error})") from None
        if spec.run_id != self.path.parent.name:
            raise DamagedRunError(f"{self.path}: spec.json is not that of this directory (it says {spec.run_id})")
        return spec

    def read_environment(self) -> dict[str, Any]:
        """The recorded environment; DamagedRunError if it is missing or unreadable."""
        try:
            return dict(json.loads((self.path / "env.json").read_text()))
        except (OSError, ValueError, TypeError) as error:
            raise DamagedRunError(f"{self.path}: env.json cannot be read ({error})") from None

    def events_path(self, attempt: int) -> Path:
        """Append-only events of one attempt."""
        return self.path / f"events.{attempt}.jsonl"

    def checkpoint_path(self, attempt: int) -> Path:
        """Last checkpoint of one attempt."""
        return self.path / f"checkpoint.{attempt}.pt"

    def sketches_path(self, attempt: int) -> Path:
        """Weight sketches and hashes at the probe steps that the attempt knows of, those of its predecessors included."""
        return self.path / f"sketches.{attempt}.npz"

    def ladder_path(self, attempt: int) -> Path:
        """All that the attempt's ladder found (measure=ladder), as JSON."""
        return self.path / f"ladder.{attempt}.json"

    def log_path(self, attempt: int) -> Path:
        """What the attempt printed, traceback included."""
        return self.path / f"log.{attempt}.txt"

    def writer(self, attempt: int) -> EventWriter:
        """The writer of one attempt's events."""
        return EventWriter(self.events_path(attempt), attempt)

    def attempts(self) -> list[int]:
        """Numbers of the attempts with an event file, ascending."""
        try:
            found = [entry.name.split(".") for entry in os.scandir(self.path)]
        except FileNotFoundError:
            return []
        return sorted(int(n[1]) for n in found if len(n) == 3 and n[0] == "events" and n[2] == "jsonl" and n[1].isdigit())

    def history(self) -> "History":
        """All attempts, read now."""
        return History({number: read_attempt(self.events_path(number), number) for number in self.attempts()})


@dataclass(frozen=True)
class History:
    """A run's attempts and what counts of them. Only attempts with a start event count at all."""

    attempts: dict[int, Attempt]

    @functools.cached_property
    def newest(self) -> Attempt | None:
        """The newest attempt that has started."""
        return max((a for a in self.attempts.values() if a.started_ms is not None), key=lambda a: a.number, default=None)

    @property
    def outcome(self) -> str | None:
        """finished, diverged, failed, released, or None while nothing is said."""
        return self.newest.outcome if self.newest else None

    @property
    def is_finished(self) -> bool:
        """Whether the run needs no further attempt."""
        return self.outcome in DONE

    def chain(self, number: int, until: int | None = None) -> list[tuple[Attempt, int | None]]:
        """The attempts that count for attempt ``number`` up to step ``until``, oldest first, each with its last step that counts."""
        attempt = self.attempts.get(number)
        if attempt is None:
            return []
        before, step = attempt.from_attempt, attempt.from_step
        earlier = self.chain(before, step if until is None else min(step, until)) if before is not None and before < number else []
        return [*earlier, (attempt, until)]

    def points(self, *, covered_only: bool = False) -> list[Point]:
        """The run's curve by ascending step: of earlier attempts only what the later ones continued from.

        ``covered_only`` leaves out what no checkpoint or end covers yet: it may still be measured again.
        """
        last = self.covered_step if covered_only else None
        chain = self.chain(self.newest.number) if self.newest else []
        found = [p for attempt, until in chain for p in attempt.points if until is None or p.step <= until]
        return [p for p in found if last is None or p.step <= last]

    @property
    def covered_step(self) -> int:
        """The last step whose points cannot be taken back; -1 if there is none."""
        if self.newest is None:
            return -1
        if self.is_finished:
            return self.newest.step
        here = self.newest.checkpoint_step
        return here if here is not None else (self.newest.from_step if self.newest.from_attempt is not None else -1)
