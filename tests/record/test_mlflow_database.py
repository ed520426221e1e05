"""Database and experiment are ready before anything is trained, or a person is told why not."""

import os
import signal
import sqlite3
import stat
import time
from pathlib import Path

import pytest

from accum_sweeps.plan.errors import UserError
from accum_sweeps.record import mlflow_database
from accum_sweeps.record.mlflow_database import prepare
from tests.pace import slowness
from tests.record.replays import forked, rows


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "mlflow.db"
    prepare(f"sqlite:///{path}", "exp")
    return path


def set_schema(database: Path, version: str) -> None:
    with sqlite3.connect(database) as connection:
        connection.execute("UPDATE alembic_version SET version_num = ?", (version,))
    connection.close()
    os.utime(database, (1, 1))


def test_eight_first_starts_at_one_moment_make_one_experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    uri = f"sqlite:///{tmp_path / 'new' / 'root' / 'mlflow.db'}"
    moment = time.time() + 0.5

    def start() -> None:
        time.sleep(max(moment - time.time(), 0))
        assert prepare(uri, "exp").experiment_id == "1"

    assert [os.waitpid(pid, 0)[1] for pid in [forked(start) for _ in range(8)]] == [0] * 8
    folder = tmp_path / "new" / "root"
    assert rows(folder / "mlflow.db", "SELECT experiment_id, name, artifact_location FROM experiments ORDER BY 1") == [
        (0, "Default", str(folder / "mlruns" / "0")),
        (1, "exp", (folder / "mlartifacts").as_uri()),
    ]
    assert sorted(path.name for path in folder.iterdir()) == [".mlflow.db.lock", "mlflow.db"]
    # The next root gets a copy of the empty database that was kept.
    begun = time.perf_counter()
    assert prepare(f"sqlite:///{tmp_path / 'second.db'}", "other").experiment_id == "1"
    assert time.perf_counter() - begun < 1 * slowness()


def test_a_damaged_copy_in_the_cache_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(f"sqlite:///{tmp_path / 'first.db'}", "exp")
    good = mlflow_database._pattern().read_bytes()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    mlflow_database._pattern().parent.mkdir(parents=True)
    mlflow_database._pattern().write_bytes(b"SQLite format 3\0 and then nothing")
    monkeypatch.setattr(mlflow_database, "_ask_mlflow", lambda uri, *_: Path(uri.removeprefix("sqlite:///")).write_bytes(good))
    assert prepare(f"sqlite:///{tmp_path / 'mlflow.db'}", "exp").experiment_id == "1"
    assert mlflow_database._pattern().read_bytes() == good


def test_what_exists_is_found_without_mlflow_in_a_blink(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlflow_database, "_ask_mlflow", None)
    begun = time.perf_counter()
    assert prepare(f"sqlite:///{database}", "exp").experiment_id == "1"
    assert time.perf_counter() - begun < 0.2 * slowness()
    assert prepare(f"sqlite:///{database}", "another").experiment_id == "2"


def test_a_relative_uri_becomes_absolute(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(database.parent)
    assert prepare("sqlite:///mlflow.db", "exp").uri == f"sqlite:///{database}"


@pytest.mark.parametrize(
    ("uri", "words"), [("mlruns", "file store"), ("htp://x", "did you mean http"), ("http://", "names no host"), ("sqlite://", "must name")]
)
def test_malformed_uris_are_refused(uri: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        prepare(uri, "exp")


def test_an_empty_experiment_name_is_refused() -> None:
    with pytest.raises(UserError, match=r"tracking\.experiment"):
        prepare("sqlite:////tmp/x.db", " ")


def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "thesis.tex"
    path.write_text("words " * 1000)
    with pytest.raises(UserError, match=r"thesis.tex cannot be used: file is not a database"):
        prepare(f"sqlite:///{path}", "exp")
    assert path.read_text() == "words " * 1000


def test_a_database_of_something_else_is_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "bank.db") as connection:
        connection.execute("CREATE TABLE accounts (id)")
    connection.close()
    with pytest.raises(UserError, match="not of MLflow"):
        prepare(f"sqlite:///{tmp_path / 'bank.db'}", "exp")


def test_a_newer_schema_is_refused_with_what_to_do(database: Path) -> None:
    set_schema(database, "ffffffffffff")
    with pytest.raises(UserError, match=r"newer MLflow.*ffffffffffff(?s:.)*pip install -U mlflow"):
        prepare(f"sqlite:///{database}", "exp")


def test_an_older_schema_is_refused_with_what_to_do(database: Path) -> None:
    set_schema(database, "451aebb31d03")
    with pytest.raises(UserError, match=rf"older MLflow(?s:.)*mlflow db upgrade sqlite:///{database}"):
        prepare(f"sqlite:///{database}", "exp")


def test_a_deleted_experiment_is_refused_with_what_to_do(database: Path) -> None:
    with sqlite3.connect(database) as connection:
        connection.execute("UPDATE experiments SET lifecycle_stage = 'deleted' WHERE name = 'exp'")
    connection.close()
    with pytest.raises(UserError, match="mlflow experiments restore --experiment-id 1"):
        prepare(f"sqlite:///{database}", "exp")


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot be made"):
        prepare(f"sqlite:///{tmp_path}/file/mlflow.db", "exp")
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # the superuser may write everywhere
    with pytest.raises(UserError, match="no permission to write"):
        prepare(f"sqlite:///{tmp_path}/mlflow.db", "exp")


def test_the_lock_is_private(database: Path) -> None:
    assert stat.S_IMODE((database.parent / ".mlflow.db.lock").stat().st_mode) == 0o600


def test_a_transaction_left_by_a_killed_writer_is_rolled_back(database: Path) -> None:
    def write() -> None:
        connection = sqlite3.connect(database)
        connection.execute("PRAGMA cache_size = 1")  # so that changed pages reach the file before the end
        connection.execute("UPDATE experiments SET name = 'half'")
        connection.executemany("INSERT INTO experiment_tags VALUES (?, ?, 1)", [(str(i), "v" * 200) for i in range(5000)])
        os.kill(os.getpid(), signal.SIGKILL)

    os.waitpid(forked(write), 0)
    assert database.with_name("mlflow.db-journal").stat().st_size > 0
    assert prepare(f"sqlite:///{database}", "exp").experiment_id == "1"
    assert rows(database, "SELECT name FROM experiments ORDER BY 1") == [("Default",), ("exp",)]
