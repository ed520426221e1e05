"""The append-only event file of one attempt: what it did, measured value by measured value."""

import contextlib
import json
import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from accum_sweeps.record.files import whole_lines

DONE = ("finished", "diverged")  # outcomes after which nothing more is to be run
FLUSH_S = 0.5


def now_ms() -> int:
    """Milliseconds since the epoch, as MLflow counts them."""
    return time.time_ns() // 1_000_000


class EventWriter:
    """Writes one attempt's events. Points are buffered for at most FLUSH_S; what is promised (checkpoint, outcome) is synced.

    Raises OSError (a full disk, say) to the caller, who must not go on.
    """

    def __init__(self, path: Path, attempt: int) -> None:
        self.path, self.attempt = path, attempt
        self._file = path.open("ab")
        self._buffer: list[str] = []
        self._flushed = time.monotonic()

    def start(self, from_attempt: int | None, from_step: int, **facts: Any) -> None:
        """This attempt continues ``from_attempt`` after ``from_step`` (None and 0: from the beginning)."""
        self._write({"event": "start", "attempt": self.attempt, "from_attempt": from_attempt, "from_step": from_step, **facts}, sync=False)

    def metrics(self, step: int, values: Mapping[str, float], time_ms: int | None = None) -> None:
        """Values measured at ``step``; the time is frozen here."""
        stamp = now_ms() if time_ms is None else time_ms
        self._buffer.append(f'{{"event":"metrics","time":{stamp},"step":{step},"values":{_values(values)}}}\n')
        if time.monotonic() - self._flushed > FLUSH_S:
            self.flush()

    def checkpoint(self, step: int) -> None:
        """A checkpoint of ``step`` is on disk: points up to there count from now on."""
        self._write({"event": "checkpoint", "step": step}, sync=True)

    def end(self, status: str, step: int, final: Mapping[str, float], texts: Mapping[str, str] | None = None) -> None:
        """The run is over: ``finished`` or ``diverged``, with final values and, where there are any, answers in words."""
        values = {"final": {k: _number(v) for k, v in final.items()}, **({"texts": dict(texts)} if texts else {})}
        self._write({"event": "end", "step": step, "status": status, **values}, sync=True)

    def failed(self, step: int, error: str) -> None:
        """An exception ended the attempt; its traceback is in the log."""
        self._write({"event": "failed", "step": step, "error": error}, sync=True)

    def released(self, step: int, reason: str) -> None:
        """The attempt stopped on request; another may continue."""
        self._write({"event": "released", "step": step, "reason": reason}, sync=True)

    def sync(self) -> None:
        """Have all that was measured on the disk itself."""
        self.flush()
        os.fsync(self._file.fileno())

    def flush(self) -> None:
        """Hand buffered points to the operating system."""
        data, self._buffer = "".join(self._buffer), []
        self._file.write(data.encode())
        self._file.flush()
        self._flushed = time.monotonic()

    def close(self) -> None:
        """Flush and close; nothing can be written afterwards."""
        try:
            self.flush()
        finally:
            self._file.close()

    def _write(self, event: dict[str, Any], *, sync: bool) -> None:
        self._buffer.append(json.dumps({"event": event.pop("event"), "time": now_ms(), **event}, separators=(",", ":")) + "\n")
        if sync:
            self.sync()
        else:
            self.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _number(value: float) -> float | str:
    return value if isinstance(value, int) or math.isfinite(value) else str(float(value))


def _values(values: Mapping[str, float]) -> str:
    # JSON has no NaN; the text form is read back by float().
    return json.dumps({key: _number(value) for key, value in values.items()}, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Point:
    """Values by metric name, measured together after optimizer step ``step`` at ``time_ms``."""

    step: int
    time_ms: int
    values: dict[str, float]


@dataclass(slots=True)
class Attempt:
    """One attempt as its event file tells it. ``outcome`` is None while (or if for ever) it is not said."""

    number: int
    started_ms: int | None = None
    from_attempt: int | None = None
    from_step: int = 0
    facts: dict[str, Any] = field(default_factory=dict)
    points: list[Point] = field(default_factory=list)
    checkpoint_step: int | None = None
    outcome: str | None = None
    ended_ms: int | None = None
    step: int = 0
    final: dict[str, float] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    message: str = ""
    damaged_lines: int = 0


def read_attempt(path: Path, number: int) -> Attempt:
    """The attempt written to ``path``. Lines that are no events are counted as damaged and left out."""
    attempt = Attempt(number)
    lines = list(whole_lines(path))
    events = _together(lines)
    for place, line in enumerate(lines):
        try:
            _apply(attempt, json.loads(line) if events is None else events[place])
        except (ValueError, KeyError, TypeError, AttributeError):
            attempt.damaged_lines += 1
    return attempt


def _together(lines: list[bytes]) -> list[Any] | None:
    """What ``lines`` hold, read as one list, which takes a third of the time; None where they have to be read one by one."""
    try:
        events: list[Any] = json.loads(b"[%b]" % b",".join(lines))
    except ValueError:
        return None
    return events if len(events) == len(lines) else None


def read_tail(path: Path, number: int, size: int = 1 << 14) -> Attempt:
    """The attempt as the end of its file tells it: enough for step and outcome, whatever the file's length.

    Reads ``size`` bytes, and more only where the last event alone is longer than that.
    """
    with path.open("rb") as file:
        length = file.seek(0, os.SEEK_END)
        while True:
            file.seek(max(length - size, 0))
            lines = file.read(size).split(b"\n")
            attempt, found = Attempt(number), 0
            for line in lines[1 if size < length else 0 : -1]:
                with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
                    _apply(attempt, json.loads(line))
                    found += 1
            if found or size >= length:
                return attempt
            size *= 4


def _apply(attempt: Attempt, event: dict[str, Any]) -> None:
    kind = event["event"]
    if kind == "metrics":
        values = {key: float(value) for key, value in event["values"].items()}
        attempt.points.append(Point(int(event["step"]), int(event["time"]), values))
        attempt.step = int(event["step"])
    elif kind == "start":
        attempt.started_ms = int(event["time"])
        attempt.from_attempt, attempt.from_step = event["from_attempt"], int(event["from_step"])
        attempt.step = attempt.from_step
        attempt.facts = {k: v for k, v in event.items() if k not in ("event", "time", "attempt", "from_attempt", "from_step")}
    elif kind == "checkpoint":
        attempt.checkpoint_step = int(event["step"])
    elif kind in ("end", "failed", "released"):
        attempt.outcome = event["status"] if kind == "end" else kind
        attempt.ended_ms, attempt.step = int(event["time"]), int(event["step"])
        attempt.final = {key: float(value) for key, value in event.get("final", {}).items()}
        attempt.texts = {key: str(value) for key, value in event.get("texts", {}).items()}
        attempt.message = str(event.get("error", event.get("reason", "")))
    else:
        raise KeyError(kind)
