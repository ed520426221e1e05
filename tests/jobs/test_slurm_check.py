"""What a cluster cannot give is said before anything is submitted."""

import re
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from accum_sweeps.jobs.order import Group
from accum_sweeps.jobs.resources import COMMON, read_resources
from accum_sweeps.jobs.slurm_ask import ask_cluster, task_numbers
from accum_sweeps.jobs.slurm_check import check_cluster, check_root, minutes
from accum_sweeps.jobs.slurm_chunks import chunks
from accum_sweeps.jobs.slurm_settings import SlurmSettings
from accum_sweeps.plan.errors import ConfigError, UserError
from accum_sweeps.plan.setting import names
from tests.jobs.fake_slurm import FakeSlurm, slurm

__all__ = ["slurm"]
CPU = Group("cpu", 1, False)


def check(group: Group = CPU, **launcher: Any) -> None:
    check_cluster(ask_cluster(), read_resources({"kind": "slurm", **launcher}).slurm, [group])


@pytest.mark.parametrize(
    ("launcher", "words"),
    [
        ({"partition": "mian"}, "launcher.partition='mian': must be one of high, main, old (did you mean main?)"),
        ({"partition": "old"}, "launcher.partition='old': takes no jobs now (its state is DRAIN)"),
        ({"mem_gb": 9}, "launcher.mem_gb=9.0: no node of partition main has so much; the largest has 7.812 GB"),
        ({"cpus_per_run": 5}, "launcher.cpus_per_run=5: no node of partition main has so much; the largest has 4"),
        ({"gpus_per_run": 3}, "launcher.gpus_per_run=3: no node of partition main has so much; the largest has 2"),
        ({"nodes": 3}, "launcher.nodes=3: partition main has 2"),
        ({"partition": "high", "time_min": 1600}, "launcher.time_min=1600: must be at most 1560, the limit of partition high"),
        ({"constraint": "a1000"}, "launcher.constraint='a1000': must be one of a100, ib (did you mean a100?)"),
    ],
)
def test_what_no_node_has_is_named(slurm: FakeSlurm, launcher: dict[str, Any], words: str) -> None:
    slurm.set_cluster(gres="gpu:a100:2(S:0-1)")
    with pytest.raises(ConfigError, match=re.escape(words)):
        check(**launcher)


def test_what_a_node_has_is_allowed(slurm: FakeSlurm) -> None:
    slurm.set_cluster(gres="gpu:2")
    check()
    check(partition="main,high", mem_gb=7.8, cpus_per_run=4, nodes=2, time_min=1560, constraint="a100&ib")
    check(Group("cuda", 4, False, 1))


def test_gpus_of_the_runs_are_asked_for_without_any_here(slurm: FakeSlurm) -> None:
    with pytest.raises(ConfigError, match=re.escape("launcher.gpus_per_run=1: no node of partition main has so much; the largest has 0")):
        check(Group("cuda", 1, False))


def test_a_root_with_a_placeholder_is_refused() -> None:
    with pytest.raises(UserError, match="SLURM reads %"):
        check_root(Path("/data/100%/root"))


@pytest.mark.parametrize(("text", "expected"), [("00:30:00", 30), ("1-02:00:30", 1560.5), ("UNLIMITED", None), ("INVALID", None)])
def test_times_are_read(text: str, expected: float | None) -> None:
    assert minutes(text) == expected


@pytest.mark.parametrize(("text", "expected"), [("N/A", [0]), ("7", [7]), ("1-3,9%2", [1, 2, 3, 9]), ("0-9:4", [0, 4, 8])])
def test_array_indices_are_read(text: str, expected: list[int]) -> None:
    assert task_numbers(text) == expected


@pytest.mark.parametrize("tasks", [1, 10, 11, 12, 25, 1000])
@pytest.mark.parametrize("parallel", [None, 1, 2, 3, 7, 400])
def test_arrays_hold_all_tasks_within_both_limits(tasks: int, parallel: int | None) -> None:
    made = chunks(tasks, 11, parallel)
    assert sum(chunk.tasks for chunk in made) == tasks and all(1 <= chunk.tasks <= 11 for chunk in made)
    at_once = [chunk.parallel or chunk.tasks for chunk in made if chunk.after is None]
    assert sum(at_once) == min(tasks, parallel or tasks), "as many as allowed run at the beginning, and no more"
    for chunk in made:
        if chunk.after is not None:
            assert (chunk.parallel or chunk.tasks) <= (made[chunk.after].parallel or 0), "whoever comes after takes no more room"
    assert chunks(0, 11, parallel) == []


@pytest.mark.parametrize(
    ("launcher", "words"),
    [
        ({"slots": 2}, "launcher.slots=2: is for this machine"),
        ({"workrs": 2}, "did you mean workers?"),
        ({"workers": 2, "runs_per_job": 1}, "launcher.workers=2: with launcher.runs_per_job=1 the open runs decide"),
        ({"options": {"array": "0-3"}}, "launcher.options.array='0-3': is set by the launcher itself"),
        ({"options": {"time": 3}}, "launcher.options.time=3: is set by launcher.time_min"),
        ({"options": {"bad name": 3}}, "must be a long option of sbatch without its dashes"),
        ({"options": {"exclude": "n1\nrm -rf x"}}, "must be one line of text"),
        ({"options": {"exclusive": False}}, "must be true or left out"),
        ({"partition": "a\n#SBATCH --uid=0"}, "launcher.partition="),
        ({"options": {"comment": "a\\b"}}, "must not hold a backslash, which sbatch takes away"),
        ({"partition": " "}, "must be one line of text, not empty"),
        ({"container": "run 'it"}, "cannot be read as a command"),
        ({"time_min": 1, "signal_before_limit_s": 60}, "launcher.signal_before_limit_s=60: must be less than launcher.time_min=1 (60 s)"),
        ({"max_parallel": 0}, "launcher.max_parallel=0: must be at least 1"),
    ],
)
def test_a_mistake_is_named(launcher: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        read_resources({"kind": "slurm", **launcher})


def test_the_lead_before_a_short_limit_is_short() -> None:
    leads = [read_resources({"kind": "slurm", "time_min": minutes}).slurm.lead_s for minutes in (1, 4, 8, 60, None)]
    assert leads == [15, 60, 120, 120, 120]


def test_the_shipped_configuration_has_every_key_at_its_default_with_a_word_on_it() -> None:
    path = Path(__file__).parents[2] / "conf/launcher/slurm.yaml"
    shipped: Any = OmegaConf.to_container(OmegaConf.load(path))
    text = path.read_text()
    resources = read_resources(shipped)
    assert resources.slurm == SlurmSettings()
    known = {*names(SlurmSettings), *COMMON}
    assert set(shipped) == known
    assert all(re.search(rf"^{key}: .*  # \w", text, re.MULTILINE) for key in known - {"kind"})
