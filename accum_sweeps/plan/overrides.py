"""The command line's overrides, sorted: what Hydra composes, and what changes the axes of the grid.

Hydra's grammar is kept, its limits on mappings are not: ``axes=...`` is taken out before Hydra sees it. Understood are
``'axes={seed:{range:3},model.norm:[rmsnorm,none]}'``, ``axes.model.norm=[rmsnorm,none]``, ``'~axes.seed'`` and
``'~axes'`` (all of them), with or without ``+``.
"""

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Glob, Override, Quote, QuotedString, RangeSweep
from hydra.errors import HydraException

from accum_sweeps.plan.errors import ConfigError, UserError, one_of
from accum_sweeps.plan.spec import RUN_KEYS, SETUP_KEYS

OPEN_MAPPINGS = ("subject.args", "launcher.options")  # mappings that take any key, though the configuration does not list it

ONE_GRID = "Several grids go into one file, as sub-grids (grids: {NAME: {axes: ...}})."


@dataclass(frozen=True, kw_only=True)
class CommandLine:
    """``choices``: options by config group. ``values``: plain values by dotted key, as ``lines`` hands them to Hydra.

    ``axes``, ``removed``, ``removes_all``: changes to the grid.
    """

    choices: Mapping[str, str]
    values: Mapping[str, Any]
    lines: tuple[str, ...] = ()
    axes: Mapping[str, Any] = field(default_factory=dict)
    removed: tuple[str, ...] = ()
    removes_all: bool = False

    def lines_without(self, keys: Container[str]) -> tuple[str, ...]:
        """``lines`` without those that give one of ``keys`` a value."""
        return tuple(line for line in self.lines if line.startswith("~") or line.lstrip("+").partition("=")[0] not in keys)


def parse(overrides: Sequence[str], groups: Mapping[str, Sequence[str]]) -> CommandLine:
    """Sort ``overrides``. ``groups`` are the config groups with their options.

    Raises ConfigError or UserError for what is not an override, sweeps by comma, unknown options, keys given twice.
    """
    _refuse_bare_words(overrides, groups)
    parsed = [_parse(text) for text in overrides]
    refuse_sweeps([o for o in parsed if not _is_axes(o)], groups)
    _refuse_repeats(parsed)
    choices: dict[str, str] = {}
    values: dict[str, Any] = {}
    axes: dict[str, Any] = {}
    lines, removed = [], []
    for override in parsed:
        key = override.key_or_group
        if key.startswith(("hydra.", "hydra/")):
            raise UserError(f"{override.input_line}: Hydra's own settings are not used here: it neither starts runs nor makes folders.")
        if _is_axes(override):
            added = {} if override.is_delete() else _axes(override)
            removed.extend([key.partition(".")[2]] if override.is_delete() else [])
            _refuse_both(axes, added)
            axes.update(added)
        elif key in groups and override.package is None and not override.is_delete():
            choices[key] = _option(override, groups[key])
        else:
            if not override.is_delete():
                values[key] = override.value()
            lines.append(_line(override))
    _refuse_both(values, axes)
    _refuse_both(choices, axes)
    names = tuple(name for name in removed if name)
    return CommandLine(choices=choices, values=values, lines=tuple(lines), axes=axes, removed=names, removes_all="" in removed)


def _refuse_bare_words(overrides: Sequence[str], groups: Mapping[str, Sequence[str]]) -> None:
    """UserError for a name without its key, such as ``adamw``, with what it could have meant."""
    for text in overrides:
        word = text.lstrip("+")
        if re.fullmatch(r"[\w.-]+", word):
            found = {("+grid" if group == "grid" else group): options for group, options in groups.items() if word in options}
            known = [f"{key}={word}" for key in sorted(found)] or ["+grid=NAME"]
            raise UserError(f"{text!r} is not key=value\n  Did you mean {' or '.join(known)}?")


def refuse_sweeps(overrides: Iterable[Override], groups: Mapping[str, Sequence[str]]) -> None:
    """UserError with the translation into axes, if any override lists several values with commas."""
    sweeps = [o for o in overrides if o.is_sweep_override()]
    for override in sweeps:
        head = override.key_or_group.split(".")[0]
        if head not in (*SETUP_KEYS, *RUN_KEYS):
            raise ConfigError(override.key_or_group, _text(override), "takes one value", ONE_GRID if head == "grid" else "")
    if sweeps:
        axes = ",".join(f"{o.key_or_group}:{_written(_swept(o, groups.get(o.key_or_group, ())))}" for o in sweeps)
        given = " ".join(str(o.input_line) for o in sweeps)
        raise UserError(f"{given}: several values of a setting are an axis of the grid.\n  Write: 'axes={{{axes}}}'")


def translate_multirun(overrides: Sequence[str], groups: Mapping[str, Sequence[str]]) -> UserError:
    """What to write instead of Hydra's ``--multirun``."""
    parsed = [_parse(text) for text in overrides]
    try:
        refuse_sweeps(parsed, groups)
    except UserError as error:
        return UserError(f"-m (--multirun) is not used here: the grid holds all runs.\n  {error}")
    return UserError("-m (--multirun) is not used here: the grid holds all runs.\n  Leave -m out.")


