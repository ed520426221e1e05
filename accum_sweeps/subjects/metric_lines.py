"""The file that a user's program appends metric lines to, read while it grows: one step's values at a time."""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

SHOWN = 10
NON_FINITE = ("nan", "inf", "-inf")


class MetricLines:
    """Reads ``{"step": int, "key": str, "value": float}`` lines. Others are reported on standard error and skipped."""

    def __init__(self, path: Path, *, is_silent: bool = False) -> None:
        self._path, self._is_silent = path, is_silent
        self._offset = 0
        self._number = 0
        self._skipped = 0
        self._last: dict[str, int] = {}
        self._step = 0
        self._values: dict[str, float] = {}

    def read(self, *, to_end: bool) -> Iterator[tuple[int, dict[str, float]]]:
        """(step, values) of each step that is complete: a line of another step follows, or with ``to_end`` nothing does.

        The rest after the last newline is no line yet; ``to_end`` takes it as one.
        """
        for line in self._new_lines(to_end):
            self._number += 1
            point = self._accept(line)
            if point is None:
                continue
            step, key, value = point
            if self._values and step != self._step:
                yield self._step, self._values
                self._values = {}
            self._step = step
            self._values[key] = value
        if to_end and self._values:
            yield self._step, self._values
            self._values = {}
        if to_end and self._skipped > SHOWN and not self._is_silent:
            print(f"{self._path.name}: {self._skipped} lines skipped in all", file=sys.stderr)

    def _new_lines(self, to_end: bool) -> list[bytes]:
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = len(data) if to_end else data.rfind(b"\n") + 1
        self._offset += whole
        return data[:whole].splitlines()

    def _accept(self, line: bytes) -> tuple[int, str, float] | None:
        if not line.strip():
            return None
        try:
            step, key, value = _parse(line)
            if step <= self._last.get(key, -1):
                raise ValueError(f"{key} was given at step {self._last[key]} already")
        except ValueError as error:
            self._report(f"skipped ({error}): {line[:200].decode(errors='replace')}")
            return None
        self._last[key] = step
        return step, key, value

    def _report(self, what: str) -> None:
        self._skipped += 1
        if self._skipped <= SHOWN and not self._is_silent:
            print(f"{self._path.name}: line {self._number} {what}", file=sys.stderr)


def _parse(line: bytes) -> tuple[int, str, float]:
    point = json.loads(line)
    if not isinstance(point, dict) or not {"step", "key", "value"} <= point.keys():
        raise ValueError('it must be {"step": int, "key": str, "value": number}')
    step, key, value = point["step"], point["key"], point["value"]
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise ValueError(f"step must be a whole number from 0 on, not {step!r}")
    if not isinstance(key, str) or not key:
        raise ValueError(f"key must be a name, not {key!r}")
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number and str(value).lower() not in NON_FINITE:
        raise ValueError(f"value must be a number, not {value!r}")
    return step, key, float(value)


def earlier_values(paths: Sequence[Path]) -> dict[int, dict[str, float]]:
    """Values by step of the attempts before, oldest first: each counts up to the first step that the next one reports."""
    values: dict[int, dict[str, float]] = {}
    for path in paths:
        own = list(MetricLines(path, is_silent=True).read(to_end=True))
        if own:
            first = own[0][0]
            values = {step: found for step, found in values.items() if step <= first}
        for step, found in own:
            values.setdefault(step, {}).update(found)
    return values
