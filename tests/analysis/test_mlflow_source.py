"""MLflow experiments as tables: somebody else's by the names of its columns, this program's own as its root gives it."""

import gc
import math
import os
import re
import sqlite3
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from accum_sweeps.analysis import mlflow_source
from accum_sweeps.analysis.component_tables import components
from accum_sweeps.analysis.load import load
from accum_sweeps.analysis.mlflow_source import is_uri, read_experiment
from accum_sweeps.analysis.tidy import TableWarning
from accum_sweeps.analysis.verdict import verdict
from accum_sweeps.plan.errors import UserError
from accum_sweeps.plan.spec import RunSpec
from accum_sweeps.record.mlflow_sync import prepare
from tests.analysis.experiments import ARMS, DELETED, NOT_FINITE, OTHER_STATUSES, SEEDS, server, write_foreign
from tests.record.replays import EXPERIMENT, Sweep, make_sweep
from tests.specs import make_spec

NAMES: dict[str, Any] = {"accum": "grad_accum", "seed": "seed", "response": "metrics.loss"}


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URI of a database with one experiment of somebody else's."""
    uri = f"sqlite:///{tmp_path_factory.mktemp('foreign') / 'mlflow.db'}"
    prepare(uri, "Default")  # quicker than MLflow's own way to an empty database
    write_foreign(uri)
    return uri


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory, database: str) -> Iterator[str]:
    with server(tmp_path_factory.mktemp("server"), database) as uri:
        yield uri


def assert_same_rows(found: pd.DataFrame, expected: pd.DataFrame, key: list[str]) -> None:
    """Equal to the last digit, in whatever order of rows and columns."""
    left, right = [frame.sort_values(key).reset_index(drop=True) for frame in (found, expected)]
    pd.testing.assert_frame_equal(left[list(right.columns)], right, check_exact=True)


