"""On a cluster that keeps accounts sweeps go as on one that does not; what SLURM keeps of them is the truth."""

from pathlib import Path

import pytest

from tests.jobs.sweeps import seeds, start_command
from tests.slurm.cluster import Cluster, wait_for
from tests.slurm.sweeps import ClusterSweep


def test_what_is_accounted_is_what_happened(accounted_cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = ClusterSweep(accounted_cluster, tmp_path / "root", seeds(4), monkeypatch)
    sweep.command(fake={"by_seed": {"2": "raise"}}, runs_per_job=1, max_attempts=1)
    sweep.wait_until_idle()
    assert sweep.counts() == {"finished": 3, "failed": 1}
    job = sweep.by_seed()[2].claim["job"]

    def accounted() -> dict[str, str]:
        asked = ("sacct", "--noheader", "--parsable2", "--allocations", "--format=JobID,State", f"--jobs={job.partition('_')[0]}")
        return dict(line.split("|") for line in accounted_cluster.run(*asked).splitlines())

    wait_for(lambda: sorted(accounted().values()) == ["COMPLETED"] * 3 + ["FAILED"], f"accounted are {accounted()}", 60)
    assert accounted()[job] == "FAILED"


def test_an_account_that_does_not_exist_is_refused_in_slurms_words(
    accounted_cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = ClusterSweep(accounted_cluster, tmp_path / "root", seeds(1), monkeypatch)
    command = start_command(sweep.folder, kind="slurm", account="nobodys")
    _, said = command.communicate(timeout=120)
    assert command.returncode and "SLURM did not take the jobs: Batch job submission failed: Invalid account" in said
    assert sweep.is_idle() and sweep.counts() == {"planned": 1}
