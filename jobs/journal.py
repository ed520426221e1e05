"""A worker's journal: what it took and how that ended, so that watching a sweep means tailing a few files."""

import json
from pathlib import Path
from typing import Any

from accum_sweeps.record.events import now_ms


class Journal:
    """Appends one worker's lines. Lines are handed to the operating system at once and survive the worker's death."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)

    def write(self, event: str, **facts: Any) -> None:
        """Append an event."""
        line = json.dumps({"event": event, "time": now_ms(), **facts}, separators=(",", ":"))
        self._file.write(line.encode() + b"\n")

    def close(self) -> None:
        """Nothing can be written afterwards."""
        self._file.close()


class JournalReader:
    """Reads what was appended to a journal since the last time; half a line waits for its end."""

    def __init__(self, path: Path) -> None:
        self.path, self._offset = path, 0

    def read(self) -> list[dict[str, Any]]:
        """The new events, in order; lines that are no events are left out."""
        try:
            if self.path.stat().st_size == self._offset:
                return []
            with self.path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [event for line in whole.splitlines() if (event := _event(line))]


def _event(line: bytes) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except ValueError:
        return {}
    return event if isinstance(event, dict) and "event" in event else {}


def tail(path: Path, lines: int = 8) -> str:
    """The last lines of a log, indented, and where it is."""
    try:
        found = path.read_text(errors="replace").splitlines()[-lines:]
    except OSError:
        found = []
    return "\n".join(f"  {line}" for line in [*found, f"({path})"])
