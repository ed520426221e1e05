"""A small composer for tests of grids: presets as plain values, without Hydra."""

from collections.abc import Mapping
from typing import Any

from accum_sweeps.plan.definition import Edits, make_grid
from accum_sweeps.plan.grid import Grid
from tests.specs import BASE

SGD = {
    "kind": "sgd",
    "name": "sgd",
    "lr": 0.1,
    "momentum": 0.9,
    "nesterov": False,
    "weight_decay": 0.0,
    "max_norm": None,
    "schedule": "constant",
    "warmup_steps": 0,
}
PRESETS: dict[str, dict[str, Any]] = {
    "optimizer": {"adamw": BASE["optimizer"], "sgd": SGD},
    "model": {"tiny": BASE["model"], "small": {**BASE["model"], "name": "small", "layers": 3}},
    "dtype": {"fp32": "fp32", "bf16": "bf16", "fp64": "fp64"},
}
GROUPS = {group: tuple(options) for group, options in PRESETS.items()}


def compose(choices: Mapping[str, str]) -> Mapping[str, Any]:
    """The base values with the chosen presets."""
    return {**BASE, **{group: PRESETS[group][option] for group, option in choices.items()}}


def grid(edits: Edits | None = None, **definition: Any) -> Grid:
    """The grid of ``definition`` over the base values."""
    return make_grid(definition, compose, GROUPS, edits)


def cells(made: Grid) -> list[tuple[Any, ...]]:
    """The values of all cells, in order."""
    return [tuple(cell.values()) for block in made.blocks for cell in block.cells()]
