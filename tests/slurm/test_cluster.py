"""The cluster that the other tests of this folder rely on does what a real one does."""

import os
import time
from pathlib import Path

import pytest
import submitit

from tests.slurm.cluster import Cluster, ClusterError, missing, wait_for
from tests.slurm.conftest import Make


def submit(cluster: Cluster, *options: str, seconds: float = 60.0) -> str:
    return cluster.run("sbatch", "--parsable", "--output=/dev/null", *options, f"--wrap=sleep {seconds}").strip()


def state(cluster: Cluster, job_id: str) -> str:
    return cluster.job(job_id)["JobState"]


def wait_for_state(cluster: Cluster, job_id: str, *states: str) -> None:
    wait_for(lambda: state(cluster, job_id) in states, f"job {job_id} is not {states} but {cluster.job(job_id)}", limit_s=60)


def test_no_program_is_missing() -> None:
    assert missing() == []


def test_an_array_of_submitit_runs_on_both_nodes(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    executor = submitit.SlurmExecutor(tmp_path)
    executor.update_parameters(time=5, array_parallelism=8, stderr_to_stdout=True)
    jobs = executor.map_array(os.path.join, ["a"] * 8, list("bcdefghi"))
    assert [job.result() for job in jobs] == [f"a/{name}" for name in "bcdefghi"]


def test_a_job_of_higher_priority_preempts_and_the_preempted_one_starts_again(cluster: Cluster) -> None:
    low = [submit(cluster, "--requeue", "--exclusive", f"--nodelist={node}", seconds=20) for node in ("n1", "n2")]
    for job_id in low:
        wait_for_state(cluster, job_id, "RUNNING")
    high = submit(cluster, "--partition=high", "--exclusive", "--nodelist=n1", seconds=1)
    wait_for_state(cluster, high, "COMPLETED")
    assert cluster.job(low[0])["Restarts"] == "1" and cluster.job(low[1])["Restarts"] == "0"
    cluster.run("scancel", *low)
    cluster.wait_idle()


def test_a_node_that_is_set_down_or_dies_takes_its_jobs_with_it_and_they_are_requeued(cluster: Cluster) -> None:
    job_id = submit(cluster, "--requeue", "--nodelist=n2")
    wait_for_state(cluster, job_id, "RUNNING")
    cluster.set_down("n2")
    wait_for_state(cluster, job_id, "PENDING", "COMPLETING")
    cluster.set_up("n2")
    wait_for(lambda: cluster.nodes()["n2"] in ("idle", "mixed"), "n2 does not come back")
    cluster.run("scancel", job_id)
    cluster.kill_node("n2")
    wait_for(lambda: cluster.nodes()["n2"].startswith("down"), f"n2 is not missed: {cluster.nodes()}", limit_s=60)
    cluster.start_node("n2")
    cluster.wait_idle()


def test_the_queue_outlives_a_restart_of_the_controller(cluster: Cluster) -> None:
    running, held = submit(cluster, seconds=30), submit(cluster, "--hold")
    wait_for_state(cluster, running, "RUNNING")
    cluster.restart_controller()
    assert set(cluster.jobs()) == {running, held}
    cluster.run("scancel", running, held)
    cluster.wait_idle()


def test_without_accounting_sacct_has_no_answer(cluster: Cluster) -> None:
    with pytest.raises(ClusterError, match="accounting storage is disabled"):
        cluster.run("sacct")


def test_with_accounting_ended_jobs_are_known(accounted_cluster: Cluster) -> None:
    job_id = submit(accounted_cluster, seconds=0)
    asked = ("sacct", "--noheader", "--parsable2", "--format=State", f"--jobs={job_id}", "--allocations")
    wait_for(lambda: accounted_cluster.run(*asked).strip() == "COMPLETED", "sacct does not know it", limit_s=60)
    with pytest.raises(ClusterError, match="Invalid account"):
        submit(accounted_cluster, "--account=nobody")


def test_an_index_beyond_the_largest_array_is_refused_and_gpus_are_given(make_cluster: Make, tmp_path: Path) -> None:
    small = make_cluster(max_array_size=11, gpus=2)
    with pytest.raises(ClusterError, match="Invalid job array"):
        submit(small, "--array=0-11")
    submit(small, "--array=0-10", seconds=0)
    told = tmp_path / "gpus"
    job_id = small.run("sbatch", "--parsable", "--gres=gpu:1", f"--output={told}", "--wrap=echo gpu $CUDA_VISIBLE_DEVICES").strip()
    wait_for_state(small, job_id, "COMPLETED")
    assert told.read_text() in ("gpu 0\n", "gpu 1\n")


def test_nothing_is_left_after_the_end(make_cluster: Make) -> None:
    cluster = make_cluster()
    job_id = submit(cluster)
    wait_for_state(cluster, job_id, "RUNNING")
    cluster.close()
    time.sleep(0.5)
    left = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            environment, command = (entry / "environ").read_bytes(), (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if command and str(cluster.folder).encode() in environment + command:
            left.append(command)
    assert left == []
