"""A grid's definition (axes, zip, exclude, only, extra, grids) and the command line's changes to it -> Grid."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from accum_sweeps.plan.axes import (
    Axis,
    Rule,
    brief,
    check_rule,
    contains,
    parse_axes,
    parse_axis,
    parse_rules,
    parse_zip,
    prefix_clash,
    show,
)
from accum_sweeps.plan.cells import Compose, suggestion
from accum_sweeps.plan.errors import ConfigError, one_of
from accum_sweeps.plan.grid import Block, Grid
from accum_sweeps.plan.spec import RUN_KEYS, SETUP_KEYS

BLOCK_KEYS = ("axes", "zip", "exclude", "only", "extra")
GRID_KEYS = (*BLOCK_KEYS, "grids")


@dataclass(frozen=True, kw_only=True)
class Edits:
    """What the command line changes: axes replaced or added, removed, or fixed to one value.

    A fixed value of a key (not of a group) that is an axis is set by the grid alone: the configuration does not hold it.
    """

    axes: Mapping[str, Any] = field(default_factory=dict)
    removed: tuple[str, ...] = ()
    fixed: Mapping[str, Any] = field(default_factory=dict)

    def touch(self, rule: Rule) -> bool:
        """Whether the command line says anything about an axis of ``rule``."""
        return any(name in self.axes or name in self.fixed or name in self.removed for name in rule)


def make_grid(definition: Mapping[str, Any], compose: Compose, groups: Mapping[str, Sequence[str]], edits: Edits | None = None) -> Grid:
    """The grid of a plain ``definition`` (keys: GRID_KEYS), changed by ``edits``.

    Raises ConfigError for all that can be seen without expanding: forms, unknown axes and options, empty axes, repeated
    values, conditions that name what is not there.
    """
    maker = _Maker(groups, edits or Edits(), axis_names(definition))
    blocks = [*maker.loops(definition), *maker.extras(definition.get("extra") or [], "extra")]
    for block in blocks:
        maker.check(block)
    maker.tell()
    plain = {key: definition[key] for key in GRID_KEYS if definition.get(key)}
    return Grid(blocks=tuple(blocks), compose=compose, groups=groups, definition=plain, notices=tuple(maker.notices))


def axis_names(definition: Mapping[str, Any]) -> set[str]:
    """Names of the axes of a plain definition and of its sub-grids, extra cells left aside; forms are not checked."""
    grids = definition.get("grids")
    parts = [definition, *(grids.values() if isinstance(grids, Mapping) else ())]
    axes = [part["axes"] for part in parts if isinstance(part, Mapping) and isinstance(part.get("axes"), Mapping)]
    return {str(name) for names in axes for name in names}


def merge_axes(axes: Mapping[str, Axis], new: Mapping[str, Axis]) -> dict[str, Axis]:
    """``new`` axes replace those of the same name in place; others come before ``accum``, so that arms stay together."""
    result: dict[str, Axis] = {}
    added = {name: axis for name, axis in new.items() if name not in axes}
    for name, axis in axes.items():
        if name == "accum":
            result.update(added)
        result[name] = new.get(name, axis)
    return {**result, **added}


class _Maker:
    """Makes the blocks of one definition and collects what is to be told about the command line's changes."""

    def __init__(self, groups: Mapping[str, Sequence[str]], edits: Edits, names: set[str]) -> None:
        self.groups, self.edits = groups, edits
        self.fixed = {name: value for name, value in edits.fixed.items() if name in names and name not in edits.removed}
        self.notices: list[str] = []
        self.in_loops: set[str] = set()
        self.in_extras: set[str] = set()
        self.before: dict[str, Axis] = {}

    def loops(self, definition: Mapping[str, Any]) -> list[Block]:
        shared = parse_axes(definition.get("axes") or {})
        grids = definition.get("grids") or {}
        if not isinstance(grids, Mapping):
            raise ConfigError("grids", grids, "must be a mapping from a name to a sub-grid")
        if not grids:
            return [self.block("", shared, definition)]
        for key in ("zip", "exclude", "only"):
            if definition.get(key):
                raise ConfigError(key, definition[key], "with sub-grids it must stand inside one of them", f"Write grids.NAME.{key}")
        return [block for name, part in grids.items() for block in self.sub_grid(f"grids.{name}", shared, part)]

    def sub_grid(self, where: str, shared: Mapping[str, Axis], part: Any) -> list[Block]:
        """The shared axes and the sub-grid's own; one of its own replaces a shared one of the same name."""
        if not isinstance(part, Mapping):
            raise ConfigError(where, part, f"must be a mapping with {', '.join(BLOCK_KEYS)}")
        for key in part:
            if key not in BLOCK_KEYS:
                raise ConfigError(f"{where}.{key}", part[key], f"there is no such key; {one_of(key, BLOCK_KEYS)}")
        axes = merge_axes(shared, parse_axes(part.get("axes") or {}, f"{where}.axes"))
        return [self.block(where, axes, part), *self.extras(part.get("extra") or [], f"{where}.extra")]

    def block(self, where: str, before: Mapping[str, Axis], part: Mapping[str, Any]) -> Block:
        dot = f"{where}." if where else ""
        axes = self.edit(before)
        rules = {key: self.rules(part.get(key) or [], f"{dot}{key}", before, axes) for key in ("exclude", "only")}
        axes = self.drop_void(axes, before, f"{dot}axes")
        self.in_loops.update(axes)
        axes = self.add_fixed(axes)
        whens = [axis.when for axis in axes.values() if axis.when]
        return Block(
            name=where,
            dimensions=self.dimensions(axes, parse_zip(part.get("zip") or [], f"{dot}zip"), before, f"{dot}zip"),
            exclude=tuple(rules["exclude"]),
            only=tuple(rules["only"]),
            must_match=tuple(rule for rule in (*rules["exclude"], *rules["only"], *whens) if not self.edits.touch(rule)),
        )

    def edit(self, axes: Mapping[str, Axis]) -> dict[str, Axis]:
        """The axes after the command line's changes."""
        self.before.update(axes)
        result = merge_axes(axes, {name: parse_axis(name, raw) for name, raw in self.edits.axes.items()})
        for name, value in self.edits.fixed.items():
            if name in result:
                result[name] = Axis(name=name, values=[value], when=result[name].when)
        return {name: axis for name, axis in result.items() if name not in self.edits.removed}

    def rules(self, raw: Any, where: str, before: Mapping[str, Axis], axes: Mapping[str, Axis]) -> list[Rule]:
        """The conditions at ``where``: right in themselves, and told about if the command line left them nothing."""
        rules = parse_rules(raw, where)
        for rule in rules:
            check_rule(rule, (before, axes), where)
            if self.is_void(rule, axes):
                self.notices.append(f"{where}: the condition {_words(rule)} matches nothing with the axes of the command line")
        return rules

    def drop_void(self, axes: Mapping[str, Axis], before: Mapping[str, Axis], where: str) -> dict[str, Axis]:
        """Without the axes whose condition the command line made impossible."""
        kept = {}
        for name, axis in axes.items():
            check_rule(axis.when, (before, axes), f"{where}.{name}.when")
            if not self.is_void(axis.when, axes):
                kept[name] = axis
            elif name in self.fixed:
                kept[name] = Axis(name=name, values=axis.values)  # the command line names it, so it is not left out unsaid
            else:
                self.notices.append(f"axis {name} left out: no axis of the command line meets its condition {_words(axis.when)}")
        return kept

    def add_fixed(self, axes: Mapping[str, Axis]) -> dict[str, Axis]:
        """``axes``, and those that the command line fixed in other blocks: what it sets holds everywhere."""
        keys = {name: value for name, value in self.fixed.items() if name not in axes and name not in self.groups}
        return {**axes, **{name: Axis(name=name, values=[value]) for name, value in keys.items()}}

    def is_void(self, rule: Rule, axes: Mapping[str, Axis]) -> bool:
        """Whether ``rule`` cannot hold because of what the command line changed."""
        held = [name in axes and any(contains(axes[name].values, value) for value in values) for name, values in rule.items()]
        return self.edits.touch(rule) and not all(held)

    def dimensions(
        self, axes: Mapping[str, Axis], zipped: Sequence[Sequence[str]], before: Mapping[str, Axis], where: str
    ) -> tuple[tuple[Axis, ...], ...]:
        """Zipped axes at the place of the first of them; an axis fixed on the command line leaves its zip."""
        groups = {}
        for group in zipped:
            for name in group:
                if name not in axes and name not in before:
                    raise ConfigError(where, name, f"there is no such axis; {one_of(name, axes)}")
            rest = [name for name in group if name in axes and name not in self.edits.fixed]
            _check_zip(where, [axes[name] for name in rest])
            groups.update(dict.fromkeys(rest, rest))
        dimensions: dict[str, tuple[Axis, ...]] = {}
        for name in axes:
            members = groups.get(name, [name])
            dimensions.setdefault(next(n for n in axes if n in members), tuple(axes[member] for member in members))
        return tuple(dimensions.values())

    def extras(self, raw: Any, where: str) -> list[Block]:
        """Each extra is a small grid of its own: what it does not name keeps the configuration's value."""
        if not isinstance(raw, (list, tuple)):
            raise ConfigError(where, raw, "must be a list of mappings, e.g. [{accum: 32, seed: {range: 3}}]")
        blocks = [self.extra(f"{where}[{number}]", parse_axes(cell, f"{where}[{number}]")) for number, cell in enumerate(raw)]
        return [block for block in blocks if block is not None]

    def extra(self, where: str, axes: Mapping[str, Axis]) -> Block | None:
        """The extra cells; of an axis fixed on the command line only those with that value."""
        self.in_extras.update(axes)
        fixed = {name: value for name, value in self.edits.fixed.items() if name in axes}
        for name, value in fixed.items():
            if not contains(axes[name].values, value):
                self.notices.append(f"{where} is left out: it is for {name}={brief(axes[name].values)}, not for {show(value)}")
                return None
        kept = {name: Axis(name=name, values=[fixed[name]], when=axis.when) if name in fixed else axis for name, axis in axes.items()}
        return Block(name=where, dimensions=tuple((axis,) for axis in self.add_fixed(kept).values()))

    def check(self, block: Block) -> None:
        dot = block.name + "." if "extra[" in block.name else f"{block.name}.axes." if block.name else "axes."
        clash = prefix_clash(block.axes, self.groups)
        if clash:
            raise ConfigError(f"{dot}{clash[1]}", brief(block.axes[clash[1]].values), f"is set already by the axis {clash[0]}")
        earlier: set[str] = set()
        for dimension in block.dimensions:
            for axis in dimension:
                self.check_name(f"{dot}{axis.name}", axis)
                for name in axis.when:
                    if name not in earlier:
                        raise ConfigError(f"{dot}{axis.name}.when", name, f"must be an axis that comes before {axis.name}")
            earlier.update(axis.name for axis in dimension)

    def check_name(self, key: str, axis: Axis) -> None:
        head = axis.name.split(".")[0]
        known = {*SETUP_KEYS, *RUN_KEYS, *self.groups}
        if head not in known:
            raise ConfigError(key, show(axis.values[:5]), f"there is no such setting of a run; {one_of(head, known)}", suggestion(head))
        for value in axis.values if axis.name in self.groups else ():
            if value not in self.groups[axis.name]:
                raise ConfigError(key, value, f"there is no such option; {one_of(value, self.groups[axis.name])}")

    def tell(self) -> None:
        """Notices on what the command line did; ConfigError for what it could not do."""
        self.refuse_overruled()
        for name in self.edits.removed:
            if name not in self.before:
                known = one_of(name, self.before) if self.before else "the grid has none"
                raise ConfigError(f"~axes.{name}", None, f"there is no such axis; {known}")
            self.notices.append(f"axis {name} removed: it takes the configuration's value{self.extras_note(name)}")
        for name, value in self.edits.fixed.items():
            if name in self.before and name not in self.edits.removed:
                self.notices.append(f"axis {name} reduced to {show(value)}, as the command line sets it")
        for name, raw in self.edits.axes.items():
            if name in self.before:
                new = brief(parse_axis(name, raw).values)
                self.notices.append(f"axis {name} replaced: {brief(self.before[name].values)} -> {new}{self.extras_note(name)}")

    def extras_note(self, name: str) -> str:
        return "; extra cells keep their own" if name in self.in_extras else ""

    def refuse_overruled(self) -> None:
        """ConfigError for a value of the command line that an axis would set again, in whole or in part."""
        for name, value in self.edits.fixed.items():
            for axis in sorted(self.in_loops):
                if prefix_clash([name, axis], self.groups):
                    hint = f"Give the keys one by one without that of the axis, or drop the axis: '~axes.{axis}'"
                    raise ConfigError(name, value, f"is set again by the axis {axis}", hint)


def _words(rule: Rule) -> str:
    return " ".join(f"{name}={brief(values)}" for name, values in rule.items())


def _check_zip(where: str, axes: Sequence[Axis]) -> None:
    lengths = {axis.name: len(axis.values) for axis in axes}
    if len(set(lengths.values())) > 1:
        words = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise ConfigError(where, list(lengths), f"zipped axes must have equally many values: {words}")
    if any(axis.when != axes[0].when for axis in axes):
        raise ConfigError(where, list(lengths), "zipped axes must have the same condition (when)")
