"""Any CSV, TSV or Parquet file as a frame, its values as they stand in the file."""

import csv
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from accum_sweeps.plan.errors import UserError, one_of

TEXT_FILES, PARQUET_FILES, DATABASES = (".csv", ".tsv"), (".parquet", ".pq"), (".db", ".sqlite", ".sqlite3")
COMMENT = "#"
_SEPARATORS = (",", "\t", ";")
_UNREADABLE = (OSError, ValueError, csv.Error, pa.ArrowException)  # pandas' parser errors are ValueErrors


def check_kind(path: Path) -> None:
    """UserError unless the file's ending says that it is a table."""
    if path.suffix in DATABASES:
        raise UserError(f"{path}: is a database.\n  If it is MLflow's, write sqlite:///{path.absolute()} and the experiment's name.")
    if path.suffix not in (*TEXT_FILES, *PARQUET_FILES):
        raise UserError(f"{path}: {one_of(path.suffix, (*TEXT_FILES, *PARQUET_FILES))}")


def columns_in(path: Path) -> list[str]:
    """The names of the file's columns, without its rows. Raises UserError if it cannot be read as a table."""
    try:
        if path.suffix in PARQUET_FILES:
            return [str(name) for name in pq.read_schema(path).names]
        separator, comments = _form(path)
        return [str(name) for name in pd.read_csv(path, sep=separator, skiprows=comments, nrows=0, encoding="utf-8-sig").columns]
    except _UNREADABLE as error:
        raise _unreadable(path, error) from None


def read_table(path: Path) -> pd.DataFrame:
    """The file's rows; those of a text file as text, so that no digit is lost and labels stay as they are written.

    Lines at the beginning of a text file that start with ``#`` are comments. A text file's separator is the comma, tab or semicolon
    that its header has most of. Raises UserError if it cannot be read as a table.
    """
    try:
        if path.suffix in PARQUET_FILES:
            return pd.read_parquet(path)
        separator, comments = _form(path)
        return pd.read_csv(path, sep=separator, skiprows=comments, dtype=str, encoding="utf-8-sig", skipinitialspace=True, index_col=False)
    except _UNREADABLE as error:
        raise _unreadable(path, error) from None


def _form(path: Path) -> tuple[str, int]:
    """The separator of a text file, and how many lines of comment it begins with."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        for number, line in enumerate(file):
            if not line.startswith(COMMENT):
                return max(_SEPARATORS, key=line.count), number
    return _SEPARATORS[0], 0


def _unreadable(path: Path, error: Exception) -> UserError:
    return UserError(
        f"{path}: cannot be read as a table ({str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__})"
    )
