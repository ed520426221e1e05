"""Axes and conditions as a grid file or the command line writes them, parsed and checked.

An axis is a list of values, ``{range: n}``, ``{range: [start, stop]}``, ``{range: [start, stop, step]}``, or
``{values: [...], when: {other: value}}``: an axis that is varied only in the cells where ``when`` holds.
"""

import json
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from accum_sweeps.plan.errors import ConfigError, one_of

Rule = Mapping[str, Sequence[Any]]  # axis -> values; holds in a cell if every axis has one of its values
_SCALARS = (int, str, float, bool, type(None))
FORMS = "must be a list of values, {range: n}, {range: [start, stop, step]} or {values: [...], when: {axis: value}}"


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One varied setting. ``values`` in their order; ``when`` = where it is varied (empty: everywhere)."""

    name: str
    values: Sequence[Any]
    when: Rule = field(default_factory=dict)


def parse_axis(name: str, raw: Any, where: str = "axes") -> Axis:
    """The axis ``name`` from its plain form; ``where`` is the dotted place used in messages.

    Raises ConfigError if the form is not one of those above, the axis is empty or a value stands there twice.
    """
    key = f"{where}.{name}"
    when: Rule = {}
    if isinstance(raw, Mapping):
        raw = {part: item for part, item in raw.items() if item is not None}  # a grid that extends another can null its range
        _check_form(key, name, raw)
        when = _rule(f"{key}.when", raw["when"]) if "when" in raw else {}
        raw = _range(key, raw["range"]) if "range" in raw else raw["values"]
    if raw is None:
        raise ConfigError(key, raw, FORMS)
    values = raw if isinstance(raw, (list, tuple, range)) else [raw]
    if not values:
        raise ConfigError(key, list(values), "an axis needs at least one value", f"To drop the axis on the command line: '~axes.{name}'")
    _refuse_repeats(key, values)
    return Axis(name=name, values=values, when=when)


def parse_axes(raw: Any, where: str = "axes") -> dict[str, Axis]:
    """All axes of one mapping, in its order."""
    return {str(name): parse_axis(str(name), value, where) for name, value in _mapping(where, raw).items()}


def parse_rules(raw: Any, where: str) -> list[Rule]:
    """The conditions of ``exclude`` or ``only``: a list of mappings from axis to a value or a list of values."""
    if not isinstance(raw, (list, tuple)):
        raise ConfigError(where, raw, "must be a list of mappings, e.g. [{optimizer: sgd, dtype: [bf16, amp_bf16]}]")
    return [_rule(where, rule) for rule in raw]


def parse_zip(raw: Any, where: str) -> list[list[str]]:
    """The groups of axes that advance together: a list of lists of names; no axis in two of them."""
    groups = raw if isinstance(raw, (list, tuple)) else [raw]
    if not all(isinstance(group, (list, tuple)) and len(group) > 1 for group in groups):
        raise ConfigError(where, raw, "must be a list of lists of axis names, e.g. [[steps, optimizer.lr]]")
    names = [str(name) for group in groups for name in group]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(where, name, "an axis can be zipped only once")
    return [[str(name) for name in group] for group in groups]


def check_rule(rule: Rule, places: Sequence[Mapping[str, Axis]], where: str) -> None:
    """ConfigError if ``rule`` names an axis, or a value of one, that is in none of ``places``."""
    for name, values in rule.items():
        axes = [place[name] for place in places if name in place]
        if not axes:
            known = {axis for place in places for axis in place}
            raise ConfigError(f"{where}.{name}", list(values), f"there is no such axis here; {one_of(name, known)}")
        for value in values:
            if not any(contains(axis.values, value) for axis in axes):
                allowed = one_of(show(value), {show(v) for axis in axes for v in axis.values[:50]})
                raise ConfigError(f"{where}.{name}", value, f"matches nothing, as the axis does not take this value; {allowed}")


def matches(rule: Rule, cell: Mapping[str, Any]) -> bool:
    """Whether every axis of ``rule`` has one of the listed values in ``cell``."""
    return all(name in cell and contains(values, cell[name]) for name, values in rule.items())


def mark(value: Any) -> tuple[bool, Any]:
    """Something hashable, equal for equal settings: 1 and 1.0 are equal, true and 1 are not."""
    if type(value) in _SCALARS:
        return value is True or value is False, value
    return False, json.dumps(value, sort_keys=True, default=str)


def contains(values: Iterable[Any], value: Any) -> bool:
    """Whether ``value`` is one of ``values``, as settings."""
    if isinstance(values, range):
        return isinstance(value, (int, float)) and not isinstance(value, bool) and value in values
    wanted = mark(value)
    return any(mark(other) == wanted for other in values)


def show(value: Any) -> str:
    """A value as it is written on the command line, lists without brackets."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, (list, tuple, range)):
        return ",".join(show(item) for item in value)
    return json.dumps(value) if isinstance(value, Mapping) else str(value)


