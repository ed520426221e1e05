"""Which column of somebody's table holds what: names as the person gives them, found in the table or refused with what there is."""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from accum_sweeps.analysis.parse_columns import is_numeric, number, parse
from accum_sweeps.analysis.table import Values
from accum_sweeps.analysis.words import listed
from accum_sweeps.plan.errors import UserError, one_of
from accum_sweeps.plan.judging import RESPONSE
from accum_sweeps.plan.spec import CONTROLS
from accum_sweeps.record.state import STATUSES

# The statuses of the results table by the words for them, MLflow's among these.
STATUS_WORDS = {status: status for status in STATUSES} | {"scheduled": "planned", "killed": "cancelled", "canceled": "cancelled"}
PREFIXES = ("params.", "metrics.", "tags.")  # of MLflow's columns
MOST_NAMES = 20


@dataclass(frozen=True, kw_only=True)
class Source:
    """A table as it came. ``name`` is for messages, ``short_name`` for the setup that all its rows make.

    ``frame`` has text column names, each once, and counts its rows from 0; ``places`` (n,) are the rows' numbers in the original table.
    ``labels`` name the original rows in messages, ``ids`` in the table, each another; ``row 1``, ... without them. Rows without ids that
    are equal are copies of one another.
    """

    name: str
    short_name: str
    frame: pd.DataFrame
    places: NDArray[np.intp]
    labels: Sequence[str] = ()
    ids: Sequence[str] = ()

    def label(self, row: int) -> str:
        """The row as a person finds it."""
        place = int(self.places[row])
        return self.labels[place] if self.labels else f"row {place + 1}"

    def run_ids(self) -> list[str]:
        """An id for each row, different from all others."""
        return [self.ids[place] for place in self.places] if self.ids else [self.label(row) for row in range(len(self.places))]

    def keep(self, mask: NDArray[np.bool_]) -> "Source":
        """The rows of ``mask``."""
        return self if mask.all() else replace(self, frame=self.frame[mask].reset_index(drop=True), places=self.places[mask])


def make_source(frame: pd.DataFrame, name: str, short_name: str = "", *, labels: Sequence[str] = (), ids: Sequence[str] = ()) -> Source:
    """A Source of ``frame``; UserError where two of its columns have one name."""
    plain = frame.reset_index(drop=True)
    plain.columns = pd.Index([str(column) for column in frame.columns], dtype=object)
    twice = plain.columns[plain.columns.duplicated()].unique().tolist()
    if twice:
        raise UserError(f"{name}: several columns are called {listed(twice)}.\n  Rename them, so that a name means one column.")
    return Source(name=name, short_name=short_name or name, frame=plain, places=np.arange(len(plain)), labels=labels, ids=ids)


@dataclass(frozen=True, kw_only=True)
class Roles:
    """The columns of a table by what they hold; None or empty where the person named none."""

    accum: str | None = None
    seed: str | None = None
    replicate: str | None = None
    control: str | None = None
    status: str | None = None
    response: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()

    def named(self) -> dict[str, str]:
        """What the person named besides the response, by role."""
        single = {item.name: getattr(self, item.name) for item in fields(self) if item.name not in ("response", "setup")}
        return {role: name for role, name in single.items() if name is not None} | ({"setup": ",".join(self.setup)} if self.setup else {})

    def resolved(self, source: Source, notes: list[str]) -> "Roles":
        """The roles with the table's own names. Columns that are called as their role need not be named; which were taken so is told.

        Raises UserError for a name that is not there or stands for several columns, and where there is no accumulation factor.
        """
        found = {role: find(source, name, role) for role, name in self.named().items() if role != "setup"}
        setup = tuple(find(source, name, "setup") for name in self.setup)
        free = [role for role in _SINGLE if role not in found and not {*candidates(source, role)} & {*found.values(), *setup}]
        taken = {role: name for role in free if (name := _same_name(source, role, notes))}
        if taken:
            notes.append(f"taken from the columns of that name: {', '.join(taken)}")
        if "accum" not in found and "accum" not in taken:
            raise UserError(f"{source.name}: no column of accumulation factors is named.\n  Name it as accum. {columns_of(source)}")
        columns = Roles(**found, **taken, response=self.response or (RESPONSE,), setup=setup)
        columns._check_apart(source)
        return columns

    def _check_apart(self, source: Source) -> None:
        """One column cannot be accumulation factor and seed at once."""
        used: dict[str, str] = {}
        for role in ("accum", "seed", "replicate", "control"):
            name = getattr(self, role)
            if name in used:
                raise UserError(f"{source.name}: the column {name!r} is named for {used[name]} and for {role}; it can be one of them")
            used |= {} if name is None else {name: role}
        for name in self.response:
            for column in candidates(source, name):
                if column in (*used, *self.setup):
                    raise UserError(f"response={name!r}: the column {column!r} is named for {used.get(column, 'setup')} already")
            if name in RESERVED:
                raise UserError(f"response={name!r}: the tidy table has a column of its own of that name.\n  Rename the response.")


