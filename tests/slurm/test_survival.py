"""What a cluster does to jobs while they run: every run ends in a true state, goes on where it was, and none is spent on it."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from accum_sweeps.jobs.slurm_queue import SlurmQueue
from accum_sweeps.jobs.status import cancel
from accum_sweeps.record.state import INTERRUPTED
from tests.jobs.sweeps import seeds
from tests.slurm.cluster import Cluster, wait_for
from tests.slurm.sweeps import ClusterSweep

MakeSweep = Callable[..., ClusterSweep]
LONG = {"step_s": 0.2}


@pytest.fixture
def make(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeSweep:
    cluster.wait_idle()

    def make_one(specs: list[Any]) -> ClusterSweep:
        return ClusterSweep(cluster, tmp_path / "root", specs, monkeypatch)

    return make_one


def attempts(sweep: ClusterSweep) -> list[int]:
    return [state.attempt for state in sweep.by_seed().values()]


def steps(sweep: ClusterSweep) -> list[list[int]]:
    """The curve of each run: the steps of its points that count."""
    found = []
    for state in sweep.by_seed().values():
        found.append([point.step for point in sweep.root.run_dir(state.run_id, state.env_id).history().points()])
    return found


def outcomes(sweep: ClusterSweep, seed: int) -> list[str | None]:
    state = sweep.by_seed()[seed]
    history = sweep.root.run_dir(state.run_id, state.env_id).history()
    return [history.attempts[number].outcome for number in sorted(history.attempts)]


def test_at_its_time_limit_a_job_saves_its_run_and_goes_on_after_a_requeue(make: MakeSweep) -> None:
    sweep = make(seeds(1, steps=300))
    sweep.command(fake=LONG, time_min=30, signal_before_limit_s=115, max_attempts=1)
    job = sweep.wait_for_step(3).claim["job"]
    sweep.cluster.run("scontrol", "update", f"JobId={job}", "TimeLimit=2")
    wait_for(lambda: sweep.cluster.job(job)["Restarts"] == "1", "the job is not requeued", 90)
    sweep.cluster.run("scontrol", "update", f"JobId={job}", "TimeLimit=30")
    sweep.wait_until_idle()
    *before, last = outcomes(sweep, 0)
    assert sweep.counts() == {"finished": 1} and last == "finished" and set(before) == {"released"}, "one attempt for each turn"
    assert steps(sweep) == [list(range(1, 301))], "one curve"
    assert set(sweep.jobs().values()) == {"COMPLETED"}


def test_preempted_runs_go_on_and_no_attempt_is_spent(make: MakeSweep) -> None:
    sweep = make(seeds(2, steps=40))
    sweep.command(fake=LONG, max_attempts=1)
    wait_for(lambda: sorted(s.step > 2 for s in sweep.by_seed().values()) == [True, True], "not both runs are at work", 60)
    urgent = ("--partition=high", "--exclusive", "--nodes=2", "--output=/dev/null", "--wrap=sleep 1")
    sweep.cluster.run("sbatch", *urgent)
    wait_for(lambda: set(sweep.jobs().values()) == {"PENDING"}, "nothing is preempted", 60)
    assert sweep.counts() == {"planned": 2}, "nobody works on them meanwhile"
    sweep.wait_until_idle()
    assert sweep.counts() == {"finished": 2} and attempts(sweep) == [2, 2]
    assert steps(sweep) == [list(range(1, 41))] * 2


def test_preempted_before_it_can_save_a_run_is_taken_up_again_from_its_checkpoint(make: MakeSweep) -> None:
    sweep = make(seeds(1, steps=40))
    hanging = {"by_seed": {"0": "once-hang"}, "trouble_step": 15}
    sweep.command(fake=hanging, max_attempts=1, checkpoint_every=10, stop_grace_s=60)
    state = sweep.wait_for_step(10)
    sweep.cluster.run("scontrol", "requeue", state.claim["job"])
    sweep.wait_until_idle()
    assert sweep.counts() == {"finished": 1} and outcomes(sweep, 0) == [None, "finished"]
    assert (sweep.root.run_folder(state.run_id) / "lost.1").read_text().startswith(INTERRUPTED)
    assert steps(sweep) == [list(range(1, 41))], "what the first attempt did after its checkpoint does not count twice"


def test_a_lost_node_costs_no_attempt(make: MakeSweep) -> None:
    sweep = make(seeds(2, steps=40))
    sweep.command(fake=LONG, max_attempts=1)
    wait_for(lambda: sorted(s.step > 2 for s in sweep.by_seed().values()) == [True, True], "not both runs are at work", 60)
    sweep.cluster.set_down("n1")
    wait_for(lambda: "PENDING" in sweep.jobs().values() or max(attempts(sweep)) > 1, "no job is requeued", 60)
    sweep.cluster.set_up("n1")
    sweep.wait_until_idle()
    assert sweep.counts() == {"finished": 2}
    assert steps(sweep) == [list(range(1, 41))] * 2


def test_a_killed_worker_is_replaced_in_its_job(make: MakeSweep) -> None:
    sweep = make(seeds(2, steps=30))
    sweep.command(fake=LONG, workers=1)
    state = sweep.wait_for_step(3)
    os.kill(sweep.worker(state), signal.SIGKILL)
    sweep.wait_until_idle()
    assert sweep.counts() == {"finished": 2} and sorted(attempts(sweep)) == [1, 2]
    assert list(sweep.jobs().values()) == ["COMPLETED"], "the second attempt went well"


def test_a_job_ended_by_hand_leaves_its_run_for_the_same_command(make: MakeSweep) -> None:
    sweep = make(seeds(2, steps=30))
    sweep.command(fake=LONG, workers=1)
    state = sweep.wait_for_step(3)
    sweep.cluster.run("scancel", state.claim["job"])
    sweep.wait_until_idle()
    assert sweep.counts() == {"planned": 2} and sweep.by_seed()[0].reason == "stopped by SIGTERM"
    sweep.command()
    sweep.wait_until_idle()
    assert sweep.counts() == {"finished": 2} and steps(sweep) == [list(range(1, 31))] * 2


def test_cancel_ends_running_and_waiting_jobs(make: MakeSweep) -> None:
    sweep = make(seeds(12, steps=200))
    sweep.command(fake=LONG)
    sweep.wait_for_step(1)
    assert "PENDING" in sweep.jobs().values()
    assert cancel(sweep.sweep, wait_s=30, queue=SlurmQueue(sweep.sweep)) == 0
    sweep.wait_until_idle()
    assert set(sweep.counts()) == {"planned"}
