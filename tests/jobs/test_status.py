"""What is said about a sweep comes from its run directories."""

from pathlib import Path

import pytest

from accum_sweeps.jobs.claims import mark_lost, take
from accum_sweeps.jobs.status import cancel, sweep_status
from accum_sweeps.plan.errors import UserError
from accum_sweeps.record.store import RootDir
from accum_sweeps.record.sweep import open_sweep
from tests.jobs.sweeps import make_sweep, seeds

ENV = "e" * 12


def attempt(root: RootDir, run_id: str, outcome: str, number: int = 1, env_id: str = ENV) -> None:
    content = {"env_id": env_id, "dispatch": "d", "expiry_s": 60.0, "job": "job-7"}
    assert take(root, run_id, number - 1, content) is not None
    run_dir = root.run_dir(run_id, env_id)
    run_dir.path.mkdir(exist_ok=True)
    with run_dir.writer(number) as writer:
        writer.start(None, 0)
        writer.metrics(4, {"train_loss": 1.0})
        if outcome == "failed":
            writer.failed(4, "ValueError: no")
        elif outcome in ("finished", "diverged"):
            writer.end(outcome, 10, {})


def test_each_run_has_a_status_and_those_in_trouble_a_line(tmp_path: Path) -> None:
    root, sweep, plan = make_sweep(tmp_path / "root", [*seeds(5), *seeds(2, dtype="fp64")])
    ids = [run.run_id for run in plan.runs]
    for run_id, outcome in zip(ids, ("finished", "diverged", "failed", "running", "dead"), strict=False):
        attempt(root, run_id, outcome)
    mark_lost(root, ids[4], 1, "killed by SIGKILL")
    attempt(root, ids[6], "finished", env_id="f" * 12)
    attempt(root, ids[6], "failed", number=2)
    status = sweep_status(sweep)
    assert status.counts == {"finished": 2, "diverged": 1, "failed": 1, "running": 1, "lost": 1, "planned": 1}
    assert status.by_setup == {
        "fp32": {"finished": 1, "diverged": 1, "failed": 1, "running": 1, "lost": 1},
        "fp64": {"planned": 1, "finished": 1},
    }
    assert status.done_in == {ENV: 2, "f" * 12: 1}
    lines = {line.status: line for line in status.lines}
    assert (lines["failed"].reason, lines["lost"].reason) == ("ValueError: no", "killed by SIGKILL")
    running = lines["running"]
    assert (running.name, running.step, running.steps, running.job, running.attempt) == ("fp32 k=1 s=3", 4, 10, "job-7", 1)
    assert running.log == root.run_dir(ids[3], ENV).log_path(1)


def test_cancelled_is_what_nobody_works_on_any_more(tmp_path: Path) -> None:
    root, sweep, plan = make_sweep(tmp_path / "root", seeds(4))
    for run, outcome in zip(plan.runs, ("finished", "failed", "running"), strict=False):
        attempt(root, run.run_id, outcome)
    assert cancel(sweep, wait_s=0.3) == 1
    assert sweep_status(sweep).counts == {"finished": 1, "failed": 1, "running": 1, "cancelled": 1}
    mark_lost(root, plan.runs[2].run_id, 1, "gone")
    assert cancel(sweep) == 0
    assert sweep_status(sweep).counts == {"finished": 1, "failed": 1, "cancelled": 2}
    sweep.set_cancelled(False)
    assert sweep_status(sweep).counts == {"finished": 1, "failed": 1, "lost": 1, "planned": 1}


def test_a_sweep_never_planned_is_refused(tmp_path: Path) -> None:
    root, _, _ = make_sweep(tmp_path / "root", seeds(1))
    for action in (sweep_status, cancel):
        with pytest.raises(UserError, match="sweep=other: not planned"):
            action(open_sweep(root, "other"))