_SINGLE = ("accum", "seed", "replicate", "control", "status")
RESERVED = (*_SINGLE, "run_id", "env_id", "setup", "setup_id")


def find(source: Source, name: str, role: str) -> str:
    """The column that ``name`` stands for: of that name, or that behind params., metrics. or tags.; UserError unless it is one."""
    found = candidates(source, name)
    if len(found) > 1:
        raise UserError(f"{source.name}: {role}={name!r} may be {' or '.join(found)}.\n  Write the whole name.")
    if not found:
        raise UserError(f"{source.name}: there is no column {role}={name!r}. {columns_of(source, name)}")
    return found[0]


def candidates(source: Source, name: str) -> list[str]:
    """The columns that ``name`` may stand for; one that is called just so is meant."""
    if name in source.frame:
        return [name]
    return [prefix + name for prefix in PREFIXES if prefix + name in source.frame]


def _same_name(source: Source, role: str, notes: list[str]) -> str:
    """The column called as the role; status and control only where they hold the words that these columns hold here."""
    found = candidates(source, role)
    if len(found) != 1:
        return ""
    allowed = {"control": CONTROLS, "status": STATUS_WORDS}.get(role)
    strange = [] if allowed is None else [w for w in parse(source.frame[found[0]], str).values if w and w.strip().casefold() not in allowed]
    if strange:
        words = one_of(strange[0], allowed or ())
        raise UserError(
            f"{source.name}: column {found[0]!r}: {strange[0]!r} {words}.\n  Correct it, rename the column, or name another for {role}."
        )
    return found[0]


def response_column(source: Source, name: str) -> Values:
    """The column of a response; UserError unless it is there and holds a number."""
    if not candidates(source, name):
        numeric = [str(column) for column in source.frame if is_numeric(source.frame[column])]
        raise UserError(f"{source.name}: there is no column response={name!r}. {_of(name, numeric, 'columns of numbers')}")
    values: Values = source.frame[find(source, name, "response")]
    parsed = parse(values, number)
    if parsed.refused.any() and all(value is None for value in parsed.values):
        numeric = [str(column) for column in source.frame if is_numeric(source.frame[column])]
        first = next(value for value in values.dropna() if str(value).strip())
        raise UserError(f"{source.name}: response={name!r} holds no numbers, as in {first!r}. {_of(name, numeric, 'columns of numbers')}")
    return values


def columns_of(source: Source, name: str = "") -> str:
    """What columns there are, for a message; of many only those like ``name``."""
    return _of(name, [str(column) for column in source.frame], "columns")


def _of(name: str, names: Iterable[str], what: str) -> str:
    found = list(names)
    if len(found) <= MOST_NAMES:
        return f"It {one_of(name, found)}" if name else f"The table has the {what} {', '.join(found)}"
    near: list[Any] = difflib.get_close_matches(name, found, n=5, cutoff=0.4) or found[:MOST_NAMES]
    return f"The table has {len(found)} {what}, among them {', '.join(near)}"
