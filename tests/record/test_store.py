"""Roots, run directories, and which points of which attempt count."""

import json
import os
import stat
from pathlib import Path

import pytest

from accum_sweeps.plan.errors import UserError
from accum_sweeps.record.store import DamagedRunError, RunDir, open_root
from tests.specs import make_spec

ENV = "0123456789ab"


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    spec = make_spec()
    run_dir = open_root(tmp_path / "root", create=True).run_dir(spec.run_id, ENV)
    run_dir.create(spec, {"torch": "2"})
    return run_dir


def log(run_dir: RunDir, number: int, start: tuple[int | None, int], steps: range, *, checkpoint: int | None = None, end: str = "") -> None:
    with run_dir.writer(number) as writer:
        writer.start(*start)
        for step in steps:
            writer.metrics(step, {"train_loss": number + step / 1000})
            if step == checkpoint:
                writer.checkpoint(step)
        if end:
            writer.end(end, steps[-1], {})


def test_a_root_is_private_and_is_recognized(tmp_path: Path) -> None:
    root = open_root(tmp_path / "a" / "root", create=True)
    assert stat.S_IMODE(root.path.stat().st_mode) == 0o700
    assert open_root(root.path) == root


@pytest.mark.parametrize(
    ("content", "words"),
    [('{"layout_version": 99}', "newer release"), ("{", "damaged"), ('{"layout_version": "x"}', "newer release"), ("[]", "damaged")],
)
def test_a_root_that_cannot_be_used_is_refused_by_name(tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / "root.json").write_text(content)
    with pytest.raises(UserError, match=words) as error:
        open_root(tmp_path, create=True)
    assert str(tmp_path) in str(error.value)


def test_a_missing_root_and_a_folder_of_other_things_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no sweep root here"):
        open_root(tmp_path / "nothing")
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(UserError, match=r"holds other things \(thesis.tex"):
        open_root(tmp_path, create=True)


@pytest.mark.parametrize("below_a_file", [True, False])
def test_a_root_that_cannot_be_made_is_refused(tmp_path: Path, below_a_file: bool) -> None:
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "root" if below_a_file else Path("/proc/root")
    with pytest.raises(UserError, match="Give a folder that you can write"):
        open_root(path, create=True)


def test_a_specification_comes_back_and_a_foreign_or_torn_one_is_damaged(run_dir: RunDir) -> None:
    assert run_dir.read_spec() == make_spec()
    assert run_dir.read_environment() == {"torch": "2"}
    (run_dir.path / "spec.json").write_text(json.dumps(make_spec(seed=9).to_dict()))
    with pytest.raises(DamagedRunError, match="not that of this directory"):
        run_dir.read_spec()
    for content in ("", "{", "[]", '{"accum": 1}', '{"spec_version": 99}'):
        (run_dir.path / "spec.json").write_text(content)
        with pytest.raises(DamagedRunError, match="cannot be read"):
            run_dir.read_spec()


def test_creating_again_changes_nothing(run_dir: RunDir) -> None:
    before = (run_dir.path / "spec.json").stat().st_mtime_ns
    run_dir.create(make_spec(), {"torch": "other"})
    assert (run_dir.path / "spec.json").stat().st_mtime_ns == before
    assert run_dir.read_environment() == {"torch": "2"}


def test_of_an_earlier_attempt_only_points_up_to_the_continued_step_count(run_dir: RunDir) -> None:
    log(run_dir, 1, (None, 0), range(1, 9), checkpoint=6)
    assert run_dir.history().covered_step == 6
    log(run_dir, 2, (1, 6), range(7, 12), checkpoint=10)
    log(run_dir, 3, (2, 10), range(11, 13), end="finished")
    with run_dir.writer(1) as late:  # the first owner wakes up and goes on writing
        late.metrics(9, {"train_loss": -1.0})
        late.end("finished", 9, {"eval_loss_final": -1.0})
    history = run_dir.history()
    owners = [int(p.values["train_loss"]) for p in history.points()]
    assert [p.step for p in history.points()] == list(range(1, 13))
    assert owners == [1] * 6 + [2] * 4 + [3] * 2
    assert history.outcome == "finished" and history.covered_step == 12 and "eval_loss_final" not in history.newest.final  # type: ignore[union-attr]


def test_a_restart_from_an_older_checkpoint_cuts_the_whole_chain(run_dir: RunDir) -> None:
    log(run_dir, 1, (None, 0), range(1, 9), checkpoint=6)
    log(run_dir, 2, (1, 6), range(7, 12), checkpoint=10)
    log(run_dir, 3, (1, 6), range(7, 8))
    assert [int(p.values["train_loss"]) for p in run_dir.history().points()] == [1] * 6 + [3]
    log(run_dir, 4, (None, 0), range(1, 3))
    assert [int(p.values["train_loss"]) for p in run_dir.history().points()] == [4, 4]


def test_points_without_checkpoint_or_end_are_not_covered(run_dir: RunDir) -> None:
    log(run_dir, 1, (None, 0), range(1, 5))
    history = run_dir.history()
    assert history.covered_step == -1 and history.points(covered_only=True) == [] and len(history.points()) == 4
    log(run_dir, 2, (None, 0), range(1, 5), checkpoint=3)
    assert [p.step for p in run_dir.history().points(covered_only=True)] == [1, 2, 3]


def test_an_attempt_that_never_started_does_not_hide_the_one_before(run_dir: RunDir) -> None:
    log(run_dir, 1, (None, 0), range(1, 5), end="diverged")
    run_dir.events_path(2).touch()
    assert run_dir.history().outcome == "diverged"


def test_environments_are_listed_and_other_names_are_not(run_dir: RunDir) -> None:
    root = open_root(run_dir.path.parents[3])
    os.mkdir(run_dir.path.parent / f"{ENV}.damaged-1")  # noqa: PTH102
    (run_dir.path.parent / "claim.1").touch()
    assert root.environments(run_dir.path.parent.name) == [ENV]
    assert root.environments("f" * 20) == []
