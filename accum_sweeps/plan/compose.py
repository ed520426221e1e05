"""The edge to Hydra: group options and overrides in, plain nested values out, every failure a clear message."""

import functools
import importlib.resources
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from hydra import compose, initialize_config_module
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from accum_sweeps.plan.axes import parse_axis
from accum_sweeps.plan.cells import suggestion
from accum_sweeps.plan.definition import GRID_KEYS, axis_names
from accum_sweeps.plan.errors import ConfigError, UserError, one_of
from accum_sweeps.plan.overrides import OPEN_MAPPINGS, CommandLine
from accum_sweeps.plan.parts import KINDS
from accum_sweeps.plan.spec import RUN_KEYS, SETUP_KEYS

MODULE = "accum_sweeps.conf"
# Groups with a default in config.yaml; any other one (grid, a user's own) has to be appended with +.
DEFAULT_GROUPS = ("model", "optimizer", "dtype", "data", "launcher", "tracking", "subject")

HINTS = {  # words of OmegaConf -> what to do
    "Cannot merge DictConfig with ListConfig": "A list cannot replace an inherited range: write {range: null, values: [...]}",
    "Error merging override analysis.compare={": "It is a list of pairs: write 'analysis.compare=[{left:{...},right:{...}}]'",
}


@dataclass(frozen=True, kw_only=True)
class Composed:
    """Plain nested values, and the option chosen for each config group."""

    values: Mapping[str, Any]
    choices: Mapping[str, str]


def shipped_folder() -> Path:
    """Where the configuration files of the package are."""
    return Path(str(importlib.resources.files(MODULE)))


def find_groups(config_dirs: Sequence[Path] = ()) -> dict[str, tuple[str, ...]]:
    """The config groups with their options: those of the package, and those of the user's own folders.

    Raises UserError for a folder that is not there, and for an option that stands in two places (Hydra would silently
    take the package's).
    """
    places: dict[str, dict[str, Path]] = {}
    for folder in (shipped_folder(), *config_dirs):
        if not folder.is_dir():
            raise UserError(f"--config-dir {folder}: there is no such folder.")
        for file in sorted(folder.glob("*/*.yaml")):
            options = places.setdefault(file.parent.name, {})
            if file.stem in options:
                raise UserError(f"{file}: the name {file.stem} is taken by {options[file.stem]}.\n  Give your file another name.")
            options[file.stem] = file
    return {group: tuple(options) for group, options in places.items()}


