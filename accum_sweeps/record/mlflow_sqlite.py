"""MLflow's SQLite tables, written directly: twenty times as fast as through MLflow's own layers, without their import.

What is written is what ``MlflowClient`` would write, row for row (tested against it), and only where all tables look
exactly as this release knows them; otherwise MLflow itself is used. Standard library only.
"""

import contextlib
import math
import shutil
import sqlite3
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from accum_sweeps.record.mlflow_points import Sample
from accum_sweeps.record.mlflow_tracker import DeletedRunError, UnknownRunError, UnreachableError

CACHE_KIB = 32 * 1024  # new rows fall all over MLflow's indexes
TIMEOUT_S = 20.0  # for which another writer, a server say, is waited for
COLUMNS = {
    "experiments": "experiment_id name artifact_location lifecycle_stage creation_time last_update_time workspace",
    "runs": "run_uuid name source_type source_name entry_point_name user_id status start_time end_time source_version lifecycle_stage "
    "artifact_uri experiment_id deleted_time",
    "tags": "key value run_uuid",
    "params": "key value run_uuid",
    "metrics": "key value timestamp run_uuid step is_nan",
    "latest_metrics": "key value timestamp step is_nan run_uuid",
}
_SAMPLE = "(key, value, timestamp, step, is_nan, run_uuid) VALUES (?, ?, ?, ?, ?, ?)"
_INSERT = f"INSERT OR IGNORE INTO metrics {_SAMPLE}"
# The newest sample of a key, by MLflow's order: step, then time, then value.
_LATEST = f"""INSERT INTO latest_metrics {_SAMPLE} ON CONFLICT (key, run_uuid) DO UPDATE
SET value = excluded.value, timestamp = excluded.timestamp, step = excluded.step, is_nan = excluded.is_nan
WHERE (excluded.step, excluded.timestamp, excluded.value) > (latest_metrics.step, latest_metrics.timestamp, latest_metrics.value)"""
_TAG = "INSERT INTO tags (key, value, run_uuid) VALUES (?, ?, ?) ON CONFLICT (key, run_uuid) DO UPDATE SET value = excluded.value"
_PARAM = "INSERT OR IGNORE INTO params (key, value, run_uuid) VALUES (?, ?, ?)"
_RUN = """INSERT INTO runs (run_uuid, name, source_type, source_name, entry_point_name, user_id, status, start_time, source_version,
lifecycle_stage, artifact_uri, experiment_id) VALUES (?, ?, 'UNKNOWN', '', '', ?, 'RUNNING', ?, '', 'active', ?, ?)"""


