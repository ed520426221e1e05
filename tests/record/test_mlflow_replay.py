"""Run directories in MLflow: each run once, each kept point once, whatever happens in between."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from accum_sweeps.plan.spec import RunSpec
from accum_sweeps.record import mlflow_replay, mlflow_run
from accum_sweeps.record.mlflow_sqlite import SqliteTracker
from accum_sweeps.record.mlflow_sync import sync
from accum_sweeps.record.sweep import open_sweep
from tests.record.replays import EXPERIMENT, HEADER, T0, Sweep, children, expected, keys, killed_after, make_sweep, rows, samples
from tests.specs import make_spec


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    return make_sweep(tmp_path)


def curve(sweep: Sweep, spec: RunSpec, key: str = "train_loss") -> list[tuple[int, float]]:
    return [(step, value) for name, step, _, value, _ in samples(sweep.database, spec.run_id) if name == key]


def test_a_sweep_is_one_parent_with_a_readable_note_and_a_child_for_each_started_run(sweep: Sweep) -> None:
    for spec in sweep.specs[:3]:
        sweep.log(spec)
    report = sweep.sync(verdict="Accumulation changed **nothing**.")
    assert (report.runs, report.created, report.samples, report.is_complete) == (3, 3, 3 * 21, True)
    found = children(sweep.database)
    parent = found.pop("")
    assert parent["name"] == "grid"
    note = parent["tags"]["mlflow.note.content"]
    for words in ("4 runs: 3 finished, 1 planned", "+grid=adamw", "`accum`: 1, 4", "Accumulation changed **nothing**."):
        assert words in note
    assert {child["name"] for child in found.values()} == {f"lm-tiny adamw fp32 k={k} s={s}" for k, s in ((1, 0), (1, 1), (4, 0))}
    assert {child["tags"]["mlflow.parentRunId"] for child in found.values()} == {parent["id"]}
    assert rows(sweep.database, "SELECT experiments.name FROM experiments JOIN runs USING (experiment_id) GROUP BY 1") == [(EXPERIMENT,)]


def test_parameters_are_all_configuration_keys_under_their_dotted_names(sweep: Sweep) -> None:
    spec = sweep.specs[2]
    sweep.log(spec)
    sweep.sync()
    params = children(sweep.database)[spec.run_id]["params"]
    assert params.items() >= {"model.norm": "rmsnorm", "model": "tiny", "optimizer.betas": "[0.9,0.95]", "optimizer.lr": "0.001"}.items()
    assert params.items() >= {"accum": "4", "micro_batch": "4", "global_batch": "16", "model.qk_norm": "false", "seed_data": "0"}.items()


def test_tags_group_runs_by_setup_cell_and_control(tmp_path: Path) -> None:
    spec = make_spec(accum=4, control="ulp_weights", seed=1)
    sweep = make_sweep(tmp_path, [spec])
    sweep.log(spec)
    sweep.sync()
    child = children(sweep.database)[spec.run_id]
    assert child["name"] == "lm-tiny adamw fp32 k=4 s=1 ctl=ulp_weights"
    expected = {"setup": "lm-tiny adamw fp32", "cell": "lm-tiny adamw fp32 k=4", "group": "lm-tiny adamw fp32 k=4 ctl=ulp_weights"}
    assert child["tags"].items() >= {**expected, "sweep": "grid", "status": "finished", "attempt": "1", "env_id": "0123456789ab"}.items()


def test_times_and_values_are_those_measured(sweep: Sweep) -> None:
    spec = sweep.specs[0]
    sweep.log(spec)
    sweep.sync()
    newest = sweep.run_dir(spec).history().newest
    assert newest is not None
    child = children(sweep.database)[spec.run_id]
    assert (child["start"], child["end"]) == (newest.started_ms, newest.ended_ms)
    assert samples(sweep.database, spec.run_id)[0] == ("final/eval_loss_final", 10, newest.ended_ms, 2.5, 0)
    assert samples(sweep.database, spec.run_id)[-1] == ("train_loss", 10, T0 + 1010, 1.01, 0)
    latest = dict(rows(sweep.database, "SELECT key, value FROM latest_metrics WHERE run_uuid = ?", child["id"]))
    assert latest == {"final/eval_loss_final": 2.5, "lr": 0.1, "train_loss": 1.01}


@pytest.mark.parametrize(
    ("end", "is_alive", "status", "tag"),
    [
        ("finished", True, "FINISHED", "finished"),
        ("diverged", True, "FINISHED", "diverged"),
        ("failed", True, "FAILED", "failed"),
        ("released", True, "KILLED", "planned"),
        (None, False, "KILLED", "lost"),
        (None, True, "RUNNING", "running"),
    ],
)
def test_the_state_is_true(sweep: Sweep, end: str | None, is_alive: bool, status: str, tag: str) -> None:
    spec = sweep.specs[0]
    sweep.log(spec, end=end, is_alive=is_alive)
    sweep.sync()
    child = children(sweep.database)[spec.run_id]
    assert (child["status"], child["tags"]["status"]) == (status, tag)
    assert (child["end"] is None) == (status == "RUNNING")


def test_a_run_that_failed_before_it_started_is_shown_as_failed(sweep: Sweep) -> None:
    spec = sweep.specs[0]
    with sweep.claim(spec, 1).writer(1) as writer:
        writer.failed(0, "ImportError: no such hook")
    sweep.sync()
    child = children(sweep.database)[spec.run_id]
    assert (child["status"], child["tags"]["reason"]) == ("FAILED", "ImportError: no such hook")


def test_nothing_is_running_after_its_worker_was_killed_and_the_next_attempt_mends_that(sweep: Sweep) -> None:
    spec = sweep.specs[0]
    sweep.log(spec, end=None, steps=range(1, 6), checkpoints=[4])
    sweep.sync()
    assert children(sweep.database)[spec.run_id]["status"] == "RUNNING"
    (sweep.root.run_folder(spec.run_id) / "lost.1").write_text("killed")
    sweep.sync()
    assert {run["status"] for run in children(sweep.database).values()} == {"KILLED"}
    sweep.log(spec, 2, start=(1, 4), steps=range(5, 11))
    sweep.sync()
    child = children(sweep.database)[spec.run_id]
    assert (child["status"], child["tags"]["attempt"], child["tags"]["reason"]) == ("FINISHED", "2", "")


def test_a_continued_run_is_one_curve(sweep: Sweep) -> None:
    spec = make_spec(steps=120)
    sweep = make_sweep(sweep.root.path.parent / "long", [spec])
    sweep.log(spec, steps=range(1, 101), checkpoints=[40, 80], end=None, is_alive=False)
    sweep.sync()
    assert [step for step, _ in curve(sweep, spec)] == list(range(1, 81))
    sweep.log(spec, 2, start=(1, 80), steps=range(81, 121))
    sweep.sync()
    assert curve(sweep, spec) == [(step, (1 if step <= 80 else 2) + step / 1000) for step in range(1, 121)]
    assert children(sweep.database)[spec.run_id]["tags"]["attempt"] == "2"


@pytest.mark.parametrize("restart", [(None, 0), (1, 4)])
def test_a_curve_measured_again_after_it_was_sent_replaces_the_first(sweep: Sweep, restart: tuple[int | None, int]) -> None:
    spec = sweep.specs[0]
    sweep.log(spec, steps=range(1, 9), checkpoints=[8], end=None, is_alive=False)
    sweep.sync()
    sweep.log(spec, 2, start=restart, steps=range(restart[1] + 1, 11))
    sweep.sync()
    assert keys(sweep, spec) == expected(sweep, spec)
    assert children(sweep.database)[spec.run_id]["status"] == "FINISHED"
    assert rows(sweep.database, "SELECT count(*) FROM runs WHERE lifecycle_stage = 'deleted'") == [(1,)]


def test_a_sweep_of_runs_that_were_done_before_it_was_planned_does_not_end_before_it_begins(sweep: Sweep) -> None:
    for spec in sweep.specs:
        sweep.log(spec)
    later = open_sweep(sweep.root, "later")
    later.write_plan(HEADER, sweep.specs, {spec.setup.setup_id: "lm" for spec in sweep.specs})
    assert sync(sweep.root.path, "later", sweep.uri, EXPERIMENT).is_complete
    whole = children(sweep.database)[""]
    assert whole["status"] == "FINISHED" and whole["start"] == whole["end"] > T0 + 10**6


def test_a_second_replay_sends_nothing(sweep: Sweep) -> None:
    for spec in sweep.specs:
        sweep.log(spec)
    sweep.sync()
    before = sweep.database.read_bytes()
    assert sweep.sync().samples == 0
    assert sweep.database.read_bytes() == before


def snapshot(sweep: Sweep) -> Any:
    runs = children(sweep.database)
    parent = runs[""]["id"]
    for run in runs.values():
        assert run["tags"].pop("mlflow.parentRunId", parent) == parent
        del run["id"]
    return runs, {spec.run_id: samples(sweep.database, spec.run_id) for spec in sweep.specs}


def lose_file(sweep: Sweep) -> None:
    sweep.database.unlink()


def lose_runs(sweep: Sweep) -> None:
    with sqlite3.connect(sweep.database) as connection:
        for table in ("metrics", "latest_metrics", "params", "tags", "runs"):
            connection.execute(f"DELETE FROM {table}")
    connection.close()


def lose_one_run(sweep: Sweep) -> None:
    run = children(sweep.database)[sweep.specs[1].run_id]["id"]
    with sqlite3.connect(sweep.database) as connection:
        for table in ("metrics", "latest_metrics", "params", "tags", "runs"):
            connection.execute(f"DELETE FROM {table} WHERE run_uuid = ?", (run,))
    connection.close()


def lose_cursor(sweep: Sweep) -> None:
    next((sweep.dir.path / "mlflow").glob("*/cursor.jsonl")).unlink()


def lose_end(sweep: Sweep) -> None:
    """As a copy of the database that was made while a run went on."""
    run = children(sweep.database)[sweep.specs[1].run_id]["id"]
    with sqlite3.connect(sweep.database) as connection:
        connection.execute("DELETE FROM metrics WHERE run_uuid = ? AND step > 5", (run,))
        connection.execute("DELETE FROM latest_metrics WHERE run_uuid = ?", (run,))
        connection.execute("UPDATE tags SET value = 'running' WHERE key = 'status' AND run_uuid = ?", (run,))
        connection.execute("UPDATE runs SET status = 'RUNNING', end_time = NULL WHERE run_uuid = ?", (run,))
    connection.close()


@pytest.mark.parametrize("lose", [lose_file, lose_runs, lose_one_run, lose_cursor, lose_end])
def test_whatever_is_lost_is_rebuilt_as_it_was(sweep: Sweep, lose: Callable[[Sweep], None]) -> None:
    for spec, end in zip(sweep.specs, ("finished", "diverged", "failed", "released"), strict=True):
        sweep.log(spec, end=end, checkpoints=[6])
    sweep.sync()
    before = snapshot(sweep)
    lose(sweep)
    sweep.sync()
    assert snapshot(sweep) == before


def test_a_run_deleted_in_mlflow_stays_deleted(sweep: Sweep) -> None:
    spec = sweep.specs[0]
    sweep.log(spec, end=None, steps=range(1, 6), checkpoints=[4])
    sweep.sync()
    tracker = SqliteTracker(sweep.database, "1")
    tracker.delete_run(children(sweep.database)[spec.run_id]["id"])
    tracker.commit()
    sweep.log(spec, 2, start=(1, 4), steps=range(5, 11))
    assert sweep.sync().removed == 1
    assert spec.run_id not in children(sweep.database)


def test_two_sweeps_share_a_run_and_each_shows_it(sweep: Sweep) -> None:
    other = make_sweep(sweep.root.path.parent, sweep.specs[:1], name="other")
    sweep.log(sweep.specs[0])
    sweep.sync()
    other.sync()
    assert rows(sweep.database, "SELECT value, count(*) FROM tags WHERE key = 'sweep' GROUP BY value") == [("grid", 2), ("other", 2)]


def test_roots_with_a_sweep_of_one_name_do_not_mix_in_one_database(tmp_path: Path) -> None:
    one, other = make_sweep(tmp_path / "one"), make_sweep(tmp_path / "other")
    for sweep in (one, other):
        sweep.log(sweep.specs[0])
    one.sync()
    sync(other.root.path, "grid", one.uri, EXPERIMENT)
    assert rows(one.database, "SELECT count(*) FROM runs") == [(4,)]
    assert rows(one.database, "SELECT count(*) FROM metrics") == [(2 * 21,)]


def test_a_damaged_run_is_named_and_the_others_arrive(sweep: Sweep) -> None:
    for spec in sweep.specs:
        sweep.log(spec)
    path = sweep.run_dir(sweep.specs[1]).events_path(1)
    path.write_bytes(path.read_bytes().replace(b'"event":"metrics"', b'"event"', 1))
    report = sweep.sync()
    assert len(report.damaged) == 1
    assert str(path.parent) in report.damaged[0]
    assert [len(samples(sweep.database, spec.run_id)) for spec in sweep.specs] == [21, 0, 21, 21]


def test_ugly_names_and_values_lose_nothing_else_and_are_reported(tmp_path: Path) -> None:
    spec = make_spec(
        steps=1000,
        subject={"kind": "python", "name": "mine", "target": "m:S", "args": {"text": "x" * 7000, "rate [1/s]": 3, "none": None}},
        model={"kind": "none", "name": "none"},
        data={"kind": "none", "name": "none"},
    )
    sweep = make_sweep(tmp_path, [spec])
    ugly = {"loss[delta=1.3]": 1.0, "k" * 300: 2.0, "../up": 3.0, "nan": float("nan"), "inf": float("inf"), "": 4.0, "naïve Größe": 5.0}
    many = {f"plain {i}": float(i) for i in range(1000)}
    sweep.log(spec, steps=[1], values={**ugly, **many}, final={"bad (x)": float("-inf")})
    report = sweep.sync()
    found = {key: value for key, _, _, value, is_nan in samples(sweep.database, spec.run_id) if not is_nan}
    assert {found[f"plain {i}"] for i in range(1000)} == {float(i) for i in range(1000)}
    assert {found["loss_delta_1.3_"], found["__/up"], found["_"], found["naïve Größe"]} == {1.0, 3.0, 4.0, 5.0}
    nans = [key for key, _, _, _, is_nan in samples(sweep.database, spec.run_id) if is_nan]
    assert nans == ["final/bad _x_", "inf", "nan"]
    assert len(samples(sweep.database, spec.run_id)) == 1008
    child = children(sweep.database)[spec.run_id]
    assert len(child["params"]["subject.args.text"]) == 6000
    assert child["params"]["subject.args.rate _1/s_"] == "3"
    for words in ("subject.args.text is cut to 6000 of 7000", "loss[delta=1.3]", "inf: inf is stored as nan", "300 characters"):
        assert words in child["tags"]["altered"]
        assert words in report.altered[0]


def test_runs_of_an_older_plan_stay_and_those_never_started_are_not_counted(sweep: Sweep) -> None:
    sweep.log(sweep.specs[0])
    make_sweep(sweep.root.path.parent, [make_spec(seed=9)])
    assert sweep.sync().runs == 1
    assert "2 runs: 1 finished, 1 planned" in children(sweep.database)[""]["tags"]["mlflow.note.content"]


def test_a_cancelled_sweep_is_told_as_the_status_tells_it(sweep: Sweep) -> None:
    sweep.log(sweep.specs[0])
    sweep.log(sweep.specs[1], end="failed")
    sweep.log(sweep.specs[2], end=None, is_alive=False)
    sweep.dir.set_cancelled(True)
    sweep.sync()
    found = children(sweep.database)
    assert [found[spec.run_id]["tags"]["status"] for spec in sweep.specs[:3]] == ["finished", "failed", "cancelled"]
    assert "4 runs: 1 finished, 1 failed, 2 cancelled" in found[""]["tags"]["mlflow.note.content"]


def test_files_are_kept_with_the_sweep(sweep: Sweep, tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("<p>")
    report = sweep.sync(files=[tmp_path / "report.html", tmp_path / "missing.csv"])
    assert report.damaged == [f"{tmp_path / 'missing.csv'}: not kept in MLflow: No such file or directory"]
    ((uri,),) = rows(sweep.database, "SELECT artifact_uri FROM runs")
    assert (Path(uri.removeprefix("file://")) / "report.html").read_text() == "<p>"


@pytest.mark.parametrize(("before", "group_s"), [(True, 0.0), (False, 0.0), (False, 9.0)])
def test_a_replay_killed_at_every_single_step_neither_doubles_nor_loses_anything(
    tmp_path: Path, before: bool, group_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlflow_run, "BATCH", 15)
    monkeypatch.setattr(mlflow_replay, "GROUP_S", group_s)
    spec, other = make_spec(), make_spec(seed=1)
    sweep = make_sweep(tmp_path, [spec, other])
    sweep.log(spec, steps=range(1, 9), checkpoints=[8], end=None, is_alive=False)
    sweep.sync()
    sweep.log(spec, 2, start=(1, 4), steps=range(5, 11))  # what was sent of steps 5 to 8 is void
    sweep.log(other)
    kept = {path: path.read_bytes() for path in (sweep.database, *sweep.dir.path.glob("mlflow/*/cursor.jsonl"))}

    calls, was_killed = 0, True
    while was_killed:
        for path, content in kept.items():
            path.write_bytes(content)
        was_killed = killed_after(SqliteTracker, sweep, calls, before=before)
        sweep.sync()
        assert [keys(sweep, s) for s in (spec, other)] == [expected(sweep, s) for s in (spec, other)]
        assert {run["status"] for run in children(sweep.database).values()} == {"FINISHED"}
        assert all(len(run["params"]) > 40 for key, run in children(sweep.database).items() if key)
        calls += 1
    assert calls > 15


def test_what_mlflow_refused_stays_said_in_later_passes(sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = sweep.specs[0]
    monkeypatch.setattr(SqliteTracker, "log_params", lambda *_: ["accum: refused"])
    sweep.log(spec, end=None, checkpoints=[10])
    sweep.sync()
    with sweep.run_dir(spec).writer(1) as writer:
        writer.end("finished", 10, {"x": float("inf")})
    sweep.sync()
    assert children(sweep.database)[spec.run_id]["tags"]["altered"] == "accum: refused; final/x: inf is stored as nan"


def test_the_statistics_of_the_database_are_renewed_at_the_end(sweep: Sweep) -> None:
    def sizes() -> list[tuple[str]]:
        return rows(sweep.database, "SELECT stat FROM sqlite_stat1 WHERE tbl = 'runs' LIMIT 1")

    sweep.log(sweep.specs[0])
    sweep.sync()
    assert sizes() == [("2 1",)] or sizes()[0][0].startswith("2")
    sweep.log(sweep.specs[1])
    sweep.sync()
    assert sizes()[0][0].startswith("3")
