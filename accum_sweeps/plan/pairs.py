"""Two cells of a sweep whose runs are to be compared, all else being equal: ``{left: {accum: 4}, right: {accum: 2}}``."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from accum_sweeps.plan.axes import show
from accum_sweeps.plan.errors import ConfigError, one_of
from accum_sweeps.plan.parts import KINDS
from accum_sweeps.plan.spec import SEED_STREAMS, canonical

FORM = "must look like {left: {accum: 4}, right: {accum: 2}}"
_MOST = 8  # values or runs that a message names


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


def pair_name(pair: Mapping[str, Mapping[str, Any]]) -> str:
    """The pair in words: ``accum=4 against accum=2``; what both sides share is said once, behind."""
    left, right = pair["left"], pair["right"]
    words = [
        _words({key: value for key, value in side.items() if not same(value, other[key])}) for side, other in ((left, right), (right, left))
    ]
    shared = _words({key: value for key, value in left.items() if same(value, right[key])})
    return " against ".join(words) + (f", both {shared}" if shared else "")


def _words(cell: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={show(value)}" for key, value in cell.items())


def same(a: Any, b: Any) -> bool:
    """Whether two values of a setting are the same, as configuration and tables hold them: lists there are JSON text, True is not 1."""
    a, b = (canonical(value) if isinstance(value, (list, tuple)) else value for value in (a, b))
    return bool(a == b) and isinstance(a, bool) == isinstance(b, bool)


def matches(rows: Sequence[Mapping[str, Any]], pair: Mapping[str, Mapping[str, Any]]) -> list[tuple[int, int]]:
    """Places (left, right) in ``rows`` of the runs to be compared: equal in every setting but those in which the sides differ.

    ``rows`` hold settings by dotted name, groups by their preset's name, None for what a run does not have. With a group its keys
    may differ, with ``seed`` its streams, with a key of a group the hash of its files.
    """
    left, right = pair["left"], pair["right"]
    free = _free({key for key in left if not same(left[key], right[key])})
    partners: dict[tuple[Any, ...], list[int]] = {}
    names = [name for name in sorted(_names(rows)) if not free(name)]

    def rest(row: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(row.get(name) for name in names)

    for place, row in enumerate(rows):
        if is_in(row, right):
            partners.setdefault(rest(row), []).append(place)
    return [(place, other) for place, row in enumerate(rows) if is_in(row, left) for other in partners.get(rest(row), ())]


def is_in(row: Mapping[str, Any], cell: Mapping[str, Any]) -> bool:
    """Whether the run of ``row`` has the cell's values."""
    return all(key in row and same(row[key], value) for key, value in cell.items())


def _names(rows: Iterable[Mapping[str, Any]]) -> set[str]:
    return set().union(*rows)


def _free(different: set[str]) -> Callable[[str], bool]:
    """Which settings may differ where those of ``different`` do."""
    hashes = {f"{key.partition('.')[0]}.{name}" for key in different if "." in key for name in ("hash", "code_hash", "weights_hash")}
    streams = set(SEED_STREAMS) if "seed" in different else set()
    exact = different | hashes | streams | set(KINDS)  # a preset's name is a label: its values are compared

    def is_free(name: str) -> bool:
        return name in exact or name.partition(".")[0] in different

    return is_free


def check_pair(rows: Sequence[Mapping[str, Any]], pair: Mapping[str, Mapping[str, Any]]) -> None:
    """ConfigError where ``pair`` matches no two of ``rows``: which key or value is not there, or what else differs."""
    if matches(rows, pair):
        return
    names = _names(rows)
    for side in ("left", "right"):
        for key, value in pair[side].items():
            if key not in names:
                raise ConfigError(f"analysis.compare.{side}", key, f"no run has such a setting; {one_of(key, names)}")
            there = {show(row[key]): row[key] for row in rows if key in row}
            if not any(same(value, each) for each in there.values()):
                raise ConfigError(f"analysis.compare.{side}", f"{key}={show(value)}", f"no run has this value; there are {_some(there)}")
        if not any(is_in(row, pair[side]) for row in rows):
            raise ConfigError(
                f"analysis.compare.{side}", _words(pair[side]), f"no run has all of these; there are {_cells(rows, pair[side])}"
            )
    raise ConfigError("analysis.compare", pair_name(pair), *_difference(rows, pair))


def _cells(rows: Sequence[Mapping[str, Any]], cell: Mapping[str, Any]) -> str:
    return _some(dict.fromkeys(_words({key: row.get(key) for key in cell}) for row in rows), "; ")


def _some(words: Iterable[str], between: str = ", ") -> str:
    words = list(words)
    return between.join(words[:_MOST]) + (f" and {len(words) - _MOST} more" if len(words) > _MOST else "")


def _difference(rows: Sequence[Mapping[str, Any]], pair: Mapping[str, Mapping[str, Any]]) -> tuple[str, str]:
    """What else differs between the two sides' runs that are nearest to each other, and what to write instead."""
    sides = [[row for row in rows if is_in(row, pair[side])][:_MOST] for side in ("left", "right")]
    free = _free({key for key in pair["left"] if not same(pair["left"][key], pair["right"][key])})
    found = min(
        ([key for key in sorted({*a, *b}) if not free(key) and not same(a.get(key), b.get(key))] for a in sides[0] for b in sides[1]),
        key=len,
    )
    return f"no two of these runs are equal in all else; they differ in {_some(found)}", "Name on both sides what is to differ."
