"""Replays beside a running sweep: they follow, end when told or orphaned, wait for one another, and can be killed."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from accum_sweeps.plan.errors import UserError
from accum_sweeps.record import mlflow_sync
from accum_sweeps.record.mlflow_cursor import exclusive
from accum_sweeps.record.mlflow_replay import Replay
from accum_sweeps.record.mlflow_sync import Follower, Lag, lag, sync
from tests.record.replays import EXPERIMENT, Sweep, children, forked, make_sweep, samples
from tests.specs import make_spec


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    return make_sweep(tmp_path)


def follower(sweep: Sweep) -> Follower:
    return Follower(sweep.root.path, "grid", sweep.uri, EXPERIMENT)


def until(condition: Callable[[], bool], limit_s: float = 60) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def count(sweep: Sweep, number: int) -> int:
    try:
        return len(samples(sweep.database, sweep.specs[number].run_id))
    except Exception:  # not created yet
        return 0


def test_a_follower_sends_what_is_covered_while_the_run_goes_on_and_the_rest_when_told_to_stop(sweep: Sweep, tmp_path: Path) -> None:
    sweep.log(sweep.specs[0], steps=range(1, 9), checkpoints=[6], end=None)
    replay = follower(sweep)
    until(lambda: count(sweep, 0) == 12)
    assert children(sweep.database)[sweep.specs[0].run_id]["status"] == "RUNNING"
    with sweep.run_dir(sweep.specs[0]).writer(1) as writer:
        writer.end("finished", 8, {})
    until(lambda: count(sweep, 0) == 16)
    assert children(sweep.database)[""]["status"] == "RUNNING"
    (tmp_path / "table.csv").write_text("a,b")
    sweep.log(sweep.specs[1])
    report = replay.stop(files=[tmp_path / "table.csv"], verdict="No difference.")
    assert (report.samples, report.created, report.runs, report.warning) == (16 + 21, 2, 2, "")
    parent = children(sweep.database)[""]
    assert parent["status"] == "KILLED"  # two runs of the plan were never started
    assert "No difference." in parent["tags"]["mlflow.note.content"]
    assert len(list(sweep.root.path.glob("mlartifacts/*/artifacts/table.csv"))) == 1


@pytest.mark.parametrize("how", ["orphaned", "SIGTERM"])
def test_a_follower_ends_by_itself_and_leaves_nothing_running_that_does_not_run(sweep: Sweep, how: str) -> None:
    sweep.log(sweep.specs[0], end=None)
    replay = follower(sweep)
    until(lambda: sweep.database.exists() and sweep.specs[0].run_id in children(sweep.database))
    (sweep.root.run_folder(sweep.specs[0].run_id) / "lost.1").write_text("killed")
    assert replay.process.stdin is not None
    assert replay.process.stdout is not None
    if how == "orphaned":
        replay.process.stdin.close()
    else:
        replay.process.terminate()
    assert replay.process.wait(60) == 0
    assert json.loads(replay.process.stdout.read())["runs"] == 1
    replay.process.stdout.close()
    replay.process.stdin.close()
    assert {run["status"] for run in children(sweep.database).values()} == {"KILLED"}


def test_a_follower_that_cannot_work_says_why_and_the_exit_code_says_that_mlflow_lags(sweep: Sweep) -> None:
    sweep.database.write_text("words " * 1000)
    replay = follower(sweep)
    report = replay.stop()
    assert "file is not a database" in report.warning
    assert (replay.process.returncode, report.is_complete) == (3, False)
    with pytest.raises(UserError, match="file is not a database"):
        sweep.sync()


def created(sweep: Sweep) -> int:
    return len(children(sweep.database)) if sweep.database.exists() else 0


def test_a_follower_killed_at_random_moments_neither_doubles_nor_loses_anything(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path, [make_spec(seed=s, steps=200) for s in range(60)])
    draw = random.Random(0)
    for number in range(4):
        for spec in sweep.specs[15 * number : 15 * number + 15]:
            sweep.log(spec, steps=range(1, 201))
        replay, known = follower(sweep), created(sweep)
        until(lambda: created(sweep) > known)  # noqa: B023 (called at once)
        time.sleep(draw.uniform(0, 0.05))
        replay.process.send_signal(signal.SIGKILL)
        assert not replay.stop().is_complete
    sweep.sync()
    assert [len(samples(sweep.database, spec.run_id)) for spec in sweep.specs] == [401] * 60
    assert {run["status"] for run in children(sweep.database).values()} == {"FINISHED"}


def test_four_replays_at_one_moment_on_an_empty_root_create_everything_once(sweep: Sweep) -> None:
    for spec in sweep.specs:
        sweep.log(spec)
    pids = [forked(sweep.sync) for _ in range(4)]
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * 4
    assert len(children(sweep.database)) == 5
    assert [len(samples(sweep.database, spec.run_id)) for spec in sweep.specs] == [21] * 4


def test_a_second_replay_leaves_when_it_may_not_wait(sweep: Sweep) -> None:
    replay = Replay(sweep.root, sweep.dir, sweep.uri, EXPERIMENT)
    with exclusive(replay.folder / "lock", lambda: True) as is_held:
        assert is_held
        report = replay.run(lambda: True, is_over=True)
    assert (report.is_busy, report.is_complete, sweep.database.exists()) == (True, False, False)


def test_the_lag_is_what_was_not_sent_yet(sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    def now() -> Lag:
        return lag(sweep.root.path, "grid", sweep.uri, EXPERIMENT)

    assert now() == Lag()
    sweep.log(sweep.specs[0])
    sweep.log(sweep.specs[1], steps=range(1, 9), checkpoints=[6], end=None)
    assert now() == Lag(runs=2, samples=21 + 12)
    sweep.sync()
    assert now() == Lag()
    with sweep.run_dir(sweep.specs[1]).writer(1) as writer:
        writer.metrics(9, {"train_loss": 1.0})
        writer.checkpoint(9)
    assert now() == Lag(runs=1, samples=5)
    sweep.log(sweep.specs[2])
    sweep.log(sweep.specs[3])
    monkeypatch.setattr(mlflow_sync, "COUNTED_RUNS", 1)
    assert now() == Lag(runs=3, samples=15, is_estimate=True)


def test_the_state_alone_can_lag(sweep: Sweep) -> None:
    spec = sweep.specs[0]
    sweep.log(spec, checkpoints=[10], end=None)
    sweep.sync()
    with sweep.run_dir(spec).writer(1) as writer:
        writer.failed(10, "ValueError")
    assert lag(sweep.root.path, "grid", sweep.uri, EXPERIMENT) == Lag(runs=1, samples=0)


def test_neither_lag_nor_a_replay_into_sqlite_imports_mlflow(sweep: Sweep) -> None:
    sweep.log(sweep.specs[0])
    sweep.sync()
    sweep.log(sweep.specs[1])
    arguments = f"Path({str(sweep.root.path)!r}), 'grid', {sweep.uri!r}, {EXPERIMENT!r}"
    program = f"""
import sys
from pathlib import Path
from accum_sweeps.record.mlflow_sync import lag, prepare, sync
prepare({sweep.uri!r}, {EXPERIMENT!r})
print(lag({arguments}).samples, sync({arguments}).samples)
print(sorted({{"mlflow", "torch", "pandas", "numpy", "sqlalchemy"}} & set(sys.modules)))
"""
    output = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert output.splitlines() == ["21 21", "[]"]


def test_an_unknown_sweep_and_a_missing_root_are_said(sweep: Sweep, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no sweep root here"):
        sync(tmp_path / "nothing", "grid", sweep.uri, EXPERIMENT)
    with pytest.raises(UserError, match="not planned yet"):
        sync(sweep.root.path, "another", sweep.uri, EXPERIMENT)
