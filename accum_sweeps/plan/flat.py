"""Nested settings under dotted names: one name for configuration key, axis, MLflow parameter and table column."""

from collections.abc import Mapping
from typing import Any

from accum_sweeps.plan.parts import KINDS
from accum_sweeps.plan.spec import canonical

Scalar = bool | int | float | str | None


def flatten(values: Mapping[str, Any]) -> dict[str, Scalar]:
    """A specification's ``to_dict()`` as scalars by dotted name, in its order.

    A part's preset name stands under its group alone (``optimizer``, not ``optimizer.name``). Lists become canonical JSON
    text; an empty mapping gives no name.
    """
    result: dict[str, Scalar] = {}
    for key, value in values.items():
        if key in KINDS and isinstance(value, Mapping):
            result[key] = value.get("name")
            _add(result, key, {name: item for name, item in value.items() if name != "name"})
        else:
            _add(result, "", {key: value})
    return result


def _add(result: dict[str, Scalar], prefix: str, values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        name = f"{prefix}.{key}" if prefix else str(key)
        if isinstance(value, Mapping):
            _add(result, name, value)
        else:
            result[name] = canonical(value) if isinstance(value, (list, tuple)) else value
