"""One setting: a dataclass field with its meaning, its unit, the values it may hold.

Specifications are frozen dataclasses whose fields are made by :func:`setting`; :func:`read` makes one from a
plain mapping (what OmegaConf hands over) and refuses unknown keys, missing keys, wrong types and values out of range.
"""

import dataclasses
import functools
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from accum_sweeps.plan.errors import ConfigError, one_of

T = TypeVar("T")
Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
NOT_SET: Any = dataclasses.MISSING


def setting(
    doc: str,
    *,
    default: Any = NOT_SET,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    choices: tuple[str, ...] = (),
    label: bool = False,
    neutral: Any = NOT_SET,
) -> Any:
    """A dataclass field with a line on meaning and unit, and with the values it allows; bounds of a tuple hold for its items.

    ``label=True`` keeps the field out of a run's identity (names do not change a number). ``neutral`` is for keys
    added after a release: while the key holds this value it is left out of the identity, so that older runs keep theirs.
    """
    bounds = {"at_least": at_least, "above": above, "at_most": at_most, "below": below}
    metadata = {"doc": doc, "choices": choices, "label": label, "neutral": neutral, "bounds": bounds}
    if neutral is not NOT_SET and default is NOT_SET:
        default = neutral
    if default is NOT_SET:
        return dataclasses.field(metadata=metadata)
    if isinstance(default, dict):
        return dataclasses.field(default_factory=default.copy, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@functools.cache
def _fields(kind: type) -> dict[str, tuple[Any, dataclasses.Field[Any]]]:
    hints = get_type_hints(kind)
    return {f.name: (hints[f.name], f) for f in dataclasses.fields(kind)}


def names(kind: type) -> list[str]:
    """The keys of a specification, in the order of their declaration."""
    return list(_fields(kind))


def read(kind: Callable[..., T], values: Mapping[str, Any], prefix: str = "") -> T:
    """Make the dataclass ``kind`` from plain values; ``prefix`` is the dotted path used in messages.

    Raises ConfigError for unknown, missing, ill-typed or out-of-range values.
    """
    fields = _fields(kind)
    for key in values:
        if key not in fields:
            raise ConfigError(prefix + str(key), values[key], f"there is no such key; {one_of(key, fields)}")
    arguments = {}
    for name, (hint, field) in fields.items():
        if name in values:
            arguments[name] = check(prefix + name, values[name], hint, field.metadata)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ConfigError(prefix + name, None, f"is required: {field.metadata['doc']}")
    return kind(**arguments)


def check(key: str, value: Any, hint: Any, metadata: Mapping[str, Any]) -> Any:
    """``value`` in the type ``hint``, within the bounds of ``metadata``; ConfigError otherwise."""
    converted = _convert(key, value, hint, metadata["doc"])
    if metadata["choices"] and converted not in metadata["choices"]:
        raise ConfigError(key, value, f"{one_of(value, metadata['choices'])}: {metadata['doc']}")
    for number in converted if isinstance(converted, tuple) else [converted]:
        if isinstance(number, (int, float)) and not isinstance(number, bool):
            _check_bounds(key, number, metadata)
    return converted


_COMPARE: dict[str, tuple[str, Callable[[float, float], bool]]] = {
    "at_least": ("at least", lambda x, bound: x >= bound),
    "above": ("above", lambda x, bound: x > bound),
    "at_most": ("at most", lambda x, bound: x <= bound),
    "below": ("below", lambda x, bound: x < bound),
}


def _check_bounds(key: str, value: float, metadata: Mapping[str, Any]) -> None:
    bounds = {name: bound for name, bound in metadata["bounds"].items() if bound is not None}
    if all(_COMPARE[name][1](value, bound) for name, bound in bounds.items()):
        return
    words = " and ".join(f"{_COMPARE[name][0]} {bound}" for name, bound in bounds.items())
    raise ConfigError(key, value, f"must be {words}: {metadata['doc']}")


def _convert(key: str, value: Any, hint: Any, doc: str) -> Any:
    def refuse(wanted: str) -> ConfigError:
        return ConfigError(key, value, f"must be {wanted}: {doc}")

    origin = get_origin(hint)
    if origin in (types.UnionType, Union):
        options = get_args(hint)
        if value is None and type(None) in options:
            return None
        if dataclasses.is_dataclass(value) and isinstance(value, options):
            return value
        return _convert(key, value, options[0], doc)
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise refuse("a list")
        arguments = get_args(hint)
        if arguments[-1] is not Ellipsis and len(arguments) != len(value):
            raise refuse(f"a list of {len(arguments)} numbers")
        return tuple(_convert(key, item, arguments[0], doc) for item in value)
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise refuse("a mapping")
        _refuse_infinite(key, value, doc)
        return dict(value)
    if hint is float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise refuse("a number")
        _refuse_infinite(key, value, doc)
        return float(value)
    if hint is int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise refuse("a whole number")
        return value
    if not isinstance(value, hint):
        raise refuse({bool: "true or false", str: "a word"}.get(hint, hint.__name__))
    return value


def _refuse_infinite(key: str, value: Any, doc: str) -> None:
    """ConfigError for a number, wherever it stands inside ``value``, that no float can hold: a run's identity is JSON."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            _refuse_infinite(f"{key}.{name}", item, doc)
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            _refuse_infinite(f"{key}[{number}]", item, doc)
    elif isinstance(value, (int, float)) and not abs(value) <= sys.float_info.max:
        raise ConfigError(key, value, f"must be a finite number: {doc}")


def document(spec: Any, *, identity: bool) -> dict[str, Any]:
    """``spec`` as plain JSON values; with ``identity`` without labels and without keys at their neutral value."""
    result: dict[str, Any] = {}
    kind: type = type(spec)
    for name, (_, field) in _fields(kind).items():
        value = getattr(spec, name)
        if identity and (field.metadata["label"] or _is_neutral(value, field.metadata["neutral"])):
            continue
        result[name] = _plain(value, identity)
    return result


def _is_neutral(value: Any, neutral: Any) -> bool:
    return neutral is not NOT_SET and bool(value == neutral) and type(value) is type(neutral)


def _plain(value: Any, identity: bool) -> Any:
    if dataclasses.is_dataclass(value):
        return document(value, identity=identity)
    if isinstance(value, tuple):
        return [_plain(item, identity) for item in value]
    return value
