"""Run directories damaged by hand are named and set aside."""

from collections.abc import Callable
from pathlib import Path

import pytest

from accum_sweeps.jobs.damage import set_aside_if_damaged
from accum_sweeps.record.store import RunDir, open_root
from tests.specs import make_spec

SPEC = make_spec()


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    found = open_root(tmp_path / "root", create=True).run_dir(SPEC.run_id, "e" * 12)
    found.create(SPEC, {"torch": "x"})
    with found.writer(1) as writer:
        writer.start(None, 0)
        writer.metrics(1, {"train_loss": 1.0})
        writer.released(1, "asked")
    return found


def spoil_spec(run_dir: RunDir) -> None:
    (run_dir.path / "spec.json").write_text("{")


def foreign_spec(run_dir: RunDir) -> None:
    run_dir.path.joinpath("spec.json").unlink()
    run_dir.create(make_spec(seed=7), {})


def spoil_environment(run_dir: RunDir) -> None:
    (run_dir.path / "env.json").write_text("[")


def spoil_events(run_dir: RunDir) -> None:
    path = run_dir.events_path(1)
    path.write_text(path.read_text().replace('"values"', "values"))


@pytest.mark.parametrize("spoil", [spoil_spec, foreign_spec, spoil_environment, spoil_events])
def test_damage_is_named_and_set_aside_once(run_dir: RunDir, spoil: Callable[[RunDir], None]) -> None:
    assert set_aside_if_damaged(run_dir, is_thorough=True) == ""
    spoil(run_dir)
    message = set_aside_if_damaged(run_dir, is_thorough=True)
    assert str(run_dir.path) in message and message.endswith(f"set aside as {run_dir.path.name}.damaged-1")
    assert not run_dir.path.exists() and run_dir.path.with_name(f"{run_dir.path.name}.damaged-1").is_dir()
    assert set_aside_if_damaged(run_dir, is_thorough=True) == ""
    run_dir.path.write_text("a file in its place")
    assert set_aside_if_damaged(run_dir, is_thorough=False).endswith(".damaged-2")


def test_what_a_crash_leaves_is_no_damage(run_dir: RunDir) -> None:
    (run_dir.path / "spec.json").unlink()
    (run_dir.path / "env.json").unlink()
    with run_dir.events_path(1).open("a") as file:
        file.write('{"event":"metr')
    assert set_aside_if_damaged(run_dir, is_thorough=True) == ""
