"""The results table: its columns with meaning and unit, their order and their dtypes.

One row a run. Meanings come from the settings' own declarations (accum_sweeps.plan) and from record.metrics, so that each
fact stands once. Columns are only ever added; ``SCHEMA_VERSION`` stands in the Parquet files' metadata.
"""

import dataclasses
import functools
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, Union, get_args, get_origin, get_type_hints

import pandas as pd
from pandas.api.types import is_bool_dtype, is_integer_dtype, is_numeric_dtype, pandas_dtype

from accum_sweeps.plan.parts import KINDS
from accum_sweeps.plan.spec import RunSpec, Setup
from accum_sweeps.record.metrics import FINAL_UNITS, LADDER_UNITS, ONE_STEP_UNITS, TEXT_UNITS

SCHEMA_VERSION = 1
Values: TypeAlias = "pd.Series[Any]"
TEXT = pd.Series(["", None]).dtype
ROW_KEYS = ("run_id", "env_id")
WITHOUT_GAPS = {"text": "str", "int": "int64", "float": "float64", "bool": "bool"}
WITH_GAPS = {"text": "str", "int": "Int64", "float": "float64", "bool": "boolean"}


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column: ``kind`` is text, int, float or bool; ``may_be_missing`` decides the dtype for int (Int64) and bool (boolean)."""

    name: str
    kind: str
    meaning: str
    may_be_missing: bool = True

    @property
    def dtype(self) -> str:
        """The pandas dtype; text is pandas' own str (object where pandas is told not to infer str)."""
        return (WITH_GAPS if self.may_be_missing else WITHOUT_GAPS)[self.kind]


# Columns that are neither settings nor final values of record.metrics.
_OWN = {
    "run_id": ("text", "hash of everything that can change a number", False),
    "env_id": ("text", "fingerprint of torch build, hardware and flags where the run was done; missing while it has not started", True),
    "sweep": ("text", "name of the sweep; a run that two sweeps share has a row in each", False),
    "setup": ("text", "all settings except accumulation factor, seeds, control and replicate, in words", False),
    "setup_id": ("text", "hash of the setup: equal for equal settings, in every sweep", False),
    "cell": ("text", "setup and accumulation factor, in words", False),
    "micro_batch": ("int", "samples of one forward and backward pass: global_batch / (ranks x accum)", False),
    "status": ("text", "planned, running, finished, diverged, failed, lost or cancelled", False),
    "attempt": ("int", "number of the newest attempt, from 1", True),
    "git_commit": ("text", "commit of the working directory that the run was started from", True),
    "revision": ("int", "newest revision of the plan that holds the run; runs of older ones stay once they are done", False),
    "spec_version": ("int", "version of the rules that make run_id", False),
    "error": ("text", "why the run failed, was lost or stopped early", True),
}
# A run's final ``steps`` is what was done; the setting of that name is what was asked for and keeps the column.
FINAL_COLUMNS = {("steps_done" if name == "steps" else name): meaning for name, meaning in FINAL_UNITS.items()}
_FINAL_INTS = ("tokens", "steps_done", "diverged_step")
OUTCOME_COLUMNS = ("env_id", "status", "attempt", *FINAL_COLUMNS, "git_commit", "error")

_ORDER = (
    *("run_id", "env_id", "sweep", "setup", "cell", "setup_id"),
    *("subject", "subject.", "model", "model.", "optimizer", "optimizer.", "data", "data."),
    *("fault", "dtype", "accumulator", "accum", "micro_batch", "global_batch", "ranks"),
    *("seed", "seed_init", "seed_data", "seed_dropout", "control", "replicate", "status", "attempt", "steps", "steps_done", "tokens"),
    *("train_loss_final", "eval_loss_final", "eval_perplexity_final", "eval_loss_ema_final", "train_loss_area"),
    *("diverged_step", "wall_s", "peak_mem_gb", "?"),
    *("device", "threads", "deterministic", "eval_every", "probe_steps", "git_commit", "spec_version", "revision", "error"),
)


@functools.cache
def known_columns() -> dict[str, Column]:
    """All columns that this release defines, by name, in the order of the table."""
    found = {name: Column(name=name, kind=kind, meaning=doc, may_be_missing=gaps) for name, (kind, doc, gaps) in _OWN.items()}
    for name, meaning in FINAL_COLUMNS.items():
        found[name] = Column(name=name, kind="int" if name in _FINAL_INTS else "float", meaning=meaning)
    for name, meaning in ONE_STEP_UNITS.items():
        found[f"{name}_final"] = Column(name=f"{name}_final", kind="float", meaning=f"measure=one_step: {meaning}")
    for name, meaning in LADDER_UNITS.items():
        found[f"{name}_final"] = Column(name=f"{name}_final", kind="float", meaning=f"measure=ladder: {meaning}")
    for name, meaning in TEXT_UNITS.items():
        found[name] = Column(name=name, kind="text", meaning=meaning)
    for owner in (Setup, RunSpec):
        found |= {name: _column(name, hint, doc, False) for name, hint, doc in _settings(owner) if name not in KINDS and name != "setup"}
    for group in KINDS:
        found |= {column.name: column for column in _group_columns(group)}
    return {name: found[name] for name in in_order(found)}


