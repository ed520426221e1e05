"""Which points of a run MLflow gets, and under which names: pure functions of the run's curve and its planned length.

A curve keeps at most CURVE_POINTS points: steps up to the planned length fall into equal intervals, and the first point
of a curve in an interval is kept; the curve's last point is kept once the run is over. Curves of few points (evaluations)
so keep all of them, whatever steps they stand at. What is kept of the first half of a curve does not depend on the second
half: a replay can follow a running training.
"""

import json
import math
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from accum_sweeps.record.events import Point
from accum_sweeps.record.store import History

CURVE_POINTS = 500
NAME_LENGTH = 250
FINAL = "final/"
_MAX_STEP = 2**63 - 1
_REFUSED_CHARACTERS = re.compile(r"[^/\w.\- :]")


class Sample(NamedTuple):
    """One value of one metric as MLflow stores it; the time is in milliseconds since the epoch."""

    key: str
    step: int
    time_ms: int
    value: float


@dataclass
class Curves:
    """A run's samples in the order in which they are sent. ``altered`` says in words what MLflow cannot hold as it is."""

    samples: list[Sample] = field(default_factory=list)
    altered: dict[str, None] = field(default_factory=dict)  # in order, each once


def interval(step: int, planned_steps: int) -> tuple[int, int]:
    """The interval of a curve that ``step`` falls into; at most ``CURVE_POINTS - 1`` of them up to the planned length.

    A curve that runs on beyond its planned length (a program that counts otherwise) gets intervals twice as long for each
    doubling, so that it stays bounded and keeps its shape.
    """
    intervals = CURVE_POINTS - 1
    length = max(planned_steps + 1, intervals)
    while step >= length:
        length *= 2
    return length, max(step, -1) * intervals // length


def run_samples(history: History, planned_steps: int) -> Curves:
    """What MLflow gets of a run now: kept points that no later attempt can take back, and the final values once it is over."""
    curves = thin(history.points(covered_only=True), planned_steps, is_over=history.is_finished)
    newest = history.newest
    if newest is not None and history.is_finished:
        names = metric_names((FINAL + key for key in newest.final), curves.altered)
        for key, value in newest.final.items():
            _add(curves, names[FINAL + key], newest.step, newest.ended_ms or 0, value)
    return curves


def thin(points: Iterable[Point], planned_steps: int, *, is_over: bool) -> Curves:
    """The kept samples of all curves by ascending step; ``is_over``: the last point of each curve is kept too."""
    ordered = sorted(points, key=lambda point: point.step)
    curves = Curves()
    names = metric_names((key for point in ordered for key in point.values), curves.altered)
    kept: dict[str, tuple[int, int]] = {}
    last: dict[str, Point] = {}
    for point in ordered:
        place = interval(point.step, planned_steps)
        for key, value in point.values.items():
            if kept.get(key) == place:
                last[key] = point
                continue
            kept[key] = place
            last.pop(key, None)
            _add(curves, names[key], point.step, point.time_ms, value)
    for key, point in last.items() if is_over else ():
        _add(curves, names[key], point.step, point.time_ms, point.values[key])
    return curves


def _add(curves: Curves, name: str, step: int, time_ms: int, value: float) -> None:
    if abs(step) > _MAX_STEP:
        curves.altered[f"{name}: a step of {step} is left out, MLflow counts to {_MAX_STEP}"] = None
        return
    if math.isinf(value):
        # MLflow would store 1.8e308 instead, a number that looks measured and ruins the axis of every chart.
        curves.altered[f"{name}: {value} is stored as nan"] = None
        value = math.nan
    curves.samples.append(Sample(name, step, max(time_ms, 0), value))


def metric_names(keys: Iterable[str], altered: dict[str, None]) -> dict[str, str]:
    """For each key the name that MLflow accepts: the key itself, or one as similar as possible and different from all others."""
    names: dict[str, str] = {}
    taken: set[str] = set()
    for key in keys:
        if key in names:
            continue
        name = clean_name(key)
        if name in taken:
            name = _marked(name, key)
        names[key] = name
        taken.add(name)
        if name != key:
            altered[f"the name {_short(key)} is stored as {_short(name)}"] = None
    return names


def clean_name(key: str) -> str:
    """``key`` with what MLflow refuses replaced by underscores (names are also paths there), cut to 250 characters."""
    parts = _REFUSED_CHARACTERS.sub("_", key).split("/")
    name = "/".join(part if part.strip(".") else "_" * max(len(part), 1) for part in parts)
    if name.startswith(".."):
        name = "__" + name[2:]
    return name if len(name) <= NAME_LENGTH else _marked(name, key)


def _marked(name: str, key: str) -> str:
    """A name told apart from others of the same beginning by a checksum of the original."""
    return f"{name[: NAME_LENGTH - 9]}-{zlib.crc32(key.encode('utf-8', 'surrogatepass')):08x}"


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:50]}... ({len(text)} characters)"


def clean_params(values: Mapping[str, object], limit: int, altered: dict[str, None]) -> dict[str, str]:
    """Configuration values as text under names that MLflow accepts; what is longer than ``limit`` characters is cut, and says so."""
    names = metric_names(values, altered)
    return {names[key]: clean_text(value, limit, f"the value of {_short(names[key])}", altered) for key, value in values.items()}


def clean_text(value: object, limit: int, what: str, altered: dict[str, None]) -> str:
    """``value`` as text that every database takes: no NUL, no lone surrogates, at most ``limit`` characters."""
    text = value if isinstance(value, str) else json.dumps(value) if value is None or isinstance(value, bool) else str(value)
    clean = text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()
    if clean != text:
        altered[f"{what}: characters that cannot be stored are written out"] = None
    if len(clean) <= limit:
        return clean
    ending = f" ... (cut, {len(clean)} characters)"
    altered[f"{what} is cut to {limit} of {len(clean)} characters"] = None
    return clean[: limit - len(ending)] + ending
