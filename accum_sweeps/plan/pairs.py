"""Two cells of a sweep whose runs are to be compared, all else being equal: ``{left: {accum: 4}, right: {accum: 2}}``."""

from collections.abc import Mapping
from typing import Any

from accum_sweeps.plan.errors import ConfigError

FORM = "must look like {left: {accum: 4}, right: {accum: 2}}"


def read_pairs(values: Any) -> tuple[dict[str, dict[str, Any]], ...]:
    """The pairs of ``analysis.compare``; each side maps keys (groups by their preset's name) to values. ConfigError otherwise."""
    if values is None:
        return ()
    if not isinstance(values, (list, tuple)):
        raise ConfigError("analysis.compare", values, "must be a list of pairs; each " + FORM)
    return tuple(_pair(value) for value in values)


def _pair(value: Any) -> dict[str, dict[str, Any]]:
    if not isinstance(value, Mapping) or set(value) != {"left", "right"}:
        raise ConfigError("analysis.compare", value, f"a pair {FORM}")
    sides = {side: value[side] for side in ("left", "right")}
    for side, cell in sides.items():
        if not isinstance(cell, Mapping) or not cell:
            raise ConfigError(f"analysis.compare.{side}", cell, "must name at least one key and its value, e.g. {accum: 4}")
    if set(sides["left"]) != set(sides["right"]):
        only = sorted(set(sides["left"]) ^ set(sides["right"]))
        raise ConfigError("analysis.compare", value, f"both sides must name the same keys; {only[0]} stands on one only")
    if dict(sides["left"]) == dict(sides["right"]):
        raise ConfigError("analysis.compare", value, "compares a cell with itself")
    return {side: dict(cell) for side, cell in sides.items()}