def setting_columns(results: pd.DataFrame) -> list[str]:
    """The columns of ``results`` that are settings of a setup."""
    own = {name for name, _, _ in _settings(Setup)}
    return [str(name) for name in results if str(name) in own or str(name).partition(".")[0] in KINDS]


def _settings(owner: type) -> list[tuple[str, Any, str]]:
    hints = get_type_hints(owner)
    return [(field.name, hints[field.name], str(field.metadata["doc"])) for field in dataclasses.fields(owner)]


def _column(name: str, hint: Any, meaning: str, may_be_missing: bool) -> Column:
    options = get_args(hint) if get_origin(hint) in (types.UnionType, Union) else (hint,)
    present = [option for option in options if option is not type(None)]
    kind = {int: "int", float: "float", bool: "bool"}.get(present[0], "text")
    if kind == "text" and present[0] is not str:
        meaning += " (JSON)"
    return Column(name=name, kind=kind, meaning=meaning, may_be_missing=may_be_missing or len(present) < len(options))


def _group_columns(group: str) -> Iterable[Column]:
    """The group's own column, its kind, and the settings of all its kinds; a meaning that differs between kinds names them."""
    yield Column(name=group, kind="text", meaning=f"preset of the {group}, a label; not part of the identity", may_be_missing=False)
    yield Column(name=f"{group}.kind", kind="text", meaning=f"one of {', '.join(KINDS[group])}", may_be_missing=False)
    meanings: dict[str, dict[str, list[str]]] = {}
    hints: dict[str, Any] = {}
    for kind, part in KINDS[group].items():
        for name, hint, doc in _settings(part):
            if name != "name" and get_origin(hint) is not Mapping:
                meanings.setdefault(name, {}).setdefault(doc, []).append(kind)
                hints.setdefault(name, hint)
    for name, by_doc in meanings.items():
        words = [doc if len(by_doc) == 1 else f"{', '.join(kinds)}: {doc}" for doc, kinds in by_doc.items()]
        yield _column(f"{group}.{name}", hints[name], "; ".join(words), True)


def in_order(names: Iterable[str]) -> list[str]:
    """``names`` as the table orders them; columns that this release does not define come after their group, or after the final values."""
    places = {name: place for place, name in enumerate(_ORDER)}
    defined = {name: place for place, name in enumerate(_declared())}

    def place(name: str) -> tuple[int, int]:
        if name in places:
            return places[name], 0
        group = name.partition(".")[0] + "."
        return places[group if group in places else "?"], defined.get(name, len(defined))

    return sorted(names, key=place)


@functools.cache
def _declared() -> tuple[str, ...]:
    return tuple(column.name for group in KINDS for column in _group_columns(group))


def typed(frame: pd.DataFrame) -> pd.DataFrame:
    """``frame`` with the table's dtypes and order; further columns get the narrowest of boolean, Int64, float64, str that holds them.

    An empty text counts as missing, so that Parquet and CSV give the same table.
    """
    known = known_columns()
    columns = {name: _as(frame[name], known.get(name)) for name in in_order(frame.columns)}
    return pd.DataFrame(columns, index=frame.index)


def _as(values: Values, column: Column | None) -> Values:
    kind = column.kind if column else _narrowest(values)
    if kind == "text":
        return _text(values)
    if kind == "int" and values.dtype == object:  # whole numbers may arrive as floats (final values do), missing ones as None
        values = values.astype("Float64")
    return values.astype(pandas_dtype(column.dtype if column else WITH_GAPS[kind]))


def _text(values: Values) -> Values:
    if isinstance(TEXT, pd.StringDtype) and values.dtype == TEXT:
        return values.where(values != "")
    missing = values.isna()
    words = [None if gap or value == "" else str(value) for value, gap in zip(values, missing, strict=True)]
    return pd.Series(words, index=values.index, dtype=TEXT)


def _narrowest(values: Values) -> str:
    present = values.dropna()
    if present.dtype == object:
        present = present.infer_objects()
    if is_bool_dtype(present.dtype):
        return "bool"
    if is_integer_dtype(present.dtype):
        return "int"
    return "float" if is_numeric_dtype(present.dtype) or present.empty else "text"


def meaning_of(name: str) -> str:
    """The column's meaning and unit."""
    column = known_columns().get(name)
    return column.meaning if column else "a value of the user's own subject"


def describe(results: pd.DataFrame | None = None) -> pd.DataFrame:
    """The columns of ``results`` (by default all that this release defines) as a table: column, dtype, meaning with unit."""
    known = known_columns()
    names = list(known) if results is None else list(results.columns)
    dtypes = [known[name].dtype if results is None else str(results[name].dtype) for name in names]
    return pd.DataFrame({"column": names, "dtype": dtypes, "meaning": [meaning_of(name) for name in names]})


def markdown() -> str:
    """:func:`describe` of all defined columns as a Markdown table."""
    rows = [f"| `{row.column}` | {row.dtype} | {str(row.meaning).replace('|', chr(92) + '|')} |" for row in describe().itertuples()]
    return "\n".join(["| column | dtype | meaning |", "|---|---|---|", *rows]) + "\n"
