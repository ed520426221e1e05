"""Sweeps on a real cluster that is not disturbed: what is submitted, what SLURM shows, what a repeated command starts."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from accum_sweeps.jobs.slurm_queue import SlurmQueue
from accum_sweeps.jobs.status import cancel
from tests.jobs.sweeps import seeds, start_command
from tests.slurm.cluster import Cluster, wait_for
from tests.slurm.conftest import Make
from tests.slurm.sweeps import ClusterSweep
from tests.specs import make_spec

MakeSweep = Callable[..., ClusterSweep]


@pytest.fixture
def make(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeSweep:
    def make_one(specs: list[Any], on: Cluster = cluster) -> ClusterSweep:
        return ClusterSweep(on, tmp_path / "root", specs, monkeypatch)

    return make_one


def test_the_prompt_is_back_at_once_and_the_runs_are_done_without_it(make: MakeSweep) -> None:
    sweep = make(seeds(6))
    result = sweep.command(fake={"step_s": 0.1})
    assert result["counts"] == {"planned": 6} and result["seconds"] < 15
    sweep.wait_until_idle()
    assert sweep.counts() == {"finished": 6} and len(sweep.traced()) == 6
    assert set(sweep.jobs().values()) == {"COMPLETED"}
    hosts = {state.claim["node"] for state in sweep.by_seed().values()}
    assert hosts == {"n1", "n2"}, "workers on both nodes"


def test_a_command_that_waits_can_be_killed(make: MakeSweep) -> None:
    sweep = make(seeds(6))
    waiting = start_command(sweep.folder, fake={"step_s": 0.3}, kind="slurm", poll_s=1, wait=True)
    sweep.wait_for_step(2)
    waiting.send_signal(signal.SIGKILL)
    waiting.communicate()
    sweep.wait_until_idle()
    assert sweep.counts() == {"finished": 6}


def test_odd_names_reach_slurm_and_the_worker_as_they_are(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = ClusterSweep(cluster, tmp_path / "a root's $HOME; #1", seeds(2), monkeypatch)
    comment = "it's a 'test' of \"quotes\" $HOME `id` #1 end"
    sweep.command(options={"comment": comment}, setup=["export FROM_SETUP='1 2'"], container="env SHOWN=yes")
    sweep.wait_until_idle()
    assert sweep.counts() == {"finished": 2}, sweep.logs()
    (job, *_) = sweep.jobs()
    asked = ("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%k")
    assert sweep.cluster.run(*asked).strip() == comment


def test_jobs_that_end_without_their_runs_are_told_by_a_command_that_waits(make: MakeSweep) -> None:
    sweep = make(seeds(2))
    result = sweep.command(container="false", wait=True)
    assert result["counts"] == {"planned": 2}
    assert result["error"].startswith("2 runs left, and no job of this sweep any more.") and str(sweep.sweep.path) in result["error"]
    result = sweep.command(wait=True)
    assert result["counts"] == {"finished": 2} and result["error"] == ""


def test_ctrl_c_ends_the_waiting_and_not_the_jobs(make: MakeSweep) -> None:
    sweep = make(seeds(4))
    waiting = start_command(sweep.folder, fake={"step_s": 0.3}, kind="slurm", poll_s=1, wait=True)
    sweep.wait_for_step(2)
    waiting.send_signal(signal.SIGINT)
    out, _ = waiting.communicate(timeout=30)
    assert json.loads(out)["interrupted"] and not sweep.is_idle()
    sweep.wait_until_idle()
    assert sweep.counts() == {"finished": 4}


def test_a_command_that_waits_tells_how_it_came_out(make: MakeSweep) -> None:
    sweep = make(seeds(4))
    result = sweep.command(wait=True)
    assert result["counts"] == {"finished": 4} and not result["interrupted"]


def test_failed_runs_are_failed_in_slurm_too_and_spare_the_others(make: MakeSweep) -> None:
    sweep = make(seeds(12))
    sweep.command(fake={"by_seed": {"3": "raise", "7": "exit"}}, runs_per_job=1, max_attempts=1)
    sweep.wait_until_idle()
    states = sweep.by_seed()
    assert [seed for seed, state in states.items() if state.status != "finished"] == [3, 7]
    assert states[3].status == "failed" and "scripted trouble" in states[3].reason
    assert states[7].status == "lost" and "exit code 7" in states[7].reason
    failed = {job for job, state in sweep.jobs().items() if state == "FAILED"}
    assert failed == {states[3].claim["job"], states[7].claim["job"]}
    log = sweep.root.run_dir(states[3].run_id, states[3].env_id).log_path(1).read_text()
    assert "Traceback" in log and "ValueError: scripted trouble" in log


def test_a_failed_run_is_tried_again_in_its_own_job(make: MakeSweep) -> None:
    sweep = make(seeds(4))
    sweep.command(fake={"by_seed": {"1": "once-raise", "2": "once-exit"}}, runs_per_job=1)
    sweep.wait_until_idle()
    states = sweep.by_seed()
    assert sweep.counts() == {"finished": 4} and [state.attempt for state in states.values()] == [1, 2, 2, 1]
    assert len(sweep.jobs()) == 4


def test_one_job_does_all_runs_and_a_crash_spares_its_mates(make: MakeSweep) -> None:
    sweep = make(seeds(8))
    sweep.command(fake={"by_seed": {"3": "exit"}}, workers=1, max_attempts=1)
    sweep.wait_until_idle()
    states = sweep.by_seed()
    assert sweep.counts() == {"finished": 7, "lost": 1} and states[3].status == "lost"
    assert list(sweep.jobs().values()) == ["FAILED"], "it finished the others first"
    assert len({state.claim["job"] for state in states.values()}) == 1
    assert all(sweep.root.run_dir(s.run_id, s.env_id).log_path(1).exists() for s in states.values())


def test_stopped_half_way_and_typed_again_only_what_is_missing_starts(make: MakeSweep) -> None:
    sweep = make(seeds(8))
    foreign = sweep.cluster.run("sbatch", "--parsable", "--hold", "--output=/dev/null", "--wrap=true", "--job-name=s").strip()
    sweep.command(fake={"step_s": 0.05})
    wait_for(lambda: len(sweep.traced()) >= 2, "no run is done", 60)
    assert cancel(sweep.sweep, wait_s=30, queue=SlurmQueue(sweep.sweep)) == 0
    sweep.wait_until_idle()
    done = {line["run"] for line in sweep.traced()}
    assert 2 <= len(done) < 8 and set(sweep.counts()) == {"finished", "planned"}
    assert foreign in sweep.cluster.jobs(), "a job of somebody else is not touched"
    sweep.cluster.run("scancel", foreign)

    sweep.sweep.set_cancelled(False)
    sweep.command()
    sweep.wait_until_idle()
    assert sweep.counts() == {"finished": 8} and len(sweep.traced()) == 8, "what was done is not done again"

    sweep.plan_more([*seeds(8), *seeds(2, accum=4)])
    sweep.command()
    sweep.wait_until_idle()
    assert sweep.counts() == {"finished": 10} and len(sweep.traced()) == 10
    assert sweep.command()["counts"] == {"finished": 10}
    assert sweep.is_idle(), "nothing is submitted where nothing is missing"


def test_more_workers_join_by_the_same_command_up_to_the_limit(make: MakeSweep) -> None:
    sweep = make(seeds(6))
    sweep.command(fake={"step_s": 0.5}, workers=1)
    sweep.command(fake={"step_s": 0.5}, workers=3)
    assert len(sweep.jobs()) == 3
    sweep.command(fake={"step_s": 0.5}, workers=3)
    assert len(sweep.jobs()) == 3
    sweep.wait_until_idle()
    assert sweep.counts() == {"finished": 6} and len(sweep.traced()) == 6


def test_arrays_longer_than_the_cluster_allows_are_cut_and_throttled_as_one(make: MakeSweep, make_cluster: Make) -> None:
    small = make_cluster(max_array_size=11)
    sweep = make([make_spec(seed=seed, steps=3) for seed in range(25)], on=small)
    sweep.command(fake={"step_s": 0.02}, runs_per_job=1, max_parallel=2)
    assert len({job.partition("_")[0] for job in sweep.jobs()}) == 3
    sweep.wait_until_idle()
    assert sweep.counts() == {"finished": 25} and len(sweep.traced()) == 25
    assert all(state.attempt == 1 for state in sweep.by_seed().values())
    spans = [(line["from"], line["to"]) for line in sweep.traced()]
    assert max(sum(began <= moment < ended for began, ended in spans) for moment, _ in spans) <= 2
