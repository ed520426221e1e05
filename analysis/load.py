"""From a root, a sweep's folder or an exported file to tidy tables.

The run directories are the truth. A sweep's results.parquet saves reading a finished run again: what it says of a run that is
done never changes, so only the other runs' directories are read.
"""

import warnings
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from accum_sweeps.analysis.export import RESULTS, Fresh, point_tables, read_earlier, scan_with_points
from accum_sweeps.analysis.scan import Scan, scan
from accum_sweeps.analysis.table import SCHEMA_VERSION, known_columns, typed
from accum_sweeps.analysis.trajectories import SCHEMA
from accum_sweeps.plan.errors import UserError, one_of
from accum_sweeps.record.store import open_root
from accum_sweeps.record.sweep import SweepDir, open_sweep, sweep_names

_ARROW = {"text": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}


class DamagedRunWarning(UserWarning):
    """A run directory is damaged; the message names it."""


def load(source: str | Path, *, sweep: str | None = None) -> pd.DataFrame:
    """The results table, one row a run (columns: ``accum_sweeps.analysis.table.describe()``).

    ``source`` is a root (all its sweeps, or the one named by ``sweep``), a sweep's folder, or an exported results.parquet or
    results.csv. A run that several sweeps share has a row in each. Damaged run directories are named in warnings.
    Raises UserError if there is nothing to read at ``source``.
    """
    path = Path(source).expanduser()
    if path.is_file():
        table = _read_file(path)
        return table if sweep is None else _only(table, sweep, path)
    return typed(pd.concat([_results(found) for found in _sweeps(path, sweep)], ignore_index=True))


def trajectories(source: str | Path, *, sweep: str | None = None) -> pd.DataFrame:
    """The measured points, one row a value: run_id, env_id, step, key, value, time.

    ``source`` as for :func:`load`, or an exported trajectories.parquet. Points of a run that several sweeps share come once.
    Raises UserError if there is nothing to read at ``source``.
    """
    path = Path(source).expanduser()
    if path.is_file():
        return _read_points(path)
    seen: set[tuple[str, str]] = set()
    tables = [table for found in _sweeps(path, sweep) for table in _points(found, seen)]
    return _frame(pa.concat_tables([SCHEMA.empty_table(), *tables]).unify_dictionaries())


def _sweeps(path: Path, name: str | None) -> list[SweepDir]:
    """The planned sweeps that ``path`` stands for: those of a root, or the one whose folder it is."""
    if not path.is_dir():
        raise UserError(f"{path}: no such file or folder.\n  Give a root, a sweep's folder, or an exported results.parquet or csv.")
    if path.parent.name == "sweeps" and (path.parent.parent / "root.json").exists():
        path, name = path.parent.parent, name or path.name
    root = open_root(path)
    names = sweep_names(root)
    if not names:
        raise UserError(f"{path}: no sweep is planned in this root yet.\n  Start one with: python -m accum_sweeps +grid=NAME root={path}")
    if name is not None and name not in names:
        raise UserError(f"sweep={name!r} in {path}: {one_of(name, names)}")
    return [open_sweep(root, each) for each in names if name in (None, each)]


def _results(sweep: SweepDir) -> pd.DataFrame:
    found = scan(sweep, read_earlier(sweep.path / RESULTS))
    results = found.results([(position, outcome.values) for position, outcome in found.read()])
    _warn(found)
    return results


def _points(sweep: SweepDir, seen: set[tuple[str, str]]) -> list[pa.Table]:
    """The sweep's points but those of runs in ``seen``, to which its own runs are added."""
    found, _ = scan_with_points(sweep)
    found.leave_out(seen)
    fresh: list[Fresh] = []
    tables = list(point_tables(found, fresh))
    seen |= found.reused_keys() | {(found.planned.runs[position].run_id, str(values["env_id"])) for position, values in fresh}
    _warn(found)
    return tables


def _warn(found: Scan) -> None:
    for problem in found.problems:
        warnings.warn(problem, DamagedRunWarning, stacklevel=4)


def _read_file(path: Path) -> pd.DataFrame:
    readers = {".parquet": _read_parquet, ".csv": _read_csv}
    if path.suffix not in readers:
        raise UserError(f"{path}: {one_of(path.suffix, readers)}")
    try:
        table = readers[path.suffix](path)
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"{path}: cannot be read as a table ({error}).\n  Write it again with action=report.") from None
    missing = [name for name in ("run_id", "setup_id", "accum", "seed", "status") if name not in table.columns]
    if missing:
        raise UserError(f"{path}: is no results table; it lacks the columns {', '.join(missing)}")
    return typed(table)


def _read_parquet(path: Path) -> pd.DataFrame:
    table = pq.read_table(path)
    _check_version(path, (table.schema.metadata or {}).get(b"schema_version"))
    return _frame(table)


def _read_csv(path: Path) -> pd.DataFrame:
    kinds = {name: _ARROW[column.kind] for name, column in known_columns().items()}
    options = pyarrow.csv.ConvertOptions(column_types=kinds, null_values=[""], strings_can_be_null=True)
    table = pyarrow.csv.read_csv(path, convert_options=options)
    nullable = {pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}
    return _frame(table, types_mapper=nullable.get)


def _frame(table: pa.Table, **options: Any) -> pd.DataFrame:
    frame: pd.DataFrame = table.to_pandas(**options)
    return frame


def _check_version(path: Path, version: bytes | None) -> None:
    if version is not None and int(version) > SCHEMA_VERSION:
        raise UserError(f"{path}: written by a newer release (schema_version {int(version)}, this one reads up to {SCHEMA_VERSION}).")


def _only(table: pd.DataFrame, sweep: str, path: Path) -> pd.DataFrame:
    names: list[str] = table["sweep"].unique().tolist() if "sweep" in table else []
    if sweep not in names:
        raise UserError(f"sweep={sweep!r} in {path}: {one_of(sweep, names)}")
    return table[table["sweep"] == sweep].reset_index(drop=True)


def _read_points(path: Path) -> pd.DataFrame:
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"{path}: cannot be read as a Parquet file ({error})") from None
    missing = [name for name in SCHEMA.names if name not in table.column_names]
    if missing:
        raise UserError(f"{path}: is no table of trajectories; it lacks the columns {', '.join(missing)}")
    _check_version(path, (table.schema.metadata or {}).get(b"schema_version"))
    return _frame(table)