def told(uri: str, **names: Any) -> tuple[pd.DataFrame, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", TableWarning)
        results = load(uri, **{**NAMES, **names})
    return results, [str(each.message) for each in caught if issubclass(each.category, TableWarning)]


def test_each_run_is_a_row_with_the_value_logged_last(database: str) -> None:
    results, notes = told(database)
    values = {(row["seed"], row["accum"]): (row["status"], row["metrics.loss"]) for row in results.to_dict("records")}
    words = {"FAILED": "failed", "KILLED": "cancelled", "RUNNING": "running"}
    assert set(values) == {(seed, k) for seed in range(SEEDS) for k in ARMS} - {DELETED}
    assert {cell: status for cell, (status, _) in values.items() if status != "finished"} == {
        c: words[s] for c, s in OTHER_STATUSES.items()
    }
    assert [cell for cell, (_, value) in values.items() if math.isnan(value)] == [NOT_FINITE]
    assert set(results["setup"]) == {"their lm"} and set(results["run_id"].str.len()) == {32} and results["run_id"].is_unique
    text = "\n".join(notes)
    assert "experiment their lm: 1 row is left out, without a value of params.grad_accum (run search (" in text
    assert "experiment their lm: 1 finished run without a finite metrics.loss (run s3-k2 (" in text


@pytest.mark.filterwarnings("ignore::accum_sweeps.analysis.tidy.TableWarning")
def test_the_verdict_is_that_of_the_values(database: str, tmp_path: Path) -> None:
    values = write_foreign(_copy(database, tmp_path), "again")
    [found] = verdict(load(database, **NAMES), response="metrics.loss")
    used = [s for s in range(SEEDS) if not {(s, 1), (s, 2)} & {*OTHER_STATUSES, NOT_FINITE, DELETED}]
    assert found.to_frame()["shift"][0] == np.mean([values[s, 2] - values[s, 1] for s in used])
    assert found.to_frame()["pairs"].tolist() == [len(used), 2]


def _copy(uri: str, folder: Path) -> str:
    with sqlite3.connect(uri.removeprefix("sqlite:///")) as source, sqlite3.connect(folder / "copy.db") as target:
        source.backup(target)
    source.close()
    target.close()
    return f"sqlite:///{folder / 'copy.db'}"


@pytest.mark.filterwarnings("ignore::accum_sweeps.analysis.tidy.TableWarning")
def test_a_server_gives_the_same_table_as_its_database(database: str, address: str) -> None:
    expected = load(database, **NAMES)
    found = load(address, **NAMES, experiment="their lm")
    assert_same_rows(found, expected, ["seed", "accum"])


@pytest.mark.filterwarnings("ignore::accum_sweeps.analysis.tidy.TableWarning")
def test_what_mlflow_itself_exports_is_the_same_table(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow

    monkeypatch.setenv("MLFLOW_TRACKING_URI", database)
    mlflow.search_runs(experiment_names=["their lm"]).to_csv(tmp_path / "their lm.csv", index=False)
    expected, found = load(database, **NAMES), load(tmp_path / "their lm.csv", **NAMES)
    assert_same_rows(found.drop(columns="run_id"), expected.drop(columns="run_id"), ["seed", "accum"])


@pytest.mark.filterwarnings("ignore::accum_sweeps.analysis.tidy.TableWarning")
def test_pages_are_put_together(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = load(database, **NAMES)
    monkeypatch.setattr(mlflow_source, "PAGE", 4)
    pd.testing.assert_frame_equal(load(database, **NAMES), expected)


@pytest.mark.filterwarnings("ignore::accum_sweeps.analysis.tidy.TableWarning")
def test_names_are_found_behind_their_prefix_where_that_is_clear(database: str) -> None:
    results = load(database, **{**NAMES, "accum": "params.grad_accum"}, setup="lr")
    assert results["setup"].unique().tolist() == ["lr=0.001"]
    with pytest.raises(UserError, match=re.escape("response='loss' may be metrics.loss or tags.loss.\n  Write the whole name.")):
        load(database, **{**NAMES, "response": "loss"})
    with pytest.raises(UserError, match=r"accum='grad_acc'.*did you mean params.grad_accum"):
        load(database, **{**NAMES, "accum": "grad_acc"})
    with pytest.raises(UserError, match=r"no column of accumulation factors is named.\n.*params.grad_accum"):
        load(database)


def test_the_experiment_is_named_unless_there_is_but_one(database: str, tmp_path: Path) -> None:
    assert read_experiment(database, None)[0] == "their lm"
    with pytest.raises(UserError, match=r"experiment='their l'.*did you mean their lm"):
        load(database, **NAMES, experiment="their l")
    with pytest.raises(UserError, match="experiment Default: has no runs"):
        load(database, **NAMES, experiment="Default")
    two = _copy(database, tmp_path)
    write_foreign(two, "another")
    with pytest.raises(UserError, match=r"has 2 experiments.\n  Name one as experiment: it must be one of another, their lm"):
        load(two, **NAMES)


def test_nothing_is_left_behind(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No folder for artifacts, no variable, no open connection (a ResourceWarning would be an error), the collector as it was."""
    monkeypatch.chdir(tmp_path)
    before = dict(os.environ)
    read_experiment(database, None)
    gc.collect()
    assert list(tmp_path.iterdir()) == [] and dict(os.environ) == before and gc.isenabled()


def test_what_is_no_mlflow_is_named_and_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sqlite3.connect("other.db").close()
    with sqlite3.connect("other.db") as connection:
        connection.execute("CREATE TABLE runs (x)")
    connection.close()
    Path("text.db").write_text("hello, I am a text" * 100)
    Path("mlruns/0").mkdir(parents=True)
    Path("mlruns/0/meta.yaml").touch()
    cases = {
        "sqlite:///nowhere.db": "there is no file",
        "sqlite:///other.db": "is no MLflow database, it has no tables of experiments and runs",
        "sqlite:///text.db": "cannot be read as a SQLite database",
        "sqlite://": "must name a file",
        "http://": "names no host",
        "ftp://host/x": "the scheme must be one of http, https",
        "file:///x/mlruns": "MLflow 3 has closed its file stores.\n  Move it into a database: mlflow migrate-filestore",
        "mlruns": "is a file store of MLflow, which MLflow 3 has closed.\n  Move it into a database",
        "other.db": "is a database.\n  If it is MLflow's, write sqlite:///",
    }
    sizes = {path: path.stat().st_size for path in Path().glob("*.db")}
    for source, message in cases.items():
        with pytest.raises(UserError, match=re.escape(message)):
            load(source, accum="k")
    assert {path: path.stat().st_size for path in Path().glob("*.db")} == sizes
    with pytest.raises(UserError, match="only the tracking URI of an MLflow database or server has experiments"):
        load(tmp_path, experiment="x")


def test_a_server_that_is_not_there_is_told_in_one_line() -> None:
    with pytest.raises(UserError, match=r"^http://me:\*\*\*@127.0.0.1:9: MLflow cannot be read: connection refused$"):
        load("http://me:secret@127.0.0.1:9", accum="k")


class _Answering(BaseHTTPRequestHandler):
    """Answers every request with the status that its server has, and a page."""

    def do_GET(self) -> None:
        self.send_response(self.server.answer)  # type: ignore[attr-defined]
        self.end_headers()
        self.wfile.write(b"<html>hello</html>")

    do_POST = do_GET  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (200, "there is no MLflow server at this address"),
        (404, "there is no MLflow server at this address"),
        (401, "access refused.\n  Set MLFLOW_TRACKING_USERNAME and"),
        (403, "access refused.\n  Set MLFLOW_TRACKING_USERNAME and"),
        (500, "the server answers with errors"),
    ],
)
def test_what_a_server_answers_is_told_without_the_password(answer: int, message: str) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Answering) as fake:
        fake.answer = answer  # type: ignore[attr-defined]
        thread = threading.Thread(target=fake.serve_forever, daemon=True)
        thread.start()
        with pytest.raises(UserError, match=re.escape(message)) as caught:
            load(f"http://me:secret@127.0.0.1:{fake.server_port}", accum="k")
        fake.shutdown()
        thread.join()
    assert "secret" not in str(caught.value) and "me:***@" in str(caught.value)


def test_a_database_of_another_version_is_told(database: str, tmp_path: Path) -> None:
    other = _copy(database, tmp_path)
    with sqlite3.connect(tmp_path / "copy.db") as connection:
        connection.execute("UPDATE alembic_version SET version_num = '451aebb31d03'")
    connection.close()
    with pytest.raises(UserError, match=r"is of another MLflow version.\n  Upgrade it: mlflow db upgrade"):
        load(other, **NAMES)


@pytest.mark.parametrize(
    ("source", "is_address"),
    [("sqlite:///x", True), ("http://h", True), ("postgresql+psycopg2://h/d", True), ("file:x", True), ("a/b.csv", False), ("c:d", False)],
)
def test_an_address_is_told_from_a_path(source: str, is_address: bool) -> None:
    assert is_uri(source) == is_address


def specs() -> list[RunSpec]:
    """Two setups of 4 seeds and 3 arms, with a control for each accumulated run of the first seeds and a rerun."""
    found = [make_spec(accum=k, seed=s, dtype=dtype) for dtype in ("fp32", "fp64") for k in (1, 2, 4) for s in range(4)]
    found += [make_spec(accum=k, seed=s, control="ulp_weights") for k in (2, 4) for s in range(4)]
    return [*found, make_spec(seed=0, replicate=1)]


def replayed(folder: Path) -> Sweep:
    """A sweep of this program with runs of every status, and what MLflow holds of it."""
    sweep = make_sweep(folder, specs())
    drawn = np.random.default_rng(0).normal(0, 1, len(sweep.specs))
    for place, (spec, noise) in enumerate(zip(sweep.specs, drawn, strict=True)):
        if place == 20:
            sweep.log(spec, end="diverged", values={"train_loss": 3.0, "lr": 0.1}, final={"diverged_step": 4})
        elif place == 21:
            sweep.log(spec, end="failed")
        elif place == 22:
            sweep.log(spec, end=None, is_alive=False)
        elif place != 23:  # which is only planned
            loss = 2 + spec.seed / 30 + noise / 1000
            final = {
                "eval_loss_final": loss,
                "eval_perplexity_final": math.exp(loss),
                "train_loss_area": loss / 3,
                "steps": 10,
                "tokens": 640,
            }
            sweep.log(spec, final=final)
    assert sweep.sync().is_complete
    return sweep


def test_the_projects_own_experiment_is_the_table_of_its_root(tmp_path: Path) -> None:
    sweep = replayed(tmp_path)
    root, logged = load(sweep.root.path), load(sweep.uri)
    assert set(root["status"]) == {"finished", "diverged", "failed", "lost", "planned"}
    in_mlflow = root[root["status"] != "planned"].drop(columns="revision")  # MLflow hears of a run when it starts
    key = ["setup_id", "accum", "seed", "control", "replicate"]
    only_when_done = ["steps_done"]
    assert_same_rows(logged.drop(columns=only_when_done), in_mlflow.drop(columns=only_when_done), key)
    for response in ("eval_loss_final", "eval_perplexity_final", "train_loss_area"):
        for judge in (verdict, components):
            found, expected = [judge(table, response=response).to_frame() for table in (logged, root)]
            assert_same_rows(found, expected, [name for name in ("setup_id", "accum", "component") if name in found])


def test_strangers_in_the_projects_own_experiment_are_left_out_and_told(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path)
    for spec in sweep.specs:
        sweep.log(spec)
    sweep.sync()
    assert len(load(sweep.uri, experiment=EXPERIMENT, sweep="grid")) == len(sweep.specs)
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=sweep.uri)
    found = client.get_experiment_by_name(EXPERIMENT)
    assert found is not None
    client.create_run(found.experiment_id)
    with pytest.warns(TableWarning, match="experiment exp: 1 run is not of this program's sweeps, left out"):
        assert len(load(sweep.uri)) == len(sweep.specs)
    with pytest.raises(UserError, match=r"sweep='grids' in experiment exp.*did you mean grid"), pytest.warns(TableWarning):
        load(sweep.uri, sweep="grids")


def test_tables_without_mlflow_do_not_import_it(tmp_path: Path) -> None:
    (tmp_path / "runs.csv").write_text("k,loss\n1,2\n")
    code = (
        "import sys, warnings; warnings.simplefilter('ignore'); import accum_sweeps as acs;"
        "acs.load('runs.csv', accum='k', response='loss'); print('mlflow' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
