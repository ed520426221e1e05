"""What SLURM is handed, asserted on the text of the scripts, with its programs replaced by short ones that keep what they are asked."""

import json
import shlex
import time
from pathlib import Path
from typing import Any

import pytest

from accum_sweeps.jobs.dispatch import DispatchResult, dispatch
from accum_sweeps.jobs.resources import Resources, read_resources
from accum_sweeps.jobs.slurm_queue import SlurmQueue
from accum_sweeps.plan.errors import UserError
from accum_sweeps.record.sweep import SweepDir
from tests.jobs.fake_slurm import FakeSlurm, slurm
from tests.jobs.sweeps import ENGINE, make_sweep, seeds
from tests.pace import slowness

__all__ = ["slurm"]


def cluster(**launcher: Any) -> Resources:
    return read_resources({"kind": "slurm", **launcher})


def submit(folder: Path, specs: list[Any], **launcher: Any) -> tuple[DispatchResult, SweepDir]:
    root, sweep, plan = make_sweep(folder, specs)
    return dispatch(root, sweep, plan, cluster(**launcher), engine=ENGINE), sweep


def test_each_setting_becomes_its_option(slurm: FakeSlurm, tmp_path: Path) -> None:
    settings = {"partition": "main", "account": "acc", "qos": "night", "constraint": "a100&ib", "mem_gb": 1.5, "time_min": 90}
    more = {"gpus_per_run": 1, "nodes": 2, "options": {"exclude": "n3", "exclusive": True, "comment": "it's a 'test'"}}
    submit(tmp_path / "root", seeds(3), **settings, **more)
    (options,) = slurm.options()
    expected = {"partition": "main", "account": "acc", "qos": "night", "mem": "1536M", "time": "90", "gpus-per-node": "1", "nodes": "2"}
    assert {name: options[name] for name in expected} == expected
    assert shlex.split(options["constraint"]) == ["a100&ib"] and shlex.split(options["comment"]) == ["it's a 'test'"]
    assert options["array"] == "0-2%3" and options["cpus-per-task"] == "1" and options["signal"] == "USR2@120"
    assert options["exclude"] == "n3" and options["exclusive"] == "" and options["requeue"] == ""
    assert "--cpus-per-task=1" in slurm.scripts()[0].partition("\nsrun ")[2], "srun has to be told by itself"


def test_what_is_not_set_is_left_to_the_cluster(slurm: FakeSlurm, tmp_path: Path) -> None:
    submit(tmp_path / "root", seeds(1), requeue=False)
    (options,) = slurm.options()
    assert not {"partition", "account", "qos", "constraint", "mem", "time", "gres", "gpus-per-node", "wckey", "requeue"} & set(options)
    assert "no-requeue" in options and "scontrol requeue" not in slurm.scripts()[0]


def test_gpus_and_cores_come_from_the_runs(slurm: FakeSlurm, tmp_path: Path) -> None:
    submit(tmp_path / "root", [*seeds(1, device="cuda", ranks=2, threads=4), *seeds(1, threads=2)])
    assert [(o["cpus-per-task"], o.get("gpus-per-node")) for o in slurm.options()] == [("8", "2"), ("2", None)]


def test_no_value_reaches_a_shell_unquoted(slurm: FakeSlurm, tmp_path: Path) -> None:
    evil = "$(touch evil); `touch evil` && touch evil"
    folder = tmp_path / "a root; touch evil"
    submit(folder, seeds(1), partition=evil, container=f"run --bind '{evil}'", python=evil, options={"comment": evil})
    (script,) = slurm.scripts()
    for line in script.splitlines():
        if not line.startswith("#"):
            assert "touch evil" not in [word for word in shlex.split(line) if word != evil and str(folder) not in word and evil not in word]
    command = next(line for line in script.splitlines() if line.startswith("srun "))
    words = shlex.split(command)
    at = words.index("run")
    assert words[at : at + 7] == ["run", "--bind", evil, evil, "-u", "-m", "submitit.core._submit"]


def test_ten_thousand_runs_take_ten_calls(slurm: FakeSlurm, tmp_path: Path) -> None:
    began = time.monotonic()
    result, sweep = submit(tmp_path / "root", seeds(10_000), runs_per_job=1, max_parallel=64)
    assert time.monotonic() - began < 30 * slowness()
    assert len(slurm.calls("sbatch")) == 10 and sum(tasks for _, tasks in result.submitted) == 10_000
    arrays = [options["array"].removeprefix("0-").split("%") for options in slurm.options()]
    assert all(int(last) <= 1000 for last, _ in arrays), "the limit of 1001 is one on the index"
    assert sum(int(parallel) for _, parallel in arrays) == 64
    assert len(list((sweep.path / "submitit").rglob("*"))) < 30, "no file for each job"