class SqliteTracker:
    """One experiment of one database file (see mlflow_tracker.Tracker).

    What is written since the last commit() arrives together or not at all: each commit waits for the disk.
    """

    is_transactional = True

    def __init__(self, path: Path, experiment_id: str) -> None:
        self.path, self.experiment_id = path, int(experiment_id)
        self._connection: sqlite3.Connection | None = None

    @classmethod
    def open(cls, uri: str, experiment_id: str) -> "SqliteTracker | None":
        """The tracker, or None where the URI is no SQLite file or its tables are not those that this release knows."""
        path = sqlite_path(uri)
        if path is None:
            return None
        tracker = cls(path, experiment_id)
        return tracker if is_understood(path) else None

    def create_run(self, name: str, start_ms: int, tags: Mapping[str, str]) -> str:
        run_id = uuid.uuid4().hex
        with self._writing() as connection:
            location = self._artifacts(connection)
            row = (run_id, name, tags.get("mlflow.user", "unknown"), start_ms, f"{location}/{run_id}/artifacts", self.experiment_id)
            connection.execute(_RUN, row)
            connection.executemany(_TAG, [(key, value, run_id) for key, value in {"mlflow.runName": name, **tags}.items()])
        return run_id

    def find_runs(self, tags: Mapping[str, str]) -> dict[str, dict[str, str]]:
        each = [f"JOIN tags AS t{i} ON t{i}.run_uuid = runs.run_uuid AND t{i}.key = ? AND t{i}.value = ?" for i in range(len(tags))]
        joins = " ".join(each)
        query = f"SELECT tags.run_uuid, tags.key, tags.value FROM runs {joins} JOIN tags ON tags.run_uuid = runs.run_uuid"
        values = [item for pair in tags.items() for item in pair]
        found: dict[str, dict[str, str]] = {}
        with self._reading() as connection:
            rows = connection.execute(f"{query} WHERE experiment_id = ? AND lifecycle_stage = 'active'", [*values, self.experiment_id])
            for run_id, key, value in rows:
                found.setdefault(run_id, {})[key] = value
        return found

    def check_run(self, run_id: str) -> None:
        with self._reading() as connection:
            _check(connection, run_id)

    def samples(self, run_id: str) -> set[tuple[str, int, int]]:
        with self._reading() as connection:
            return set(connection.execute("SELECT key, step, timestamp FROM metrics WHERE run_uuid = ?", (run_id,)))

    def log_params(self, run_id: str, params: Mapping[str, str]) -> list[str]:
        with self._writing(run_id) as connection:
            connection.executemany(_PARAM, [(key, value, run_id) for key, value in params.items()])
            stored = dict(connection.execute("SELECT key, value FROM params WHERE run_uuid = ?", (run_id,)))
        return [f"{key}: MLflow holds another value of it" for key, value in params.items() if stored[key] != value]

    def set_tags(self, run_id: str, tags: Mapping[str, str]) -> list[str]:
        with self._writing(run_id) as connection:
            connection.executemany(_TAG, [(key, value, run_id) for key, value in tags.items()])
            if "mlflow.runName" in tags:
                connection.execute("UPDATE runs SET name = ? WHERE run_uuid = ?", (tags["mlflow.runName"], run_id))
        return []

    def log_samples(self, run_id: str, samples: Sequence[Sample]) -> list[str]:
        rows = [_row(run_id, sample) for sample in samples]
        latest = {row[0]: row for row in sorted(rows, key=lambda row: (row[3], row[2], row[1]))}
        with self._writing(run_id) as connection:
            connection.executemany(_INSERT, rows)
            connection.executemany(_LATEST, latest.values())
        return []

    def set_status(self, run_id: str, status: str, end_ms: int | None) -> None:
        with self._writing(run_id) as connection:
            connection.execute("UPDATE runs SET status = ?, end_time = coalesce(?, end_time) WHERE run_uuid = ?", (status, end_ms, run_id))

    def delete_run(self, run_id: str) -> None:
        with self._writing() as connection:
            values = (time.time_ns() // 1_000_000, run_id)
            connection.execute("UPDATE runs SET lifecycle_stage = 'deleted', deleted_time = ? WHERE run_uuid = ?", values)

    def log_file(self, run_id: str, path: Path) -> None:
        with self._reading() as connection:
            _check(connection, run_id)
            uri = connection.execute("SELECT artifact_uri FROM runs WHERE run_uuid = ?", (run_id,)).fetchone()[0]
        parts = urlsplit(uri)
        if parts.scheme in ("", "file") and parts.path.startswith("/"):
            folder = Path(unquote(parts.path) if parts.scheme else uri)
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, folder / path.name)
        else:  # an experiment that somebody else created, with its artifacts in S3, say
            from accum_sweeps.record.mlflow_client import upload

            upload(f"sqlite:///{self.path}", run_id, path)

    def finish(self) -> None:
        """Let SQLite know the tables' sizes: sorting a page of runs by a metric otherwise takes seconds."""
        with self._writing() as connection:
            connection.execute("PRAGMA analysis_limit = 1000")
            connection.execute("ANALYZE")

    def _artifacts(self, connection: sqlite3.Connection) -> str:
        row = connection.execute("SELECT artifact_location FROM experiments WHERE experiment_id = ?", (self.experiment_id,)).fetchone()
        if row is None:
            raise UnknownRunError(f"experiment {self.experiment_id}")
        return str(row[0]).rstrip("/")

    def commit(self) -> None:
        with self._reading() as connection:
            if connection.in_transaction:
                connection.execute("COMMIT")

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with _sqlite_errors(self.path):
            if self._connection is None:
                self._connection = _connect(self.path)
                self._connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            yield self._connection

    @contextlib.contextmanager
    def _writing(self, run_id: str | None = None) -> Iterator[sqlite3.Connection]:
        """The transaction, which is begun if need be; for an active run, where one is named."""
        with self._reading() as connection:
            if not connection.in_transaction:
                connection.execute("BEGIN IMMEDIATE")
            if run_id is not None:
                _check(connection, run_id)
            yield connection


def sqlite_path(uri: str) -> Path | None:
    """The database file of a SQLite URI, None for all others."""
    return Path(uri.removeprefix("sqlite:///").partition("?")[0]) if uri.startswith("sqlite:///") else None


def add_experiment(path: Path, name: str, artifacts: str) -> None:
    """Create the experiment unless it exists."""
    now = time.time_ns() // 1_000_000
    columns = "name, artifact_location, lifecycle_stage, creation_time, last_update_time, workspace"
    with connected(path) as connection:
        values = (name, artifacts, "active", now, now, "default")
        connection.execute(f"INSERT OR IGNORE INTO experiments ({columns}) VALUES (?, ?, ?, ?, ?, ?)", values)


def is_understood(path: Path) -> bool:
    """Whether all tables that this module writes have the columns that it knows, no more and no less."""
    with connected(path) as connection:
        found = {table: {row[1] for row in connection.execute(f"PRAGMA table_info({table})")} for table in COLUMNS}
    return all(found[table] == set(columns.split()) for table, columns in COLUMNS.items())


@contextlib.contextmanager
def connected(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection to an existing file, each statement a transaction of its own; UnreachableError."""
    with _sqlite_errors(path), contextlib.closing(_connect(path)) as connection:
        yield connection


def _connect(path: Path) -> sqlite3.Connection:
    if not path.exists():
        raise UnreachableError(f"{path} is gone")
    return sqlite3.connect(path, timeout=TIMEOUT_S, isolation_level=None)


@contextlib.contextmanager
def _sqlite_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise UnreachableError(f"{path}: {error}") from error


def _check(connection: sqlite3.Connection, run_id: str) -> None:
    row = connection.execute("SELECT lifecycle_stage FROM runs WHERE run_uuid = ?", (run_id,)).fetchone()
    if row is None:
        raise UnknownRunError(run_id)
    if row[0] != "active":
        raise DeletedRunError(run_id)


def _row(run_id: str, sample: Sample) -> tuple[str, float, int, int, bool, str]:
    is_nan = math.isnan(sample.value)
    return sample.key, 0.0 if is_nan else sample.value, sample.time_ms, sample.step, is_nan, run_id