def brief(values: Sequence[Any]) -> str:
    """The values of an axis, the middle of a long one left out."""
    return show(values) if len(values) <= 10 else f"{show(values[:3])},...,{show(values[-1])} ({len(values)} values)"


def prefix_clash(names: Iterable[str], groups: Container[str]) -> tuple[str, str] | None:
    """Two axes of which one sets the whole that holds the other (a group's option and a key inside it may go together)."""
    names = list(names)
    for whole in names:
        for inner in names:
            if inner.startswith(f"{whole}.") and whole not in groups:
                return whole, inner
    return None


def _check_form(key: str, name: str, raw: Mapping[str, Any]) -> None:
    unknown = [str(part) for part in raw if part not in ("range", "values", "when")]
    if unknown:
        hint = f"To vary a key inside {name}, write the axis {name}.{unknown[0]}: [...]"
        raise ConfigError(f"{key}.{unknown[0]}", raw[unknown[0]], f"an axis {FORMS}", hint)
    if ("range" in raw) == ("values" in raw):
        hint = "To replace an inherited range: {range: null, values: [...]}"
        raise ConfigError(key, dict(raw), f"needs either values or range; an axis {FORMS}", hint)
    if "values" in raw and not isinstance(raw["values"], (list, tuple)):
        raise ConfigError(f"{key}.values", raw["values"], "must be a list")


def _range(key: str, raw: Any) -> range:
    bounds = raw if isinstance(raw, (list, tuple)) else [raw]
    if not 1 <= len(bounds) <= 3 or not all(isinstance(b, int) and not isinstance(b, bool) for b in bounds):
        raise ConfigError(f"{key}.range", raw, "must be n, [start, stop] or [start, stop, step] in whole numbers (stop itself is left out)")
    if len(bounds) == 3 and bounds[2] == 0:
        raise ConfigError(f"{key}.range", raw, "the step must not be 0")
    return range(*bounds)


def _rule(where: str, raw: Any) -> Rule:
    rule = {str(name): _listed(f"{where}.{name}", values) for name, values in _mapping(where, raw).items()}
    if not rule or not all(rule.values()):
        raise ConfigError(where, raw, "a condition must name at least one axis, each with a value or a list of values")
    return rule


def _listed(where: str, values: Any) -> Sequence[Any]:
    if isinstance(values, Mapping) and set(values) == {"range"}:
        return _range(where, values["range"])
    return list(values) if isinstance(values, (list, tuple)) else [values]


def _mapping(where: str, raw: Any) -> Mapping[Any, Any]:
    if not isinstance(raw, Mapping):
        raise ConfigError(where, raw, "must be a mapping from axis to values")
    return raw


def _refuse_repeats(key: str, values: Sequence[Any]) -> None:
    if isinstance(values, range):
        return
    seen = set()
    for value in values:
        if mark(value) in seen:
            raise ConfigError(key, value, "stands twice in the axis; every value must differ")
        seen.add(mark(value))