class Composer:
    """Composes the configurations of one command line, each choice of group options once."""

    def __init__(self, command: CommandLine, config_dirs: Sequence[Path] = ()) -> None:
        self._command = command
        folders = ",".join("'{}'".format(f"file://{folder.absolute()}".replace("'", "\\'")) for folder in config_dirs)
        self._search = [f"hydra.searchpath=[{folders}]"] if folders else []
        self._cache: dict[tuple[tuple[str, str], ...], Composed] = {}

    @functools.cached_property
    def base(self) -> Composed:
        """The configuration without any axis.

        Where an override fits only the options that an axis picks, the axis's first option stands for the default one.
        """
        try:
            return self._composed({})
        except UserError:
            first = self._first_options()
            if not first:
                raise
            return self._composed(first)

    def __call__(self, choices: Mapping[str, str]) -> Mapping[str, Any]:
        """The plain values with ``choices`` for some groups. Raises UserError."""
        if all(self.base.choices.get(group) == option for group, option in choices.items()):
            return self.base.values
        return self._composed(choices).values

    @functools.cached_property
    def _lines(self) -> tuple[str, ...]:
        """The overrides for Hydra: without those of the grid's axes, as an axis may be for some options only."""
        settings = {key for key in self._command.values if key.partition(".")[0] in (*SETUP_KEYS, *RUN_KEYS)}
        if not settings or self._command.removes_all:
            return self._command.lines
        grid_lines = [line for line in self._command.lines if re.match(rf"[+~]*({'|'.join(GRID_KEYS)})\b", line)]
        try:
            axes = axis_names(self._compose(self._command.choices, grid_lines).values)
        except UserError:
            return self._command.lines  # what is wrong is said when everything is composed
        return self._command.lines_without(axes - set(self._command.removed))

    def _first_options(self) -> dict[str, str]:
        try:
            values = self._compose(self._command.choices, ()).values
        except UserError:
            return {}
        axes = dict(self._command.axes)
        for part in (values, *(values.get("grids") or {}).values()):
            axes = {**(part.get("axes") or {}), **axes}
        groups = [name for name in axes if name in DEFAULT_GROUPS and name not in self._command.choices]
        return {name: parse_axis(name, axes[name]).values[0] for name in groups}

    def _composed(self, choices: Mapping[str, str]) -> Composed:
        key = tuple(sorted(choices.items()))
        if key not in self._cache:
            chosen = {**self._command.choices, **choices}
            try:
                self._cache[key] = self._compose(chosen, self._lines)
            except UserError:
                self._explain(chosen, choices)
                raise
        return self._cache[key]

    def _compose(self, choices: Mapping[str, str], lines: Sequence[str]) -> Composed:
        options = [f"{'' if group in DEFAULT_GROUPS else '+'}{group}={option}" for group, option in choices.items()]
        try:
            with initialize_config_module(MODULE, job_name="accum_sweeps", version_base="1.3"):
                config = compose("config", [*self._search, *options, *lines], return_hydra_config=True)
            chosen = {str(group): str(option) for group, option in config.hydra.runtime.choices.items()}
            OmegaConf.set_struct(config, False)
            del config["hydra"]
            values: Any = OmegaConf.to_container(config, resolve=True)
        except (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError, OSError) as error:
            raise UserError(_message(error)) from None
        return Composed(values=_named(_without_missing(values), chosen), choices=chosen)

    def _explain(self, choices: Mapping[str, str], varied: Mapping[str, str]) -> None:
        """ConfigError for an override whose key does not exist with ``choices``: Hydra names neither choice nor match.

        ``varied`` are the choices that an axis made.
        """
        try:
            plain = self._compose(choices, ())
        except UserError:
            return  # the overrides are not to blame
        for key, value in _leaves(self._command.values, plain.values):
            node: Any = plain.values
            parts = key.split(".")
            for depth, part in enumerate(parts):
                if not isinstance(node, Mapping) or part not in node:
                    place = f" for {parts[0]}={plain.choices[parts[0]]}" if depth and parts[0] in plain.choices else ""
                    allowed = one_of(part, [str(k) for k in node if k != "name"]) if isinstance(node, Mapping) else ""
                    only = f"Where only some options have it: 'axes={{{key}:{{values:[{value}],when:{{{parts[0]}:OPTION}}}}}}'"
                    hint = only if depth and parts[0] in varied else "" if depth else suggestion(part)
                    raise ConfigError(key, value, f"there is no such key{place}; {allowed}", hint)
                node = node[part]


def _leaves(given: Mapping[str, Any], there: Any, head: str = "") -> Iterator[tuple[str, Any]]:
    """``design={controls:auto}`` as ``design.controls``, auto: by dotted key down to what ``there`` has no mapping of."""
    for key, value in given.items():
        node = there
        for part in key.split("."):
            node = node.get(part) if isinstance(node, Mapping) else None
        if isinstance(value, Mapping) and isinstance(node, Mapping) and node and key not in OPEN_MAPPINGS:
            yield from _leaves(value, node, f"{head}{key}.")
        else:
            yield f"{head}{key}", value


def _message(error: BaseException) -> str:
    """The reason in one or a few lines, with the place where the error knows it."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"{mark.name}, line {mark.line + 1}: {error.problem}"
    if not str(error).strip() and error.__cause__ is not None:
        return _message(error.__cause__)
    text = str(error).partition("Config search path:")[0]
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("object_type=")]
    hints = [hint for words, hint in HINTS.items() if words in str(error)]
    return "\n  ".join([line for line in lines if "hydra.cc" not in line and line != "full_key:"] + hints)


def _without_missing(values: Mapping[str, Any]) -> dict[str, Any]:
    """Without the keys that still hold ``???``, so that each is asked for by name when it is needed."""
    return {
        key: _without_missing(value) if isinstance(value, Mapping) else value
        for key, value in values.items()
        if not (isinstance(value, str) and value == "???")
    }


def _named(values: dict[str, Any], choices: Mapping[str, str]) -> dict[str, Any]:
    """Each part of a specification with the chosen option as its ``name``."""
    named = {group: {"name": choices.get(group, group), **values[group]} for group in KINDS if isinstance(values.get(group), Mapping)}
    return {**values, **named}