def test_more_arrays_than_jobs_at_a_time_wait_for_each_other(slurm: FakeSlurm, tmp_path: Path) -> None:
    slurm.set_cluster(longest=11)
    submit(tmp_path / "root", seeds(25), runs_per_job=1, max_parallel=2)
    assert [(o["array"], o.get("dependency")) for o in slurm.options()] == [
        ("0-8%1", None),
        ("0-7%1", None),
        ("0-7%1", "afterany:101"),
    ]


@pytest.mark.parametrize(("launcher", "arrays"), [({}, ["0-99%100"]), ({"workers": 7}, ["0-6%7"]), ({"runs_per_job": 50}, ["0-2%3"])])
def test_the_number_of_workers(slurm: FakeSlurm, tmp_path: Path, launcher: dict[str, Any], arrays: list[str]) -> None:
    submit(tmp_path / "root", seeds(150), **launcher)
    assert [options["array"] for options in slurm.options()] == arrays


def test_the_same_command_adds_only_what_is_not_there_yet(slurm: FakeSlurm, tmp_path: Path) -> None:
    submit(tmp_path / "root", seeds(6), workers=2)
    result, _ = submit(tmp_path / "root", seeds(6), workers=2)
    assert result.submitted == () and result.active == 2, "also before SLURM is asked again"
    result, _ = submit(tmp_path / "root", seeds(6), workers=5)
    assert [tasks for _, tasks in result.submitted] == [3]
    assert len(slurm.calls("squeue")) == 1, "three commands within ten seconds ask once"


def test_jobs_that_slurm_tells_of_are_counted(slurm: FakeSlurm, tmp_path: Path) -> None:
    slurm.set(squeue=["77|3-5,9%2|PENDING|Priority||main", "77|1|RUNNING|None|n1|main", "77|0|FAILED|NonZeroExitCode|n2|main"])
    result, _ = submit(tmp_path / "root", seeds(20), workers=8)
    assert result.active == 5 and [tasks for _, tasks in result.submitted] == [3]


def test_a_refusal_is_told_in_slurms_words(slurm: FakeSlurm, tmp_path: Path) -> None:
    slurm.set(most=0)
    with pytest.raises(UserError, match="SLURM did not take the jobs: Batch job submission failed: Invalid account"):
        submit(tmp_path / "root", seeds(3))


def test_what_was_taken_before_a_refusal_stays(slurm: FakeSlurm, tmp_path: Path) -> None:
    slurm.set(most=2)
    slurm.set_cluster(longest=2)
    result, _ = submit(tmp_path / "root", seeds(6))
    assert result.submitted == (("101", 2), ("102", 2))
    assert "4 jobs submitted, then no more" in result.notes[0]


def test_nothing_of_the_job_that_a_command_is_in_reaches_the_new_one(
    slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaks = {"SLURM_JOB_ID": "5", "SLURM_CPUS_PER_TASK": "4", "SLURM_MEM_PER_NODE": "9", "SBATCH_ARRAY_INX": "0-9", "SBATCH_PARTITION": "x"}
    for name, value in {**leaks, "SBATCH_ACCOUNT": "mine", "SLURM_CONF": "/etc/slurm.conf"}.items():
        monkeypatch.setenv(name, value)
    submit(tmp_path / "root", seeds(1), partition="main")
    found = slurm.calls("sbatch")[0]["environment"]
    assert not set(leaks) & set(found)
    assert (found["SBATCH_ACCOUNT"], found["SLURM_CONF"], found["OMP_NUM_THREADS"]) == ("mine", "/etc/slurm.conf", "1")


def test_only_this_sweeps_jobs_are_cancelled_by_name(slurm: FakeSlurm, tmp_path: Path) -> None:
    _, sweep = submit(tmp_path / "root", seeds(3))
    _, _, other = make_sweep(tmp_path / "other", seeds(3))
    queue = SlurmQueue(sweep)
    assert other.revision == 1 and queue.name != SlurmQueue(make_sweep(tmp_path / "other", seeds(3))[1]).name, "another root, another name"
    queue.end(pending_only=True)
    queue.end(pending_only=False)
    first, second = (call["arguments"] for call in slurm.calls("scancel"))
    assert first == [*second, "--state=PENDING"] and second[-2:] == ["--name", queue.name] and second[0] == "--user"
    assert queue.ask().active() == 0


def test_a_controller_that_does_not_answer_is_told_and_the_last_answer_kept(slurm: FakeSlurm, tmp_path: Path) -> None:
    slurm.set(squeue=["77|1|RUNNING|None|n1|main"])
    _, sweep = submit(tmp_path / "root", seeds(1))
    slurm.set(squeue=None)
    queue = SlurmQueue(sweep, poll_s=0.0)
    answer = queue.ask()
    assert "Unable to contact slurm controller" in answer.problem and answer.active() == 1
    kept = json.loads((queue.folder / "squeue.json").read_text())
    assert kept["problem"] == answer.problem
