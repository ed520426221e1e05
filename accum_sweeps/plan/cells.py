"""One cell of a grid to one RunSpec, with a fast path for all runs of a setup but the first."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from accum_sweeps.plan.axes import mark, show
from accum_sweeps.plan.errors import ConfigError, one_of
from accum_sweeps.plan.parts import KINDS
from accum_sweeps.plan.setting import names
from accum_sweeps.plan.spec import RUN_KEYS, SEED_STREAMS, SETUP_KEYS, RunSpec, Setup, make_run, make_setup

# Options by group -> plain nested values of a run, all keys of a specification among them.
Compose = Callable[[Mapping[str, str]], Mapping[str, Any]]


class _NotVaried:
    def __repr__(self) -> str:
        return "-"


NOT_VARIED = _NotVaried()  # the value of an axis in the cells where its condition does not hold


class RunMaker:
    """Makes runs from cells (axis -> value). Equal setups are one object; their values are validated once."""

    def __init__(self, compose: Compose, groups: Mapping[str, Sequence[str]]) -> None:
        self._compose, self._groups = compose, groups
        self._setups: dict[Any, tuple[Setup, dict[str, Any]]] = {}
        self._interned: dict[str, Setup] = {}
        self._valid: set[tuple[Any, ...]] = set()

    def __call__(self, cell: Mapping[str, Any]) -> RunSpec:
        """The validated run of ``cell``. Raises ConfigError."""
        of_setup: dict[str, Any] = {}
        of_run: dict[str, Any] = {}
        for name, value in cell.items():
            if value is not NOT_VARIED:
                (of_run if name in RUN_KEYS else of_setup)[name] = value
        key = tuple([(name, mark(value)) for name, value in of_setup.items()])
        if key not in self._setups:
            self._setups[key] = self._make(of_setup)
        setup, base = self._setups[key]
        values = {**base, **of_run}
        for stream in SEED_STREAMS:
            if values[stream] is None:
                values[stream] = values["seed"]
        # A value is valid on its own; only whether accum divides the batch depends on the setup.
        marks = [(id(setup) if name == "accum" else name, type(value), mark(value)) for name, value in of_run.items()]
        marks.append((id(setup), type(values["accum"]), mark(values["accum"])))
        if self._valid.issuperset(marks):
            return RunSpec(setup=setup, **values)
        run = make_run(setup, values)
        self._valid.update(marks)
        return run

    def _make(self, of_setup: Mapping[str, Any]) -> tuple[Setup, dict[str, Any]]:
        choices = {name: value for name, value in of_setup.items() if name in self._groups}
        values = dict(self._compose(choices))
        _check_parts(values)
        for name, value in of_setup.items():
            if name not in choices:
                _set(values, name, value, choices)
        setup = make_setup({key: value for key, value in values.items() if key not in RUN_KEYS})
        setup = self._interned.setdefault(setup.identity, setup)
        return setup, {key: values.get(key) for key in RUN_KEYS}


def _set(values: dict[str, Any], name: str, value: Any, choices: Mapping[str, str]) -> None:
    """Set the dotted key ``name``, copying the mappings on its way; ConfigError if there is no such key."""
    parts = name.split(".")
    group, inner = parts[0], parts[1:]
    is_part = group in KINDS and isinstance(values.get(group), Mapping)
    if inner and is_part and inner[0] not in _keys(group, values[group]):
        label = f"{group}={choices.get(group, values[group].get('name'))}"
        hint = f"Vary it only where it exists: {name}: {{values: [{show(value)}], when: {{{group}: ...}}}}" if group in choices else ""
        raise ConfigError(name, value, f"there is no such key for {label}; {one_of(inner[0], _keys(group, values[group]))}", hint)
    if group not in SETUP_KEYS or (inner and not is_part):
        raise ConfigError(name, value, f"there is no such setting of a run; {one_of(group, (*SETUP_KEYS, *RUN_KEYS))}")
    node = values
    for part in parts[:-1]:
        child = node.get(part, {})
        if not isinstance(child, Mapping):
            raise ConfigError(name, value, f"{part} holds {child!r}, not a mapping")
        node[part] = dict(child)
        node = node[part]
    node[parts[-1]] = value


def suggestion(name: str) -> str:
    """For a key that does not exist: where inside the parts of a specification there is one of that name."""
    found = {f"{group}.{name}" for group, kinds in KINDS.items() for kind in kinds.values() if name in names(kind)}
    return f"Did you mean {' or '.join(sorted(found))}?" if found else ""


def _check_parts(values: Mapping[str, Any]) -> None:
    for group, kinds in KINDS.items():
        part = values.get(group, {})
        kind = kinds.get(str(part.get("kind")))
        for key in part if kind else ():
            if kind and key not in names(kind) and key != "kind":
                label = f"{group}={part.get('name')}"
                raise ConfigError(f"{group}.{key}", part[key], f"there is no such key for {label}; {one_of(key, _keys(group, part))}")


def _keys(group: str, values: Mapping[str, Any]) -> set[str]:
    kind = KINDS[group].get(str(values.get("kind")))
    return {*(names(kind) if kind else values), "kind"} - {"name"}
