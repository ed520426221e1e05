"""A worker job's turns, what it leaves, and which job closes a sweep; and runs that are lost because SLURM has ended their job."""

import dataclasses
import json
import os
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from accum_sweeps.jobs.claims import take
from accum_sweeps.jobs.order import Group, WorkOrder
from accum_sweeps.jobs.resources import read_resources
from accum_sweeps.jobs.slots import SlotPool
from accum_sweeps.jobs.slurm_ask import JobRow
from accum_sweeps.jobs.slurm_gone import mark_gone
from accum_sweeps.jobs.slurm_job import SlurmWorker, earlier_turns, is_over, named
from accum_sweeps.jobs.slurm_queue import Answer
from accum_sweeps.jobs.supervise import RunsFailedError
from accum_sweeps.jobs.worker import WorkEnd
from accum_sweeps.plan.errors import UserError
from accum_sweeps.record.state import INTERRUPTED, file_system_now, run_state
from tests.jobs.sweeps import ENGINE, make_sweep, seeds

CLOSING = "tests.jobs.fake_closing"


@pytest.fixture
def in_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Pretends that this process is in a task of an array."""

    def set_job(task: int = 3, turn: int = 0) -> None:
        facts = {"SLURM_ARRAY_JOB_ID": 12, "SLURM_ARRAY_TASK_ID": task, "SLURM_RESTART_COUNT": turn, "SLURMD_NODENAME": "n7"}
        for name, value in {**facts, "SUBMITIT_FOLDER": tmp_path}.items():
            monkeypatch.setenv(name, str(value))

    set_job()
    return set_job


def order(folder: Path, **changes: Any) -> WorkOrder:
    resources = read_resources({"kind": "slurm", "heartbeat_s": 0.2, "expiry_s": 15.0, "stop_grace_s": 5.0, "max_attempts": 1})
    made = WorkOrder(
        root=str(folder),
        sweep="s",
        revision=1,
        dispatch="d",
        name="",
        group=Group("cpu", 1, True),
        pool=SlotPool("job", (), 0, 0),
        resources=resources,
        engine=ENGINE,
        release=metadata.version("accum_sweeps"),
        linger_s=1.0,
        closing=CLOSING,
        closing_facts={"kept_in": str(folder.parent / "closed")},
    )
    return dataclasses.replace(made, **changes)


def work(folder: Path, **changes: Any) -> WorkEnd:
    """The job's work, in a child's place: signal handlers are given back."""
    return SlurmWorker(order(folder, **changes))()


def closings(folder: Path) -> list[dict[str, Any]]:
    path = folder.parent / "closed"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_job_names_itself_by_array_task_and_turn(in_job: Callable[..., None], tmp_path: Path) -> None:
    first = named(order(tmp_path))
    assert (first.name, first.job, first.node, first.log) == ("d-j12_3", "12_3", "n7", f"{tmp_path}/12_3_0_log.out")
    in_job(turn=2)
    assert named(order(tmp_path)).name == "d-j12_3-t2"


def test_the_job_that_finds_the_sweep_over_closes_it_once(in_job: Callable[..., None], tmp_path: Path, fake: Callable[..., None]) -> None:
    fake()
    root, _, plan = make_sweep(tmp_path / "root", seeds(3))
    assert work(tmp_path / "root").kind == "done"
    assert [run_state(root, run.run_id).status for run in plan.runs] == ["finished"] * 3
    assert {run_state(root, run.run_id).claim["node"] for run in plan.runs} == {"n7"}
    in_job(task=4)
    assert work(tmp_path / "root").kind == "done"
    assert [line["sweep"] for line in closings(tmp_path / "root")] == ["s"]


def test_a_closing_that_fails_fails_no_job(
    in_job: Callable[..., None], tmp_path: Path, fake: Callable[..., None], capfd: pytest.CaptureFixture[str]
) -> None:
    fake()
    make_sweep(tmp_path / "root", seeds(1))
    assert work(tmp_path / "root", closing="tests.jobs.no_such_module").kind == "done"
    assert "closing the sweep ended with exit code 1" in capfd.readouterr().err


def test_a_job_with_a_failed_run_fails_after_its_mates_and_the_sweep_is_closed(
    in_job: Callable[..., None], tmp_path: Path, fake: Callable[..., None]
) -> None:
    fake(by_seed={"0": "raise"})
    root, _, plan = make_sweep(tmp_path / "root", seeds(3))
    with pytest.raises(RunsFailedError, match="1 run failed"):
        work(tmp_path / "root")
    assert [run_state(root, run.run_id).status for run in plan.runs] == ["failed", "finished", "finished"]
    assert len(closings(tmp_path / "root")) == 1


def test_a_requeued_job_still_fails_for_a_run_that_failed_in_its_first_turn(
    in_job: Callable[..., None], tmp_path: Path, fake: Callable[..., None]
) -> None:
    fake(by_seed={"0": "raise"})
    root, sweep, plan = make_sweep(tmp_path / "root", seeds(2))
    with pytest.raises(RunsFailedError):
        work(tmp_path / "root")
    in_job(turn=1)
    assert earlier_turns(root, sweep, named(order(tmp_path / "root"))) == {plan.runs[0].run_id}
    with pytest.raises(RunsFailedError):
        work(tmp_path / "root")


def test_a_run_held_by_an_earlier_turn_is_interrupted_and_no_attempt_is_spent(
    in_job: Callable[..., None], tmp_path: Path, fake: Callable[..., None]
) -> None:
    fake()
    root, sweep, plan = make_sweep(tmp_path / "root", seeds(1))
    run_id = plan.runs[0].run_id
    assert take(root, run_id, 0, {"env_id": "e" * 12, "dispatch": "d", "expiry_s": 60.0})
    (sweep.path / "workers").mkdir()
    claimed = {"event": "claimed", "time": 1, "run": run_id, "attempt": 1, "env_id": "e" * 12}
    (sweep.path / "workers" / "d-j12_3.jsonl").write_text(json.dumps(claimed) + "\n")
    in_job(turn=1)
    assert work(tmp_path / "root").kind == "done"
    state = run_state(root, run_id)
    assert (state.status, state.attempt) == ("finished", 2), "with max_attempts=1"
    assert (root.run_folder(run_id) / "lost.1").read_text() == f"{INTERRUPTED}: its job 12_3 was put back into the queue"


def test_another_release_on_a_node_is_named(in_job: Callable[..., None], tmp_path: Path) -> None:
    make_sweep(tmp_path / "root", seeds(1))
    with pytest.raises(UserError, match=r"is installed on node n7, 0\.0\.1 where the sweep was submitted"):
        work(tmp_path / "root", release="0.0.1")


def test_a_worker_leaves_its_node_when_others_have_the_rest(in_job: Callable[..., None], tmp_path: Path, fake: Callable[..., None]) -> None:
    fake()
    root, sweep, plan = make_sweep(tmp_path / "root", seeds(2))
    assert take(root, plan.runs[0].run_id, 0, {"env_id": "e" * 12, "dispatch": "d", "expiry_s": 600.0, "launcher": "slurm"})
    assert work(tmp_path / "root").kind == "idle"
    assert not is_over(root, sweep, order(tmp_path / "root")) and not closings(tmp_path / "root")


def test_a_cancelled_sweep_is_not_closed(in_job: Callable[..., None], tmp_path: Path, fake: Callable[..., None]) -> None:
    fake(step_s=0.3)
    _, sweep, _ = make_sweep(tmp_path / "root", seeds(1))
    sweep.set_cancelled(True)
    assert work(tmp_path / "root").kind == "stopped" and not closings(tmp_path / "root")


@pytest.mark.parametrize(
    ("row", "silent_s", "reason"),
    [
        (None, 30, "its job 12_3 is gone"),
        (JobRow("12", (3,), "RUNNING", "", "n1"), 30, ""),
        (JobRow("12", (3,), "OUT_OF_MEMORY"), 30, "its job 12_3 is out of memory"),
        (JobRow("12", (2, 3), "NODE_FAIL"), 30, f"{INTERRUPTED}: its job 12_3 is node fail"),
        (JobRow("12", (3,), "PENDING", "BeginTime"), 30, f"{INTERRUPTED}: its job 12_3 is pending (BeginTime)"),
        (None, 5, ""),
    ],
)
def test_a_silent_run_whose_job_slurm_has_ended_is_lost_at_once(tmp_path: Path, row: JobRow | None, silent_s: float, reason: str) -> None:
    root, _, plan = make_sweep(tmp_path / "root", seeds(1))
    run_id = plan.runs[0].run_id
    claim = take(root, run_id, 0, {"env_id": "e" * 12, "dispatch": "d", "expiry_s": 60.0, "job": "12_3", "launcher": "slurm"})
    assert claim is not None
    now = file_system_now(root.path)
    os.utime(claim.path, (now - silent_s, now - silent_s))
    answer = Answer((row,) if row else (), now)
    assert mark_gone(root, plan, answer) == ([run_id] if reason else [])
    state = run_state(root, run_id)
    assert (state.status, state.reason) == (("lost", reason) if reason else ("running", ""))
    assert mark_gone(root, plan, dataclasses.replace(answer, problem="no answer")) == []


def test_a_run_of_a_local_worker_is_none_of_slurms(tmp_path: Path) -> None:
    root, _, plan = make_sweep(tmp_path / "root", seeds(1))
    claim = take(root, plan.runs[0].run_id, 0, {"env_id": "e" * 12, "dispatch": "d", "expiry_s": 60.0, "job": "12_3", "launcher": "local"})
    assert claim is not None
    os.utime(claim.path, (1, 1))
    assert mark_gone(root, plan, Answer((), file_system_now(root.path)), {plan.runs[0].run_id: "running"}) == []
