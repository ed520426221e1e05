"""A command line -> Config: the one place where Hydra's values become the product's own, typed and checked."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from omegaconf import OmegaConf

from accum_sweeps.plan import judging, tracking
from accum_sweeps.plan.compose import Composer, find_groups
from accum_sweeps.plan.definition import GRID_KEYS, Edits, make_grid
from accum_sweeps.plan.design import Design, read_design
from accum_sweeps.plan.errors import ConfigError, one_of
from accum_sweeps.plan.grid import Grid
from accum_sweeps.plan.names import PAGES, REUSE, check_sweep_name
from accum_sweeps.plan.overrides import CommandLine, parse, translate_multirun
from accum_sweeps.plan.pairs import read_pairs
from accum_sweeps.plan.spec import RUN_KEYS, SETUP_KEYS

ACTIONS = ("run", "plan", "status", "report", "sync", "cancel", "list", "prune")
SERVICE_KEYS = ("action", "root", "sweep", "reuse", "design", "analysis", "launcher", "tracking", "snapshot")
ANALYSIS_KEYS = (*judging.KEYS, "compare", "page")
NO_AXES = ("launcher", "tracking", "grid")  # groups that decide no number


@dataclass(frozen=True, kw_only=True)
class Config:
    """One command, checked. ``launcher`` and ``snapshot`` hold plain values that are checked where they are used.

    ``root`` is absolute. ``design`` adds runs to those of ``grid``; ``judging`` says how they are judged. ``compare``
    holds pairs of cells, each {left, right} with values of keys; ``page`` is the study that a page is written for. ``tracking``
    is {kind, uri, experiment} with an absolute URI (None for kind none). ``base`` is the specification before any axis,
    as plain nested values; keys that are still to be given are left out. ``notices`` are to be printed.
    """

    action: str
    root: Path
    sweep: str
    reuse: str
    design: Design
    judging: judging.Judging
    compare: tuple[Mapping[str, Any], ...]
    page: str | None
    launcher: Mapping[str, Any]
    tracking: Mapping[str, Any]
    snapshot: Mapping[str, Any]
    base: Mapping[str, Any]
    grid: Grid
    grid_name: str | None
    overrides: tuple[str, ...]
    notices: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The configuration as plain values under the keys of the command line, the command line's axes included."""
        service = {"action": self.action, "root": str(self.root), "sweep": self.sweep, "reuse": self.reuse}
        places = {
            "design": self.design.to_dict(),
            "analysis": self._analysis(),
            "launcher": dict(self.launcher),
            "tracking": dict(self.tracking),
            "snapshot": dict(self.snapshot),
        }
        grid = self.grid.definition
        axes = {} if "grids" in grid else {"axes": self.grid.axes}
        return {**service, **places, **self.base, **grid, **axes}

    def _analysis(self) -> dict[str, Any]:
        return {**self.judging.to_dict(), "compare": list(self.compare), "page": self.page}

    def to_yaml(self) -> str:
        """:meth:`to_dict` as YAML."""
        return OmegaConf.to_yaml(OmegaConf.create(self.to_dict()))


def read_config(overrides: Sequence[str], config_dirs: Sequence[Path] = ()) -> Config:
    """The Config of the command line's ``overrides``, with grids and presets of ``config_dirs`` besides the package's.

    Raises UserError or ConfigError. Values of single runs are checked by ``grid.expand()``.
    """
    groups = find_groups(config_dirs)
    command = parse(overrides, groups)
    composer = Composer(command, config_dirs)
    values, grid_name = composer.base.values, composer.base.choices.get("grid")
    _check_keys(values)
    root = _root(values["root"])
    analysis = _analysis(values["analysis"])
    run_groups = {name: options for name, options in groups.items() if name not in NO_AXES}
    grid = _grid(values, composer, run_groups, command)
    return Config(
        action=_choice("action", values["action"], ACTIONS),
        root=root,
        sweep=_sweep(values["sweep"], grid_name),
        reuse=_choice("reuse", values["reuse"], REUSE),
        design=read_design(values["design"]),
        judging=judging.read_judging(analysis, grid.axes.get("accum")),
        compare=read_pairs(analysis.get("compare")),
        page=None if analysis.get("page") is None else _choice("analysis.page", analysis["page"], PAGES),
        launcher=_mapping("launcher", values["launcher"]),
        tracking=tracking.resolve(_mapping("tracking", values["tracking"]), root),
        snapshot=_mapping("snapshot", values["snapshot"]),
        base=_specification(values),
        grid=grid,
        grid_name=grid_name,
        overrides=tuple(overrides),
        notices=grid.notices,
    )


def refuse_multirun(overrides: Sequence[str], config_dirs: Sequence[Path] = ()) -> NoReturn:
    """UserError with what to write instead of Hydra's ``--multirun``."""
    raise translate_multirun(overrides, find_groups(config_dirs))


def _grid(values: Mapping[str, Any], composer: Composer, groups: Mapping[str, Sequence[str]], command: CommandLine) -> Grid:
    definition = {key: values.get(key) for key in GRID_KEYS}
    fixed = {**command.values, **command.choices}
    edits = Edits(axes=command.axes, removed=command.removed, fixed=fixed)
    if command.removes_all:
        definition = {}
    return make_grid(definition, lambda choices: _specification(composer(choices)), groups, edits)


def _specification(values: Mapping[str, Any]) -> dict[str, Any]:
    """The part of the configuration that a run is made of."""
    return {key: value for key, value in values.items() if key not in SERVICE_KEYS and key not in GRID_KEYS}


def _check_keys(values: Mapping[str, Any]) -> None:
    known = (*SERVICE_KEYS, *GRID_KEYS, *SETUP_KEYS, *RUN_KEYS)
    for key in values:
        if key not in known:
            raise ConfigError(key, values[key], f"there is no such key; {one_of(key, known)}")
    for key in SERVICE_KEYS:
        if key not in values:
            raise ConfigError(key, None, "is required and must not be deleted")


def _choice(key: str, value: Any, names: Sequence[str]) -> str:
    if value not in names:
        raise ConfigError(key, value, one_of(value, names))
    return str(value)


def _mapping(key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(key, value, "must be a mapping: choose one of its presets")
    return dict(value)


def _root(value: Any) -> Path:
    if not isinstance(value, (str, int)) or not str(value).strip():
        raise ConfigError("root", value, "must be the folder of all runs", "Give root=FOLDER or set $ACCUM_SWEEPS_ROOT.")
    return Path(os.path.abspath(Path(str(value)).expanduser()))  # noqa: PTH100 (removes .. without following links)


def _sweep(value: Any, grid_name: str | None) -> str:
    return check_sweep_name(str(value) if value is not None else grid_name or "default")


def _analysis(values: Any) -> dict[str, Any]:
    analysis = _mapping("analysis", values)
    for key in analysis:
        if key not in ANALYSIS_KEYS:
            raise ConfigError(f"analysis.{key}", analysis[key], f"there is no such key; {one_of(key, ANALYSIS_KEYS)}")
    return analysis
