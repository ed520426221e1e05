"""A run done in several environments: one child for each, and a rebuilt database equals one filled while things went on."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from accum_sweeps.record import mlflow_replay, mlflow_run
from accum_sweeps.record.mlflow_sqlite import SqliteTracker
from accum_sweeps.record.mlflow_sync import Lag, lag
from tests.record.replays import ENV, EXPERIMENT, Sweep, children, killed_after, make_sweep, rows
from tests.specs import make_spec

OTHER = "ba9876543210"
NAME = "lm-tiny adamw fp32 k=1 s=0"
Way = Callable[[Sweep], Any]


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    return make_sweep(tmp_path, [make_spec(), make_spec(seed=1)])


def stored(sweep: Sweep) -> dict[str, Any]:
    """All that MLflow shows, without the ids that are drawn anew each time."""
    found = children(sweep.database)
    parent = found[""]["id"]
    for run in found.values():
        assert run["tags"].pop("mlflow.parentRunId", parent) == parent
        identifier = run.pop("id")
        run["metrics"], run["latest"] = (
            sorted(rows(sweep.database, f"SELECT key, step, timestamp, value, is_nan FROM {table} WHERE run_uuid = ?", identifier))
            for table in ("metrics", "latest_metrics")
        )
    return found


def rebuilt(sweep: Sweep) -> dict[str, Any]:
    sweep.database.unlink()
    sweep.sync()
    return stored(sweep)


def names(sweep: Sweep) -> dict[str, str]:
    return {key: run["name"] for key, run in children(sweep.database).items() if key}


def direct(sweep: Sweep) -> Any:
    return sweep.sync()


def by_client(sweep: Sweep) -> Any:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(SqliteTracker, "open", classmethod(lambda cls, uri, experiment_id: None))
        return sweep.sync()


@pytest.mark.parametrize("way", [direct, by_client])
def test_a_sweep_done_in_two_environments_one_after_the_other_is_rebuilt_as_it_was(sweep: Sweep, way: Way) -> None:
    for number, env_id in ((1, ENV), (2, OTHER)):
        for spec in sweep.specs:
            sweep.log(spec, number, env_id=env_id)
        report = way(sweep)
        assert (report.created, report.samples) == (2, 42)
    assert report.runs == 4
    before = stored(sweep)
    assert {run["tags"].get("env_id") for key, run in before.items() if key} == {ENV, OTHER}
    assert sum(len(run["metrics"]) for run in before.values()) == 84
    assert rebuilt(sweep) == before


def test_all_but_the_oldest_environment_are_in_the_name(sweep: Sweep) -> None:
    spec = sweep.specs[0]
    sweep.log(spec)
    sweep.sync()
    assert names(sweep) == {spec.run_id: NAME}
    sweep.log(spec, 2, env_id=OTHER)
    sweep.sync()
    assert names(sweep) == {spec.run_id: NAME, f"{spec.run_id}/{OTHER}": f"{NAME} env=ba9876"}


def test_what_another_environment_left_undone_gives_way_to_the_newest_claim(sweep: Sweep) -> None:
    spec = sweep.specs[0]
    sweep.log(spec, steps=range(1, 6), checkpoints=[4], end=None, is_alive=False)
    sweep.sync()
    assert names(sweep) == {spec.run_id: NAME}
    sweep.log(spec, 2, env_id=OTHER, end=None, checkpoints=[6])
    sweep.sync()
    assert names(sweep) == {f"{spec.run_id}/{OTHER}": NAME}
    with sweep.run_dir(spec, OTHER).writer(2) as writer:
        writer.end("finished", 10, {})
    sweep.log(spec, 3, start=(1, 4), steps=range(5, 11))
    sweep.sync()
    assert names(sweep) == {spec.run_id: f"{NAME} env={ENV[:6]}", f"{spec.run_id}/{OTHER}": NAME}
    before = stored(sweep)
    assert [len(before[key]["metrics"]) for key in (spec.run_id, f"{spec.run_id}/{OTHER}")] == [21, 20]
    assert rebuilt(sweep) == before


def test_what_is_left_of_a_lost_journal_and_counts_no_more_is_hidden(sweep: Sweep) -> None:
    spec = sweep.specs[0]
    sweep.log(spec, end=None, is_alive=False)
    sweep.sync()
    next((sweep.dir.path / "mlflow").glob("*/cursor.jsonl")).unlink()
    sweep.log(spec, 2, env_id=OTHER)
    sweep.sync()
    assert names(sweep) == {f"{spec.run_id}/{OTHER}": NAME}


def test_a_run_that_is_done_stays_while_another_environment_does_it_again(sweep: Sweep) -> None:
    spec = sweep.specs[0]
    sweep.log(spec)
    sweep.sync()
    before = stored(sweep)[spec.run_id]
    sweep.log(spec, 2, env_id=OTHER, end=None, checkpoints=[10])
    assert sweep.sync().running == 1  # a follower waits for its end
    assert {key: run for key, run in stored(sweep).items() if key} == {spec.run_id: before}
    assert lag(sweep.root.path, "grid", sweep.uri, EXPERIMENT) == Lag()


@pytest.mark.parametrize("way", [direct, by_client])
def test_an_owner_taken_for_dead_that_finishes_late_changes_the_names(sweep: Sweep, way: Way) -> None:
    spec = sweep.specs[0]
    sweep.log(spec, end=None, is_alive=False)
    sweep.log(spec, 2, env_id=OTHER)
    way(sweep)
    assert names(sweep) == {f"{spec.run_id}/{OTHER}": NAME}
    with sweep.run_dir(spec).writer(1) as writer:
        writer.end("diverged", 10, {})
    assert lag(sweep.root.path, "grid", sweep.uri, EXPERIMENT) == Lag(runs=1, samples=20)
    way(sweep)
    assert names(sweep) == {spec.run_id: NAME, f"{spec.run_id}/{OTHER}": f"{NAME} env=ba9876"}
    before = stored(sweep)
    assert before[spec.run_id]["tags"]["status"] == "diverged"
    assert rebuilt(sweep) == before


def test_a_name_given_in_mlflow_stays(sweep: Sweep) -> None:
    spec = sweep.specs[0]
    sweep.log(spec, end=None, checkpoints=[10])
    sweep.sync()
    tracker = SqliteTracker(sweep.database, "1")
    tracker.set_tags(children(sweep.database)[spec.run_id]["id"], {"mlflow.runName": "mine"})
    tracker.commit()
    tracker.close()
    with sweep.run_dir(spec).writer(1) as writer:
        writer.end("finished", 10, {})
    sweep.sync()
    assert children(sweep.database)[spec.run_id]["status"] == "FINISHED"
    assert names(sweep) == {spec.run_id: "mine"}


def test_the_lag_counts_every_environment_in_which_a_run_is_done(sweep: Sweep) -> None:
    spec = sweep.specs[0]
    sweep.log(spec)
    sweep.log(spec, 2, env_id=OTHER)
    assert lag(sweep.root.path, "grid", sweep.uri, EXPERIMENT) == Lag(runs=1, samples=42)
    sweep.sync()
    assert lag(sweep.root.path, "grid", sweep.uri, EXPERIMENT) == Lag()


def test_a_directory_with_another_runs_specification_is_shown_as_damaged_until_it_is_mended(sweep: Sweep) -> None:
    spec = sweep.specs[0]
    sweep.log(spec)
    path = sweep.run_dir(spec).path / "spec.json"
    content = path.read_text()
    path.write_text("{}")
    report = sweep.sync()
    assert (len(report.damaged), report.samples) == (1, 0)
    child = children(sweep.database)[spec.run_id]
    assert (child["status"], child["tags"]["reason"]) == ("FAILED", f"damaged: {report.damaged[0]}")
    path.write_text(content)
    assert sweep.sync().samples == 21
    assert children(sweep.database)[spec.run_id]["status"] == "FINISHED"


@pytest.mark.parametrize(("before", "group_s"), [(True, 0.0), (False, 0.0), (False, 9.0)])
def test_a_replay_killed_at_any_step_leaves_what_a_rebuilt_database_has(
    tmp_path: Path, before: bool, group_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlflow_run, "BATCH", 15)
    monkeypatch.setattr(mlflow_replay, "GROUP_S", group_s)
    sweep = make_sweep(tmp_path, [make_spec(), make_spec(seed=1)])
    first, second = sweep.specs
    sweep.log(first, checkpoints=[8], end=None, is_alive=False)
    sweep.log(second)
    sweep.sync()
    sweep.log(first, 2, env_id=OTHER)  # hides the child of ENV
    sweep.log(second, 2, env_id=OTHER)  # is a second child
    kept = {path: path.read_bytes() for path in (sweep.database, *sweep.dir.path.glob("mlflow/*/cursor.jsonl"))}
    wanted = rebuilt(sweep)
    calls, was_killed = 0, True
    while was_killed:
        for path, content in kept.items():
            path.write_bytes(content)
        was_killed = killed_after(SqliteTracker, sweep, calls, before=before)
        sweep.sync()
        assert stored(sweep) == wanted
        calls += 2
    assert calls > 15
