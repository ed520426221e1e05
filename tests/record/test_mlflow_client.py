"""The way through MLflow's own client: the same rows as the direct way, and errors sorted by what to do about them."""

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from accum_sweeps.record import mlflow_client, mlflow_run
from accum_sweeps.record.mlflow_client import ClientTracker
from accum_sweeps.record.mlflow_points import Sample, clean_name
from accum_sweeps.record.mlflow_sqlite import SqliteTracker
from accum_sweeps.record.mlflow_sync import Lag, SyncReport, lag, prepare, sync
from accum_sweeps.record.mlflow_tracker import RefusedError, UnknownRunError, UnreachableError
from tests.record.replays import EXPERIMENT, Sweep, children, expected, keys, killed_after, make_sweep, rows, samples
from tests.specs import make_spec


class Server:
    """A real ``mlflow server`` on the loopback interface, with a database of its own."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.uri, self.database = f"http://127.0.0.1:{self.port}", folder / "server.db"
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        if self.process is not None:
            return
        prepare(f"sqlite:///{self.database}", "other")  # quicker than the server's own way to an empty database
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port), "--workers", "1"]
        command += ["--backend-store-uri", f"sqlite:///{self.database}", "--artifacts-destination", str(self.folder / "artifacts")]
        with (self.folder / "server.log").open("wb") as log:
            # A session of its own, because the server has processes of its own.
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True, env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"}
            )
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"{self.uri}/health", timeout=2):
                    return
            except OSError:
                assert self.process.poll() is None, (self.folder / "server.log").read_text()
                time.sleep(0.2)
        raise AssertionError("the server did not start")

    def stop(self) -> None:
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    server.stop()


def by_client(sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> SyncReport:
    with monkeypatch.context() as patched:
        patched.setattr(SqliteTracker, "open", classmethod(lambda cls, uri, experiment_id: None))
        return sweep.sync()


def content(database: Path) -> Any:
    """All rows that a replay writes, without the ids that are drawn anew each time."""
    ids = {run["id"]: run["name"] for run in children(database).values()}

    def named(table: str, columns: str) -> list[tuple[Any, ...]]:
        found = rows(database, f"SELECT run_uuid, {columns} FROM {table}")
        return sorted((ids[run], *(ids.get(v, v) for v in rest)) for run, *rest in found)

    runs = "name, source_type, source_name, entry_point_name, user_id, status, start_time, end_time, source_version, lifecycle_stage"
    uris = {rows(database, "SELECT artifact_uri FROM runs WHERE run_uuid = ?", run)[0][0].split(run)[1] for run in ids}
    return [
        named("runs", f"{runs}, experiment_id, deleted_time"),
        named("tags", "key, value"),
        named("params", "key, value"),
        named("metrics", "key, step, timestamp, value, is_nan"),
        named("latest_metrics", "key, step, timestamp, value, is_nan"),
        uris,
    ]


def test_the_direct_way_writes_what_the_client_writes_row_for_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = make_sweep(tmp_path)
    nan = float("nan")
    sweep.log(sweep.specs[0], values={"loss": 1.0, "nan": nan, "inf": float("inf")}, final={"x": nan})
    sweep.log(sweep.specs[1], end="failed", checkpoints=[5])
    sweep.log(sweep.specs[2], end=None, checkpoints=[3, 6])
    sweep.log(sweep.specs[3], end=None, steps=range(1, 6), checkpoints=[5], is_alive=False)

    direct, client = tmp_path / "direct.db", tmp_path / "client.db"
    for continued in (False, True):
        if continued:
            sweep.log(sweep.specs[3], 2, start=(1, 5), steps=range(6, 11))
        assert sync(sweep.root.path, "grid", f"sqlite:///{direct}", EXPERIMENT).is_complete
        with monkeypatch.context() as patched:
            patched.setattr(SqliteTracker, "open", classmethod(lambda cls, uri, experiment_id: None))
            assert sync(sweep.root.path, "grid", f"sqlite:///{client}", EXPERIMENT).is_complete
    assert content(direct) == content(client)


def test_tables_of_another_shape_are_left_to_the_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = make_sweep(tmp_path)
    prepare(sweep.uri, EXPERIMENT)
    assert SqliteTracker.open(sweep.uri, "1") is not None
    with sqlite3.connect(sweep.database) as connection:
        connection.execute("ALTER TABLE metrics ADD COLUMN colour TEXT")
    connection.close()
    assert SqliteTracker.open(sweep.uri, "1") is None
    sweep.log(sweep.specs[0])
    monkeypatch.setattr(SqliteTracker, "log_samples", None)
    assert sweep.sync().samples == 21
    assert len(samples(sweep.database, sweep.specs[0].run_id)) == 21


def test_the_client_rebuilds_a_lost_database_and_replaces_a_void_curve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = make_sweep(tmp_path, [make_spec()])
    spec = sweep.specs[0]
    sweep.log(spec, end=None, steps=range(1, 9), checkpoints=[8], is_alive=False)
    by_client(sweep, monkeypatch)
    sweep.log(spec, 2, start=(1, 4), steps=range(5, 11))
    by_client(sweep, monkeypatch)
    before = samples(sweep.database, spec.run_id)
    assert [row[1] for row in before if row[0] == "train_loss"] == list(range(1, 11))
    sweep.database.unlink()
    assert by_client(sweep, monkeypatch).created == 1
    assert samples(sweep.database, spec.run_id) == before


def test_a_client_killed_between_two_calls_neither_doubles_nor_loses_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SqliteTracker, "open", classmethod(lambda cls, uri, experiment_id: None))
    monkeypatch.setattr(mlflow_run, "BATCH", 15)
    sweep = make_sweep(tmp_path, [make_spec()])
    (spec,) = sweep.specs
    sweep.log(spec, steps=range(1, 9), checkpoints=[8], end=None, is_alive=False)
    sweep.sync()
    sweep.log(spec, 2, start=(1, 4), steps=range(5, 11))
    kept = {path: path.read_bytes() for path in (sweep.database, *sweep.dir.path.glob("mlflow/*/cursor.jsonl"))}
    for calls in range(1, 18, 3):
        for path, content in kept.items():
            path.write_bytes(content)
        assert killed_after(ClientTracker, sweep, calls, before=bool(calls % 2))
        sweep.sync()
        assert keys(sweep, spec) == expected(sweep, spec)
        assert {run["status"] for run in children(sweep.database).values()} == {"FINISHED"}


def test_one_item_that_mlflow_refuses_does_not_lose_the_other_999(tmp_path: Path) -> None:
    uri = prepare(f"sqlite:///{tmp_path / 'mlflow.db'}", EXPERIMENT).uri
    tracker = ClientTracker.open(uri, EXPERIMENT)
    run = tracker.create_run("r", 1, {"run_id": "x"})
    items = [Sample(f"m{i}", 1, 1, float(i)) for i in range(999)]
    refused = tracker.log_samples(run, [*items[:500], Sample("bad[]", 1, 1, 0.0), *items[500:]])
    assert len(refused) == 1
    assert refused[0].startswith("bad[]: refused by MLflow")
    assert rows(tmp_path / "mlflow.db", "SELECT count(*) FROM metrics") == [(999,)]
    assert len(tracker.log_params(run, {**{f"p{i}": "v" for i in range(150)}, "bad[]": "v"})) == 1
    tracker.log_params(run, {"p1": "v"})
    assert tracker.log_params(run, {"p1": "another", "p2": "v"})[0].startswith("p1: refused")
    direct = SqliteTracker(tmp_path / "mlflow.db", "1")
    assert direct.log_params(run, {"p1": "another"}) == ["p1: MLflow holds another value of it"]
    direct.close()
    with pytest.raises(UnknownRunError):
        tracker.log_samples("0" * 32, items)


@pytest.mark.parametrize("key", ["a[b]", "/a", "..", "a/../b", "a//b", "a/", ".", "", "..x", "ä ö:-.", "k" * 300, "a\nb", "日本", "\ud800"])
def test_cleaned_names_are_those_that_mlflow_accepts(key: str) -> None:
    from mlflow.utils.validation import _validate_metric

    _validate_metric(clean_name(key), 1.0, 1, 1)


class Refusing(BaseHTTPRequestHandler):
    """Answers every request with the status that its first path component names, or not at all."""

    def do_GET(self) -> None:
        status = int(self.path.split("/")[1])
        if status == 0:
            time.sleep(3)
            return
        self.send_response(status)
        self.end_headers()
        self.wfile.write(b"<html>no</html>")

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def refusing() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [
        (401, "error", "MLFLOW_TRACKING_USERNAME"),
        (403, "error", "access refused"),
        (404, "error", "no MLflow server at this address"),
        (503, "warning", "503"),
        (0, "warning", "no answer in time"),
    ],
)
def test_what_a_server_answers_is_sorted(
    refusing: str, status: int, kind: str, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"{refusing}/{status}")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setattr(sys, "argv", ["mlflow_client", EXPERIMENT])
    mlflow_client.main()
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert list(answer) == [kind]
    assert words in answer[kind]


def test_a_server_that_is_away_costs_a_warning_and_no_minutes_and_gets_everything_later(server: Server, tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path)
    root = sweep.root.path
    for spec in sweep.specs[:2]:
        sweep.log(spec)
    begun = time.monotonic()
    report = sync(root, "grid", server.uri, EXPERIMENT)
    assert "cannot be reached" in report.warning
    assert time.monotonic() - begun < 10
    assert lag(root, "grid", server.uri, EXPERIMENT) == Lag(runs=2, samples=42)
    server.start()
    for spec in sweep.specs[2:]:
        sweep.log(spec, end="diverged")
    assert sync(root, "grid", server.uri, EXPERIMENT, files=[root / "root.json"]).samples == 84
    assert lag(root, "grid", server.uri, EXPERIMENT) == Lag()
    assert [len(samples(server.database, spec.run_id)) for spec in sweep.specs] == [21] * 4
    assert rows(server.database, "SELECT experiments.name, count(*) FROM runs JOIN experiments USING (experiment_id)") == [(EXPERIMENT, 5)]
    assert len(list((server.folder / "artifacts").rglob("root.json"))) == 1
    assert sync(root, "grid", server.uri, EXPERIMENT).samples == 0


def test_a_server_with_a_new_database_gets_everything_again(server: Server, tmp_path: Path) -> None:
    server.start()
    sweep = make_sweep(tmp_path, [make_spec(seed=7)])
    sweep.log(sweep.specs[0])
    assert sync(sweep.root.path, "grid", server.uri, "first").samples == 21
    with sqlite3.connect(server.database, timeout=20) as connection:
        for table in ("metrics", "latest_metrics", "params", "tags", "runs"):
            connection.execute(f"DELETE FROM {table}")
        connection.execute("DELETE FROM experiments WHERE experiment_id > 1")
    connection.close()
    assert sync(sweep.root.path, "grid", server.uri, "first").samples == 21
    assert len(samples(server.database, sweep.specs[0].run_id)) == 21


def test_prepare_creates_the_experiment_on_a_server(server: Server) -> None:
    server.start()
    prepared = prepare(server.uri, "prepared")
    assert prepared.warning == ""
    assert ClientTracker.open(server.uri, "prepared").experiment_id == prepared.experiment_id
    assert rows(server.database, "SELECT experiment_id FROM experiments WHERE name = 'prepared'") == [(int(prepared.experiment_id),)]


def test_a_page_with_a_nan_is_valid_json(server: Server, tmp_path: Path) -> None:
    server.start()
    sweep = make_sweep(tmp_path, [make_spec(seed=8)])
    sweep.log(sweep.specs[0], values={"loss": float("nan"), "other": float("inf")})
    sync(sweep.root.path, "grid", server.uri, "nan")
    run = children(server.database, "nan")[sweep.specs[0].run_id]["id"]
    for key in ("loss", "other"):
        page = f"{server.uri}/ajax-api/2.0/mlflow/metrics/get-history-bulk-interval?run_ids={run}&metric_key={key}&max_results=320"
        with urllib.request.urlopen(page, timeout=20) as answer:
            metrics = json.loads(answer.read(), parse_constant=pytest.fail)["metrics"]
        assert [point["value"] for point in metrics] == ["NaN"] * 10


def test_errors_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(UnreachableError):
        ClientTracker.open("http://127.0.0.1:1", EXPERIMENT)
    uri = prepare(f"sqlite:///{tmp_path / 'mlflow.db'}", EXPERIMENT).uri
    with sqlite3.connect(tmp_path / "mlflow.db") as connection:
        connection.execute("UPDATE experiments SET lifecycle_stage = 'deleted' WHERE name = ?", (EXPERIMENT,))
    connection.close()
    with pytest.raises(RefusedError, match="was deleted in MLflow"):
        ClientTracker.open(uri, EXPERIMENT)
