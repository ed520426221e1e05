"""One column of somebody's table, of whatever dtype, as whole numbers, numbers or words; what cannot be read is marked, not dropped.

Shapes: n rows.
"""

import math
import numbers
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Generic, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from accum_sweeps.analysis.table import Values

NOTHING = frozenset(
    {"", "none", "null", "nan", "na", "n/a", "<na>"}
)  # words by which files and MLflow's parameters say that there is no value
MAX_WHOLE = 2**63 - 1
Value = TypeVar("Value")


@dataclass(frozen=True, kw_only=True)
class Parsed(Generic[Value]):
    """``values`` (n), None where there is none; ``refused`` (n,): there is one, and it is not of the kind that was asked for."""

    values: list[Value | None]
    refused: NDArray[np.bool_]

    @property
    def missing(self) -> NDArray[np.bool_]:
        """Where there is no value (n,), refused ones not included."""
        return np.array([value is None for value in self.values], dtype=np.bool_) & ~self.refused


def parse(values: Values, read: Callable[[Any], Value | None]) -> Parsed[Value]:
    """``read`` of each value that is there; ``read`` gives None for what it refuses."""
    found: list[Value | None] = []
    refused = np.zeros(len(values), dtype=np.bool_)
    for place, (value, is_missing) in enumerate(zip(objects(values), values.isna(), strict=True)):
        if is_missing or (isinstance(value, str) and value.strip().casefold() in NOTHING):
            found.append(None)
            continue
        found.append(read(value))
        refused[place] = found[-1] is None
    return Parsed(values=found, refused=refused)


def objects(values: Values) -> list[Any]:
    """The values as Python objects, whether the column is categorical, backed by Arrow or anything else."""
    found: list[Any] = values.astype(object).tolist()
    return found


def whole(value: Any) -> int | None:
    """``4``, ``4.0``, ``"4"`` and ``"4.0"`` as 4; None for anything that is no whole number of 64 bits, truth values too."""
    if isinstance(value, str):
        try:
            return _bounded(int(value))
        except ValueError:
            pass
    found = number(value)
    if found is None or not found.is_integer():
        return None
    return _bounded(int(value) if isinstance(value, numbers.Integral) else int(found))


def _bounded(value: int) -> int | None:
    return value if abs(value) <= MAX_WHOLE else None


def number(value: Any) -> float | None:
    """A number, or text that is one, as float; None for anything else, truth values too."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (str, numbers.Real, Decimal)):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def word(value: Any) -> str:
    """The value as a label shows it: equal numbers alike however they are written (``1e-3`` and 0.001, ``4`` and 4.0), none rounded."""
    found = number(value)
    if found is None or not math.isfinite(found):
        return str(value).strip()
    if not found.is_integer():
        return repr(found)
    return str(int(value) if not isinstance(value, str) or value.strip().lstrip("+-").isdecimal() else int(found))


def words(values: Values) -> list[str]:
    """A column as labels show it, ``none`` where there is no value; numbers as :func:`word` writes them if all values are numbers."""
    parsed = parse(values, number)
    if not parsed.refused.any():
        return ["none" if gap else word(value) for value, gap in zip(objects(values), parsed.missing, strict=True)]
    return ["none" if gap else str(value).strip() for value, gap in zip(objects(values), values.isna(), strict=True)]


def is_numeric(values: Values) -> bool:
    """Whether the column holds numbers, or text that is all numbers (a truth value or a time is none)."""
    if pd.api.types.is_bool_dtype(values.dtype):
        return False
    parsed = parse(values, number)
    return bool(not parsed.refused.any() and not parsed.missing.all())
