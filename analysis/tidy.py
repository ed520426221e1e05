"""From any table to the rows that verdicts and components take: a person names its columns; what is left out or assumed is told.

Every run of somebody's experiment becomes a row with the columns run_id, setup, setup_id, accum, seed, control, replicate, status,
and the responses under their own names. n is the number of rows.
"""

from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from accum_sweeps.analysis.cells import NONE
from accum_sweeps.analysis.named_columns import STATUS_WORDS, Roles, Source, response_column
from accum_sweeps.analysis.parse_columns import number, objects, parse, whole, word, words
from accum_sweeps.analysis.table import Values
from accum_sweeps.analysis.verdict import PERPLEXITY
from accum_sweeps.analysis.words import listed
from accum_sweeps.plan.errors import UserError, one_of
from accum_sweeps.plan.spec import CONTROLS
from accum_sweeps.plan.words import counted

OWN = ("run_id", "setup", "setup_id", "accum", "seed", "control", "replicate", "status")
ALL_ROWS = "all rows"  # the setup_id of a table whose setups are not told apart: the same in an earlier table
LARGEST, SMALLEST = 1e150, 1e-100  # beyond these a square is no number or zero; MLflow keeps infinity as 1.8e308
MOST_ROWS = 3


class TableWarning(UserWarning):
    """What was left out of a table, or assumed about it; the message says how many rows and why."""


@dataclass(kw_only=True)
class Tidy:
    """``results`` is the tidy table, ``notes`` say what was left out or assumed, a sentence each."""

    results: pd.DataFrame
    notes: list[str] = field(default_factory=list)


def tidy(source: Source, roles: Roles) -> Tidy:
    """The tidy table of ``source``, whose columns ``roles`` names.

    Raises UserError for a column that is not there or not clear, for an accumulation factor that is no positive whole number, for a
    status or control that is none, and where no row is left.
    """
    notes: list[str] = []
    source = _without_copies(source, notes)
    found = roles.resolved(source, notes)
    source = _without_gaps(source, found, notes)
    rows = {
        "run_id": pd.Series(source.run_ids(), dtype=object).astype(str),
        **_setups(source, found),
        "accum": pd.Series(_accum(source, str(found.accum)), dtype="int64"),
        "seed": _seeds(source, found.seed, notes),
        "control": pd.Series(_controls(source, found.control)),
        "status": pd.Series(_statuses(source, found.status)),
    }
    results = pd.DataFrame(rows)
    results["replicate"] = _replicates(source, results, found.replicate, notes)
    if "env_id" in source.frame:
        results["env_id"] = pd.Series(words(source.frame["env_id"]))
    if found.status is None and found.response:
        results["status"] = _with_diverged(source, found.response[0], results["status"], notes)
    values = {name: _response(source, name, results["status"], notes) for name in found.response}
    own = [name for name in (*OWN, "env_id") if name in results]
    return Tidy(results=pd.DataFrame({**{name: results[name] for name in own}, **values}), notes=[f"{source.name}: {n}" for n in notes])


def _without_copies(source: Source, notes: list[str]) -> Source:
    """``source`` with each of its rows once. Rows with an id of their own, as MLflow's, are never the same."""
    if not len(source.frame):
        raise UserError(f"{source.name}: has no rows")
    copies = np.zeros(len(source.frame), dtype=np.bool_) if source.ids else _copies(source.frame)
    if copies.any():
        notes.append(f"{_rows(copies)} the same as an earlier row in every column, counted once ({_which(source, copies)})")
    return source.keep(~copies)


def _copies(frame: pd.DataFrame) -> NDArray[np.bool_]:
    try:
        return frame.duplicated().to_numpy(dtype=np.bool_)
    except TypeError:  # a column of lists
        return frame.astype(str).duplicated().to_numpy(dtype=np.bool_)


def _without_gaps(source: Source, roles: Roles, notes: list[str]) -> Source:
    """``source`` without the rows that lack an accumulation factor, a seed or a status."""
    for role in ("accum", "seed", "status"):
        name = getattr(roles, role)
        missing = parse(source.frame[name], word).missing if name is not None else np.zeros(len(source.frame), dtype=np.bool_)
        if missing.any():
            notes.append(f"{_rows(missing)} left out, without a value of {name} ({_which(source, missing)})")
        source = source.keep(~missing)
        if not len(source.frame):
            raise UserError(f"{source.name}: no row has a value in the column {name!r}.\n  Name another one for {role}.")
    return source


def _accum(source: Source, name: str) -> list[int | None]:
    parsed = parse(source.frame[name], whole)
    wrong = [place for place, k in enumerate(parsed.values) if k is None or k < 1]
    if wrong:
        value = objects(source.frame[name])[wrong[0]]
        raise UserError(
            f"{source.name}: column {name!r}, {source.label(wrong[0])}: {value!r} is no accumulation factor; allowed are positive whole "
            "numbers, as in 1, 4 or 16.\n  Correct or remove the row, or name another column for accum."
        )
    return parsed.values


def _seeds(source: Source, name: str | None, notes: list[str]) -> Values:
    """Whole numbers where all are, else words."""
    if name is None:
        notes.append("no column of seeds was named, so that all rows count as one seed")
        return pd.Series(np.zeros(len(source.frame), dtype=np.int64))
    parsed = parse(source.frame[name], whole)
    if parsed.refused.any():
        return pd.Series(words(source.frame[name]))
    return pd.Series(parsed.values, dtype="int64")


