"""Jobs that wait in the queue run the code that was submitted, not what was edited since."""

from pathlib import Path

import pytest

from accum_sweeps.record.state import run_state
from accum_sweeps.record.sweep import open_sweep
from tests.product.commands import Place, numbers
from tests.slurm.cluster import Cluster, wait_for
from tests.small_project import SUBJECTS, project


def is_over(place: Place) -> bool:
    return all(
        run_state(place.root, run.run_id).status in ("finished", "failed") for run in open_sweep(place.root, "mine").read_plan().runs
    )


@pytest.mark.parametrize("kind", SUBJECTS)
def test_what_is_edited_while_jobs_are_held_changes_nothing(
    kind: str, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    arguments = [*SUBJECTS[kind], "sweep=mine", "steps=3", "global_batch=8", "eval_every=0", "axes={seed:{range:2}}", "design.ladder=false"]
    here, away = Place(tmp_path / "here"), Place(tmp_path / "away")
    for place in (here, away):
        project(place.folder)
    here.type(*arguments, "tracking=none")
    away.type(*arguments, "tracking=none", "launcher=slurm", "launcher.options.hold=true")
    assert set(cluster.jobs().values()) == {"PENDING"}
    for name in ("hook.py", "program.py"):
        (away.folder / name).write_text("this is no Python\n")
    (away.folder / "helper.py").write_text("FACTOR = 5.0\n")
    cluster.run("scontrol", "release", ",".join({job.partition("_")[0] for job in cluster.jobs()}))
    wait_for(lambda: is_over(away), "the runs do not end", limit_s=120)
    assert numbers(away.root, "mine") == numbers(here.root, "mine")
    cluster.wait_idle()
