"""A sweep's tables on disk: results.parquet, results.csv, trajectories.parquet, each whole or absent."""

import itertools
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from accum_sweeps.analysis.scan import Scan, scan
from accum_sweeps.analysis.table import SCHEMA_VERSION, meaning_of, typed
from accum_sweeps.analysis.trajectories import SCHEMA, Curve, batches, kept_batches
from accum_sweeps.record.files import write_atomic
from accum_sweeps.record.sweep import SweepDir

Fresh = tuple[int, dict[str, Any]]  # position in the plan, outcome columns
RESULTS, RESULTS_CSV, TRAJECTORIES = "results.parquet", "results.csv", "trajectories.parquet"


@dataclass(frozen=True, kw_only=True)
class WrittenTables:
    """The results table, where the tables are, and what is damaged (one sentence each, with the path)."""

    results: pd.DataFrame
    results_path: Path
    csv_path: Path
    trajectories_path: Path
    problems: tuple[str, ...]


def write_tables(sweep: SweepDir) -> WrittenTables:
    """Bring the sweep's tables up to date from its run directories; what is done already is not read again.

    Raises UserError if the sweep is not planned, OSError if the tables cannot be written.
    """
    paths = {name: sweep.path / name for name in (RESULTS, RESULTS_CSV, TRAJECTORIES)}
    found, export = scan_with_points(sweep)
    fresh: list[Fresh] = []
    if not export or not found.is_unchanged:
        # The trajectories first: a results table never takes points for exported that are not.
        export = uuid.uuid4().hex
        write_atomic(paths[TRAJECTORIES], lambda file: _write_points(file, point_tables(found, fresh), export))
    results = found.results(fresh)
    table = pa.Table.from_pandas(results, preserve_index=False)
    write_atomic(paths[RESULTS_CSV], lambda file: pyarrow.csv.write_csv(table, file))
    write_atomic(paths[RESULTS], lambda file: pq.write_table(_marked(table, export), file))
    return WrittenTables(
        results=results,
        results_path=paths[RESULTS],
        csv_path=paths[RESULTS_CSV],
        trajectories_path=paths[TRAJECTORIES],
        problems=tuple(found.problems),
    )


def scan_with_points(sweep: SweepDir) -> tuple[Scan, str]:
    """A scan that builds on the earlier tables if both are of one export, whose id is returned (empty otherwise)."""
    export = _common_export(sweep.path / RESULTS, sweep.path / TRAJECTORIES)
    return scan(sweep, read_earlier(sweep.path / RESULTS) if export else None), export


def point_tables(found: Scan, fresh: list[Fresh]) -> Iterator[pa.Table]:
    """Points of the reused rows from the earlier file, then those of the rows read now, whose outcomes are added to ``fresh``."""

    def curves() -> Iterator[Curve]:
        for position, outcome in found.read():
            fresh.append((position, outcome.values))
            yield found.planned.runs[position].run_id, str(outcome.values["env_id"]), outcome.points

    keys = found.reused_keys()
    return itertools.chain(kept_batches(found.sweep.path / TRAJECTORIES, keys) if keys else (), batches(curves()))


def _write_points(file: BinaryIO, tables: Iterator[pa.Table], export: str) -> None:
    with pq.ParquetWriter(file, SCHEMA.with_metadata(_metadata(export))) as writer:
        for table in tables:
            writer.write_table(table)


def _metadata(export: str) -> dict[str, str]:
    return {"schema_version": str(SCHEMA_VERSION), "export": export}


def _marked(table: pa.Table, export: str) -> pa.Table:
    """``table`` with the version of its columns beside what pandas noted, and with each column's meaning."""
    fields = [field.with_metadata({"meaning": meaning_of(field.name)}) for field in table.schema]
    return table.cast(pa.schema(fields, metadata={**(table.schema.metadata or {}), **_metadata(export)}))


def _common_export(*paths: Path) -> str:
    """The id of the export that all ``paths`` were written by; empty if they are of several, of another version, or unreadable.

    Two commands may export at the same moment, so that one's trajectories stand beside the other's results.
    """
    marks = {_mark(path) for path in paths}
    version, export = marks.pop()
    return export if not marks and version == str(SCHEMA_VERSION) else ""


def _mark(path: Path) -> tuple[str, str]:
    try:
        metadata = pq.read_schema(path).metadata or {}
    except (OSError, pa.ArrowInvalid):
        return "", ""
    return metadata.get(b"schema_version", b"").decode(), metadata.get(b"export", b"").decode()


def read_earlier(path: Path) -> pd.DataFrame | None:
    """The results table at ``path`` if this release can build on it; None if it is missing, damaged or of another version."""
    try:
        if _mark(path)[0] != str(SCHEMA_VERSION):
            return None
        return typed(pd.read_parquet(path))
    except (OSError, ValueError, KeyError):
        return None
