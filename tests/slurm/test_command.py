"""The command as it is typed, on the real cluster: the same bits as locally, status in words, report and MLflow without anybody waiting."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from accum_sweeps.jobs.slurm_queue import SlurmQueue
from accum_sweeps.record.state import run_state
from accum_sweeps.record.store import open_root
from accum_sweeps.record.sweep import open_sweep
from tests.slurm.cluster import Cluster, wait_for

Typed = Callable[..., "subprocess.CompletedProcess[str]"]
SMOKE = ("+grid=smoke", "axes={seed:{range:2},accum:[1,4]}", "steps=5")


@pytest.fixture
def typed(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Typed]:
    cluster.wait_idle()
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)

    def type_command(*overrides: str, root: str = "root", exit_code: int = 0, **environment: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "accum_sweeps", f"root={tmp_path / root}", *overrides]
        full = {**os.environ, **cluster.environment, "OMP_NUM_THREADS": "1", **environment}
        done = subprocess.run(command, env=full, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == exit_code, done.stdout + done.stderr
        return done

    yield type_command
    if jobs := {job.partition("_")[0] for job in cluster.jobs()}:
        cluster.run("scancel", *jobs)


def wait_until_closed(folder: Path) -> None:
    """Until a job has made the report and brought the sweep into MLflow, and is gone."""
    wait_for(lambda: bool(list(folder.glob("sweeps/smoke/slurm/closed.*"))), "the sweep is not over", 120)


def finals(folder: Path) -> dict[str, dict[str, float]]:
    """The final values of each run that say nothing of time and place."""
    root = open_root(folder)
    states = [run_state(root, run.run_id) for run in open_sweep(root, "smoke").read_plan().runs]
    return {state.run_id: {key: value for key, value in state.final.items() if "loss" in key} for state in states}


def test_a_sweep_on_the_cluster_has_the_bits_of_a_local_one_and_is_closed_without_a_command(
    typed: Typed, cluster: Cluster, tmp_path: Path
) -> None:
    typed(*SMOKE, "launcher=local", root="here")
    said = typed(*SMOKE, "launcher=slurm").stdout
    assert "jobs  " in said and "action=status" in said and "action=cancel" in said
    wait_until_closed(tmp_path / "root")
    cluster.wait_idle()
    away, here = finals(tmp_path / "root"), finals(tmp_path / "here")
    assert away == here and len(away) == 4 and all(values["eval_loss_final"] > 0 for values in away.values())
    assert (tmp_path / "root/sweeps/smoke/report.html").exists()
    status = typed("sweep=smoke", "action=status").stdout
    assert "4 finished" in status and "MLflow has everything" in status
    again = typed(*SMOKE, "launcher=slurm").stdout
    assert "4 finished" in again and "jobs  " not in again, "nothing is left to submit"


def test_a_run_that_was_requeued_half_way_has_the_bits_of_an_undisturbed_one(typed: Typed, cluster: Cluster, tmp_path: Path) -> None:
    grid = ("+grid=smoke", "axes={seed:[0],accum:[4]}", "steps=400", "eval_every=50", "tracking=none")
    typed(*grid, "launcher=local", root="here")
    typed(*grid, "launcher=slurm", "launcher.max_attempts=1")
    root = open_root(tmp_path / "root")
    (run,) = open_sweep(root, "smoke").read_plan().runs
    wait_for(lambda: run_state(root, run.run_id).step >= 20, "the run does not get on", 60)
    cluster.run("scontrol", "requeue", run_state(root, run.run_id).claim["job"])
    wait_until_closed(tmp_path / "root")
    state = run_state(root, run.run_id)
    history = root.run_dir(run.run_id, state.env_id).history()
    assert state.attempt == 2 and history.attempts[1].outcome == "released" and history.attempts[2].from_step >= 20
    assert [point.step for point in history.points() if "train_loss" in point.values] == list(range(1, 401))
    assert finals(tmp_path / "root") == finals(tmp_path / "here")


def test_a_command_that_waits_shows_the_verdict(typed: Typed) -> None:
    said = typed(*SMOKE, "launcher=slurm", "launcher.wait=true", "tracking=none", "launcher.poll_s=1").stdout
    assert "4 finished" in said and "eval_loss_final by setup" in said


def test_status_tells_of_held_and_of_waiting_jobs_why(typed: Typed, cluster: Cluster, tmp_path: Path) -> None:
    typed(*SMOKE, "launcher=slurm", "tracking=none", "launcher.options.hold=true", "launcher.workers=2")
    queue = SlurmQueue(open_sweep(open_root(tmp_path / "root"), "smoke"), poll_s=1)
    wait_for(lambda: any(row.reason == "JobHeldUser" for row in queue.ask().rows), "no job is held", 30)
    said = typed("sweep=smoke", "action=status").stdout
    assert "2 jobs pending (JobHeldUser: held; scontrol release JOB lets it go on)" in said
    assert "4 planned" in said
    typed("sweep=smoke", "action=cancel")
    wait_for(lambda: not cluster.jobs(), "the held jobs are not cancelled", 30)
    assert "4 cancelled" in typed("sweep=smoke", "action=status").stdout


def test_a_root_that_the_node_does_not_hold_is_named(typed: Typed, cluster: Cluster, tmp_path: Path) -> None:
    typed(*SMOKE, "launcher=slurm", "tracking=none", "launcher.options={hold: true}", "launcher.workers=1")
    (tmp_path / "root/sweeps/smoke/slurm/token").write_text("another folder\n")
    (job,) = cluster.jobs()
    cluster.run("scontrol", "release", job)
    wait_for(lambda: not cluster.jobs(), "the job does not end", 60)
    queue = SlurmQueue(open_sweep(open_root(tmp_path / "root"), "smoke"), poll_s=1)
    wait_for(lambda: any(row.state == "FAILED" for row in queue.ask().rows), "SLURM does not show it as failed", 30)
    said = typed("sweep=smoke", "action=status").stdout
    log = Path(said.partition("failed (NonZeroExitCode)")[2].partition("log ")[2].partition("\n")[0])
    assert f"root={tmp_path / 'root'}: is not on node n" in log.read_text()


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("launcher.partition=mian", "did you mean main?"),
        ("launcher.mem_gb=5000", "no node of partition main has so much"),
        ("launcher.time_min=31", ""),
        ("device=cuda", "launcher.gpus_per_run=1: no node of partition main has so much; the largest has 0"),
    ],
)
def test_what_the_cluster_cannot_give_is_refused_before_anything_is_written(
    typed: Typed, tmp_path: Path, override: str, words: str
) -> None:
    more = ["launcher.partition=small"] if not words else []
    said = typed(*SMOKE, "launcher=slurm", override, *more, exit_code=2).stderr
    assert (words or "must be at most 30, the limit of partition small") in said and "Traceback" not in said
    assert not (tmp_path / "root").exists()


def test_the_plan_shows_the_scripts_with_and_without_a_cluster(typed: Typed, cluster: Cluster, tmp_path: Path) -> None:
    said = typed(*SMOKE, "launcher=slurm", "action=plan", "launcher.partition=high").stdout
    assert "sbatch, array 1 of 1: 4 jobs for 4 runs" in said and "#SBATCH --partition=high" in said
    assert not (tmp_path / "root").exists() and not cluster.jobs()
    away = typed(*SMOKE, "launcher=slurm", "action=plan", PATH="/nowhere").stdout
    assert "limits are unknown here (scontrol is not on this machine)" in away and "#SBATCH --array=0-3%4" in away
    said = typed(*SMOKE, "launcher=slurm", exit_code=2, PATH="/nowhere").stderr
    assert "launcher=slurm: no SLURM answers here: scontrol is not on this machine" in said