def _parse(text: str) -> Override:
    try:
        return OverridesParser.create().parse_overrides([text])[0]
    except (HydraException, ValueError) as error:
        quoted = _quoted(text)
        if quoted != text:
            return _parse(quoted)
        lines = [line for line in str(error).splitlines() if not line.startswith(("Error parsing", "Lexer", " ", "^", "See "))]
        raise UserError(
            f"{text!r} is not key=value{': ' if lines else ''}{' '.join(lines)}\n"
            "  Quote a value with special characters twice, for the shell and for Hydra: \"root='/my (runs)'\""
        ) from None


def _quoted(text: str) -> str:
    """``root=~/my(runs)`` as ``root='~/my(runs)'``: a single value that Hydra's grammar knows only in quotes."""
    key, equals, value = text.partition("=")
    is_single = equals and re.fullmatch(r"[+~]*[\w./@-]+", key) and value and value[0] not in "[{'\"" and "," not in value
    return f"{key}={QuotedString(value, Quote.single).with_quotes()}" if is_single else text


def _is_axes(override: Override) -> bool:
    return override.key_or_group == "axes" or override.key_or_group.startswith("axes.")


def _axes(override: Override) -> dict[str, Any]:
    """axis -> plain form, from ``axes={...}`` or ``axes.NAME=...``."""
    key, name = override.key_or_group, override.key_or_group.partition(".")[2]
    if name:
        return {name: _swept(override, ()) if override.is_sweep_override() else override.value()}
    value = None if override.is_sweep_override() else override.value()
    if not isinstance(value, dict) or not value:
        raise ConfigError(key, _text(override), "must be a mapping from axis to values", "Write e.g. 'axes={seed:{range:3},accum:[1,4]}'")
    names = _top_level_keys(_text(override))
    for listed in names:
        if names.count(listed) > 1:
            raise ConfigError(f"axes.{listed}", _text(override), "this axis is given twice")
    return {str(axis): form for axis, form in value.items()}


def _top_level_keys(braces: str) -> list[str]:
    """The keys of ``{a:...,b:...}``: the parser keeps only the last of two equal ones."""
    keys, depth, start, quote = [], 0, 0, ""
    for position, character in enumerate(braces):
        if quote:
            quote = "" if character == quote and braces[position - 1] != "\\" else quote
        elif character in "'\"":
            quote = character
        elif character in "{[(":
            depth, start = depth + 1, position + 1 if depth == 0 else start
        elif character in ")]}":
            depth -= 1
        elif depth == 1 and character == ",":
            start = position + 1
        elif depth == 1 and character == ":" and start >= 0:
            keys.append(braces[start:position].strip())
            start = -1
    return keys


def _text(override: Override) -> str:
    return str(override.input_line).partition("=")[2]


def _option(override: Override, options: Sequence[str]) -> str:
    value = override.value()
    if not isinstance(value, str) or value not in options:
        raise ConfigError(override.key_or_group, value, f"there is no such option; {one_of(value, options)}")
    return value


def _line(override: Override) -> str:
    """The override for Hydra, able to add a key where any key may stand."""
    line = str(override.input_line)
    is_open = any(f"{override.key_or_group}.".startswith(f"{mapping}.") for mapping in OPEN_MAPPINGS)
    return f"++{line.lstrip('+')}" if is_open and not override.is_delete() else line


def _refuse_repeats(overrides: Sequence[Override]) -> None:
    lines: dict[str, str] = {}
    for override in overrides:
        key = override.key_or_group + (f"@{override.package}" if override.package else "")
        if key in lines:
            raise UserError(f"{key} is given twice on the command line: {lines[key]} and {override.input_line}. Keep one.")
        lines[key] = str(override.input_line)


def _refuse_both(first: Mapping[str, Any], second: Mapping[str, Any]) -> None:
    for name in second:
        if name in first:
            raise ConfigError(f"axes.{name}", second[name], f"{name} is given twice on the command line: once more as {first[name]!r}")


def _swept(override: Override, options: Sequence[str]) -> Any:
    """The values that a comma list, range() or glob() of Hydra stands for, as an axis."""
    sweep = override.value()
    if isinstance(sweep, ChoiceSweep):
        return [_plain(value) for value in sweep.list]
    if isinstance(sweep, RangeSweep):
        values = list(sweep.range())
        return {"range": [sweep.start, sweep.stop, sweep.step]} if all(isinstance(v, int) for v in values) else values
    return sweep.filter(list(options)) if isinstance(sweep, Glob) else [str(sweep)]


def _plain(value: Any) -> Any:
    return value.text if isinstance(value, QuotedString) else value


def _written(value: Any) -> str:
    """A plain value in Hydra's grammar."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_written(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_written(item) for item in value) + "]"
    return {None: "null", True: "true", False: "false"}.get(value, str(value)) if value is None or isinstance(value, bool) else str(value)
