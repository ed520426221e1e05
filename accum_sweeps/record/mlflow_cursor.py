"""How far a sweep's replay into one MLflow has come: a journal on disk, one line a change, beside the sweep's plan.

    sweeps/<name>/mlflow/<target>/cursor.jsonl   <target> = hash of tracking URI and experiment
    sweeps/<name>/mlflow/<target>/lock           held while one replay works
    sweeps/<name>/mlflow/verdict.md              what the note of the sweep's page says of the result

A line lost in a crash is harmless: what it told is found in MLflow again, or sent again, which changes nothing there.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from accum_sweeps.record.files import whole_lines, write_text
from accum_sweeps.record.sweep import SweepDir

SWEEP = "sweep"  # the cursor's entry of the sweep itself; others: "<run_id>" of a run, "<run_id>/<env_id>" of each MLflow run that shows it


def target_folder(sweep: SweepDir, uri: str, experiment: str) -> Path:
    """The folder of the sweep's replay into this MLflow."""
    return sweep.path / "mlflow" / hashlib.sha256(f"{uri}\n{experiment}".encode()).hexdigest()[:12]


class Cursor:
    """The journal as a mapping from entry name to its facts. Only the holder of the lock may write."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "cursor.jsonl"
        self.entries: dict[str, dict[str, Any]] = {}
        self._file: BinaryIO | None = None
        self._seen = (0, 0)
        self._is_compact = False
        self._held: list[str] = []
        self.is_holding = False  # whether facts wait in memory for flush(), because what they tell of is not committed yet
        self.read()

    def read(self) -> None:
        """Take over what another process may have written since."""
        if (seen := self._stamp()) == self._seen:
            return
        self.entries, self._seen = {}, seen
        for line in whole_lines(self.path) if seen != (0, 0) else ():
            with contextlib.suppress(ValueError, TypeError, AttributeError, KeyError):
                change = json.loads(line)
                self._apply(str(change.pop("of")), change)

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Write for as long as the block lasts, going on from what is on disk.

        A process's first time rewrites the journal without what later lines replaced and without half a line at its end.
        """
        self.read()
        if not self._is_compact:
            write_text(self.path, "".join(_line(name, facts) for name, facts in self.entries.items()))
            self._is_compact = True
        with self.path.open("ab", buffering=0) as self._file:
            try:
                yield
                self.flush()
            except BaseException:
                self._held, self._seen = [], (0, 0)  # what is in memory is ahead of the disk: read it again
                raise
        self._seen = self._stamp()

    def update(self, entry: str, *, at_once: bool = False, **facts: Any) -> None:
        """Record facts of an entry; those not named stay. ``at_once``: on disk now, even while others are held."""
        known = self.entries.get(entry, {})
        if all(name in known and known[name] == value for name, value in facts.items()):
            return
        self._apply(entry, facts)
        line = _line(entry, facts)
        if self.is_holding:
            self._held.append(line)
        if at_once or not self.is_holding:
            self._write(line)

    def flush(self) -> None:
        """Write what was held, in order."""
        lines, self._held = "".join(self._held), []
        if lines:
            self._write(lines)

    def forget(self, entry: str) -> None:
        """Record that nothing is known of an entry any more."""
        self.update(entry, forget=True)

    def _write(self, lines: str) -> None:
        assert self._file is not None
        self._file.write(lines.encode())

    def _stamp(self) -> tuple[int, int]:
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return 0, 0
        return found.st_ino, found.st_size

    def _apply(self, entry: str, facts: dict[str, Any]) -> None:
        if facts.get("forget"):
            self.entries.pop(entry, None)
        else:
            self.entries.setdefault(entry, {}).update(facts)


def _line(entry: str, facts: dict[str, Any]) -> str:
    return json.dumps({"of": entry, **facts}, separators=(",", ":")) + "\n"


@contextlib.contextmanager
def exclusive(path: Path, give_up: Callable[[], bool]) -> Iterator[bool]:
    """Hold the lock file ``path``; yields False if ``give_up`` became true before it was free.

    The lock belongs to the open file, so that it ends with its process, however that ends. A file system without locks
    counts as free.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        yield _wait_for(descriptor, give_up)
    finally:
        os.close(descriptor)


def _wait_for(descriptor: int, give_up: Callable[[], bool]) -> bool:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if give_up():
                return False
            time.sleep(0.05)
        except OSError:
            return True
        else:
            return True
