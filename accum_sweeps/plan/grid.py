"""Axes to runs: a grid expands to an ordered, lazy sequence of RunSpec. Pure: no file, no Hydra, no clock.

A grid is one block or several (sub-grids, extra cells). In a block the axes are nested loops in their order, the first
outermost. Put ``seed`` first and ``accum`` last: then the arms of one seed, which are compared with each other, run
close together, and an interrupted sweep holds complete seeds.

A name that is a config group (``optimizer``) takes the group's options; any other name is a dotted key
(``optimizer.lr``, ``subject.args.width``, ``accum``). Options are chosen first, then dotted keys are set.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from accum_sweeps.plan.axes import Axis, Rule, mark, matches, show
from accum_sweeps.plan.cells import NOT_VARIED, Compose, RunMaker
from accum_sweeps.plan.errors import ConfigError, UserError
from accum_sweeps.plan.spec import RunSpec


@dataclass(frozen=True, kw_only=True)
class Block:
    """One nested loop with its conditions. ``dimensions`` are axes, or several that advance together.

    A cell is left out if a rule of ``exclude`` holds in it, or if there are rules in ``only`` and none holds. The rules
    of ``must_match`` have to hold in at least one cell.
    """

    name: str
    dimensions: tuple[tuple[Axis, ...], ...]
    exclude: tuple[Rule, ...] = ()
    only: tuple[Rule, ...] = ()
    must_match: tuple[Rule, ...] = ()

    @property
    def axes(self) -> dict[str, Axis]:
        """The axes by name, in loop order."""
        return {axis.name: axis for dimension in self.dimensions for axis in dimension}

    def cells(self) -> Iterator[dict[str, Any]]:
        """Every cell that the conditions leave, as axis -> value, in loop order.

        Raises ConfigError, after the last cell, for a condition that held in none.
        """
        unmatched = list(self.must_match)
        for cell in _product(self.dimensions, {}):
            if unmatched:
                unmatched = [rule for rule in unmatched if not matches(rule, cell)]
            if self.only and not any(matches(rule, cell) for rule in self.only):
                continue
            if not any(matches(rule, cell) for rule in self.exclude):
                yield cell
        for rule in unmatched:
            words = {name: list(values) for name, values in rule.items()}
            raise ConfigError(self.name or "grid", words, "this condition matches no cell", "Correct it or take it out.")


def _product(dimensions: Sequence[tuple[Axis, ...]], cell: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if not dimensions:
        yield dict(cell)
        return
    dimension, rest = dimensions[0], dimensions[1:]
    names = [axis.name for axis in dimension]
    rows: Iterable[tuple[Any, ...]] = [(NOT_VARIED,) * len(names)]
    if matches(dimension[0].when, cell):
        rows = zip(*(axis.values for axis in dimension), strict=True)
    for row in rows:
        cell.update(zip(names, row, strict=True))
        yield from _product(rest, cell)


@dataclass(frozen=True, kw_only=True)
class Grid:
    """What varies. ``compose`` gives the plain nested values of a run for a choice of group options.

    ``groups`` are the config groups with their options, ``definition`` is the plain grid as it is expanded, ``notices``
    say what the command line changed in it.
    """

    blocks: tuple[Block, ...]
    compose: Compose
    groups: Mapping[str, Sequence[str]]
    definition: Mapping[str, Any]
    notices: tuple[str, ...] = ()

    @property
    def axes(self) -> dict[str, list[Any]]:
        """Every axis with all its values over all blocks, in order of appearance."""
        merged: dict[str, dict[Any, Any]] = {}
        for block in self.blocks:
            for name, axis in block.axes.items():
                known = merged.setdefault(name, {})
                for value in axis.values:
                    known.setdefault(mark(value), value)
        return {name: list(values.values()) for name, values in merged.items()}

    def expand(self) -> Iterator[RunSpec]:
        """Every run, in order, validated when it is reached.

        Raises ConfigError or UserError for values that a run cannot take, a condition that matches nothing, two equal
        runs, or a grid without a run.
        """
        make = RunMaker(self.compose, self.groups)
        seen: dict[str, dict[str, Any]] = {}
        for block in self.blocks:
            for cell in block.cells():
                run = make(cell)
                if run.run_id in seen:
                    raise UserError(_twice(seen[run.run_id], cell))
                seen[run.run_id] = cell
                yield run
        if not seen:
            raise UserError("The grid has no run: its conditions leave out every cell.\n  Check exclude and only.")

    def counts(self) -> dict[str, dict[str, int]]:
        """Number of cells by axis and value ("-": the axis is not varied there); composes nothing."""
        result: dict[str, dict[str, int]] = {}
        for block in self.blocks:
            for cell in block.cells():
                for name, value in cell.items():
                    by_value = result.setdefault(name, {})
                    by_value[show(value)] = by_value.get(show(value), 0) + 1
        return result


def _twice(first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    a, b = (" ".join(f"{name}={show(value)}" for name, value in cell.items()) or "(no axis)" for cell in (first, second))
    return (
        f"The grid holds the same run twice: once as {a}, once as {b}.\n"
        "  Take one of them out (exclude), or use the axis replicate for an identical rerun."
    )