def _controls(source: Source, name: str | None) -> list[str]:
    if name is None:
        return [NONE] * len(source.frame)
    return _of_words(source, name, {kind: kind for kind in CONTROLS}, NONE)


def _statuses(source: Source, name: str | None) -> list[str]:
    if name is None:
        return ["finished"] * len(source.frame)
    return _of_words(source, name, STATUS_WORDS, "")


def _of_words(source: Source, name: str, allowed: dict[str, str], missing: str) -> list[str]:
    """The column's words as ``allowed`` translates them, in whatever case they are; UserError for any other."""
    found = [missing if value is None else value.strip().casefold() for value in parse(source.frame[name], str).values]
    for place, value in enumerate(found):
        if value not in allowed and value != missing:
            given = objects(source.frame[name])[place]
            raise UserError(f"{source.name}: column {name!r}, {source.label(place)}: {given!r} {one_of(value, allowed)}")
    return [allowed.get(value, value) for value in found]


def _setups(source: Source, roles: Roles) -> "dict[str, pd.Series[str]]":
    """The setup's name and its id: the settings in words, or the name of the table."""
    size = len(source.frame)
    if not roles.setup:
        return {"setup": pd.Series([source.short_name] * size), "setup_id": pd.Series([ALL_ROWS] * size)}
    columns = [[f"{plain(name)}={value}" for value in words(source.frame[name])] for name in roles.setup]
    labels = pd.Series([" ".join(row) for row in zip(*columns, strict=True)])
    return {"setup": labels, "setup_id": labels}


def plain(name: str) -> str:
    """The name without what MLflow puts before it."""
    return name.removeprefix("params.").removeprefix("tags.").removeprefix("metrics.")


def _replicates(source: Source, results: pd.DataFrame, name: str | None, notes: list[str]) -> NDArray[np.int64]:
    """The number of each row among the reruns of its cell: as the column orders them, else in the order of the table."""
    cell = [results[column] for column in ("setup_id", "accum", "seed", "control")]
    if name is None:
        numbers = np.asarray(results.groupby(cell, sort=False).cumcount(), dtype=np.int64)
        repeated = numbers > 0
        what = "a rerun" if repeated.sum() == 1 else "reruns"
        hint = f"of an earlier row, taken as {what}; where they differ in a setting, name its column for setup"
    else:
        numbers = _order(source, name)
        repeated = results.assign(replicate=numbers).duplicated(["setup_id", "accum", "seed", "control", "replicate"]).to_numpy()
        hint = f"of an earlier row, and its {name}, taken as further reruns"
    if repeated.any():
        shared = "the setup, accumulation factor and seed"
        notes.append(f"{_rows(repeated, 'has', 'have')} {shared} {hint} ({_which(source, repeated)})")
    return numbers


def _order(source: Source, name: str) -> NDArray[np.int64]:
    parsed = parse(source.frame[name], whole)
    if parsed.refused.any():
        return np.unique(np.array(words(source.frame[name]), dtype=np.str_), return_inverse=True)[1].astype(np.int64)
    return np.array([0 if value is None else value for value in parsed.values], dtype=np.int64)


def _response(source: Source, name: str, statuses: "pd.Series[str]", notes: list[str]) -> NDArray[np.float64]:
    """The response of each row, NaN where there is none; why there is none is told."""
    values = response_column(source, name)
    parsed = parse(values, number)
    if parsed.refused.any():
        first = objects(values)[int(np.argmax(parsed.refused))]
        notes.append(f"{_rows(parsed.refused, 'holds', 'hold')} no number in {name}, as in {first!r} ({_which(source, parsed.refused)})")
    found = np.array([np.nan if value is None else value for value in parsed.values], dtype=np.float64)
    if PERPLEXITY.search(name) and (found <= 0).any():
        notes.append(f"{_rows(found <= 0, 'has', 'have')} a {name} that is not above 0, which none can be ({_which(source, found <= 0)})")
        found[found <= 0] = np.nan
    found[np.abs(found) > LARGEST] = np.nan
    largest = np.nanmax(np.abs(found), initial=0.0)
    if 0 < largest < SMALLEST:
        raise UserError(
            f"{source.name}: no value of {name} is above {SMALLEST:g} in size, their squares would vanish.\n  Give it in another unit."
        )
    without = np.isnan(found) & (statuses == "finished").to_numpy()
    if without.any():
        notes.append(f"{counted(int(without.sum()), 'finished run')} without a finite {name} ({_which(source, without)})")
    return found


def _with_diverged(source: Source, name: str, statuses: "pd.Series[str]", notes: list[str]) -> "pd.Series[str]":
    """Without a column of statuses a run whose response is infinite has diverged; one that is not a number may as well be missing."""
    found = np.array([np.nan if v is None else v for v in parse(response_column(source, name), number).values], dtype=np.float64)
    diverged = np.abs(found) > LARGEST
    if diverged.any():
        notes.append(f"{_rows(diverged, 'has', 'have')} an infinite {name}, taken as diverged ({_which(source, diverged)})")
    return statuses.mask(diverged, "diverged")


def _rows(mask: NDArray[np.bool_], one: str = "is", many: str = "are") -> str:
    number_of = int(mask.sum())
    return f"1 row {one}" if number_of == 1 else f"{number_of} rows {many}"


def _which(source: Source, mask: NDArray[np.bool_]) -> str:
    """``row 3, row 5 and 12 more``."""
    places = np.flatnonzero(mask)
    more = len(places) - MOST_ROWS
    return listed([*(source.label(int(place)) for place in places[:MOST_ROWS]), *([f"{more} more"] if more > 0 else [])])
