"""Exported tables: results.parquet, results.csv and trajectories.parquet as analysis.export writes them."""

from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from accum_sweeps.analysis.table import SCHEMA_VERSION, known_columns, typed
from accum_sweeps.analysis.trajectories import SCHEMA
from accum_sweeps.plan.errors import UserError

_ARROW = {"text": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}


def read_results(path: Path) -> pd.DataFrame:
    """An exported results table. Raises UserError if it cannot be read or is of a newer release."""
    try:
        return typed(_read_csv(path) if path.suffix == ".csv" else _read_parquet(path))
    except (OSError, ValueError, TypeError, pa.ArrowException) as error:
        hint = "Write it again with action=report; if it is a table of your own, name its columns: accum, seed, response."
        raise UserError(f"{path}: cannot be read as a results table ({error}).\n  {hint}") from None


def _read_parquet(path: Path) -> pd.DataFrame:
    table = pq.read_table(path)
    _check_version(path, (table.schema.metadata or {}).get(b"schema_version"))
    return frame_of(table)


def _read_csv(path: Path) -> pd.DataFrame:
    kinds = {name: _ARROW[column.kind] for name, column in known_columns().items()}
    options = pyarrow.csv.ConvertOptions(column_types=kinds, null_values=[""], strings_can_be_null=True)
    table = pyarrow.csv.read_csv(path, convert_options=options)
    nullable = {pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}
    return frame_of(table, types_mapper=nullable.get)


def frame_of(table: pa.Table, **options: Any) -> pd.DataFrame:
    """``table`` as pandas holds it."""
    frame: pd.DataFrame = table.to_pandas(**options)
    return frame


def _check_version(path: Path, version: bytes | None) -> None:
    if version is not None and int(version) > SCHEMA_VERSION:
        raise UserError(f"{path}: written by a newer release (schema_version {int(version)}, this one reads up to {SCHEMA_VERSION}).")


def read_points(path: Path) -> pd.DataFrame:
    """An exported trajectories.parquet. Raises UserError if it is none."""
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"{path}: cannot be read as a Parquet file ({error})") from None
    missing = [name for name in SCHEMA.names if name not in table.column_names]
    if missing:
        raise UserError(f"{path}: is no table of trajectories; it lacks the columns {', '.join(missing)}")
    _check_version(path, (table.schema.metadata or {}).get(b"schema_version"))
    return frame_of(table)
