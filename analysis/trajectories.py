"""The long table of measured points: one row a value. The meaning of each column stands in the file's own schema."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from accum_sweeps.record.events import Point
from accum_sweeps.record.metrics import UNITS

WORD = pa.dictionary(pa.int32(), pa.string())


def _field(name: str, kind: pa.DataType, meaning: str) -> pa.Field:
    return pa.field(name, kind, metadata={"meaning": meaning})


SCHEMA = pa.schema(
    [
        _field("run_id", WORD, "the run"),
        _field("env_id", WORD, "the environment that it was done in"),
        _field("step", pa.int64(), "optimizer steps done when the value was measured"),
        _field("key", WORD, f"name of the metric; {'; '.join(f'{name}: {unit}' for name, unit in UNITS.items())}"),
        _field("value", pa.float64(), "the value; may be nan or infinite"),
        _field("time", pa.timestamp("ms", tz="UTC"), "when it was measured, UTC"),
    ]
)
ROWS_A_BATCH = 200_000
Curve = tuple[str, str, list[Point]]  # run_id, env_id, points


def batches(curves: Iterable[Curve]) -> Iterator[pa.Table]:
    """Tables of about ROWS_A_BATCH rows from (run_id, env_id, points), so that memory does not grow with the sweep."""
    rows: list[tuple[str, str, int, str, float, int]] = []
    for run_id, env_id, points in curves:
        rows += [(run_id, env_id, p.step, key, value, p.time_ms) for p in points for key, value in p.values.items()]
        if len(rows) >= ROWS_A_BATCH:
            yield _table(rows)
            rows = []
    if rows:
        yield _table(rows)


def _table(rows: list[tuple[str, str, int, str, float, int]]) -> pa.Table:
    columns = zip(*rows, strict=True)
    return pa.table([_array(list(values), field.type) for values, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


def _array(values: list[object], kind: pa.DataType) -> pa.Array:
    return pa.array(values, pa.string()).dictionary_encode() if kind == WORD else pa.array(values, kind)


def kept_batches(path: Path, keys: set[tuple[str, str]]) -> Iterator[pa.Table]:
    """The rows of an earlier file whose (run_id, env_id) is among ``keys``."""
    wanted = pa.array(["/".join(key) for key in keys], pa.string())
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(ROWS_A_BATCH):
            table = pa.Table.from_batches([batch]).cast(SCHEMA)
            key = pc.binary_join_element_wise(table["run_id"].cast(pa.string()), table["env_id"].cast(pa.string()), "/")
            yield table.filter(pc.is_in(key, value_set=wanted))
