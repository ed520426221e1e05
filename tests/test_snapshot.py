"""Jobs run the code that was submitted, whatever is edited meanwhile."""

import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from accum_sweeps.plan.errors import ConfigError
from accum_sweeps.plan.parts import CommandHook, PythonHook
from accum_sweeps.record.store import open_root
from accum_sweeps.record.sweep import SweepDir, open_sweep
from accum_sweeps.snapshot import SnapshotSettings, read_settings, snapshot
from accum_sweeps.subjects.sources import CODE_VARIABLE, PACKAGE, code_hash, source_files
from tests.product.commands import Place, numbers
from tests.small_project import HOOK, SUBJECTS, project


@pytest.fixture
def sweep(tmp_path: Path) -> SweepDir:
    made = open_sweep(open_root(tmp_path / "root", create=True), "mine")
    made.path.mkdir(parents=True)
    return made


def hook(**settings: Any) -> PythonHook:
    return PythonHook(name="python", target="hook:Slow", **settings)


def relative(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_it_holds_this_package_and_the_users_sources_and_finds_the_same_hash(sweep: SweepDir, tmp_path: Path) -> None:
    project(tmp_path / "mine")
    kept = snapshot(sweep, [hook()], tmp_path / "mine", SnapshotSettings())
    assert not (sweep.path / "code").exists(), "asked for, not written"
    kept.write()
    assert kept.folder == sweep.path / "code" / kept.name
    assert relative(kept.folder / "here") == {"hook.py", "helper.py"}
    package = relative(kept.folder / "package" / PACKAGE.name)
    assert {"execute.py", "jobs/worker.py", "analysis/templates/report.css", "conf/config.yaml", "conf/grid/adamw.yaml"} <= package
    assert not [name for name in package if "__pycache__" in name]
    assert code_hash(source_files(hook(), kept.folder / "here")) == code_hash(source_files(hook(), tmp_path / "mine"))


def test_the_same_code_is_kept_once_and_other_code_beside_it(sweep: SweepDir, tmp_path: Path) -> None:
    project(tmp_path / "mine")
    names = []
    for factor in (1.0, 2.0, 1.0):
        (tmp_path / "mine/helper.py").write_text(f"FACTOR = {factor}\n")
        kept = snapshot(sweep, [hook()], tmp_path / "mine", SnapshotSettings())
        kept.write()
        names.append(kept.name)
    assert names[0] == names[2] != names[1] and {path.name for path in (sweep.path / "code").iterdir()} == set(names)
    assert (sweep.path / "code" / names[0] / "here/helper.py").read_text() == "FACTOR = 1.0\n"


def test_nobody_else_may_write_it(sweep: SweepDir, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        kept = snapshot(sweep, [], tmp_path, SnapshotSettings())
        kept.write()
    finally:
        os.umask(before)
    assert stat.S_IMODE((sweep.path / "code").stat().st_mode) == stat.S_IMODE(kept.folder.stat().st_mode) == 0o700


def test_nothing_is_left_of_a_copy_that_could_not_be_made(sweep: SweepDir, tmp_path: Path) -> None:
    project(tmp_path / "mine")
    kept = snapshot(sweep, [hook()], tmp_path / "mine", SnapshotSettings())
    (tmp_path / "mine/helper.py").unlink()
    with pytest.raises(FileNotFoundError):
        kept.write()
    assert list((sweep.path / "code").iterdir()) == []


def test_what_imports_do_not_show_is_declared(sweep: SweepDir, tmp_path: Path) -> None:
    project(tmp_path / "mine")
    (tmp_path / "mine/tables/deep").mkdir(parents=True)
    (tmp_path / "mine/tables/deep/one.txt").write_text("1")
    kept = snapshot(sweep, [], tmp_path / "mine", SnapshotSettings(paths=("tables", "program.py")))
    kept.write()
    assert relative(kept.folder / "here") == {"tables/deep/one.txt", "program.py"}
    for wrong in ("nothing", "../root", str(tmp_path)):
        with pytest.raises(ConfigError, match=r"snapshot\.paths"):
            snapshot(sweep, [], tmp_path / "mine", SnapshotSettings(paths=(wrong,)))


def test_data_are_refused(sweep: SweepDir, tmp_path: Path) -> None:
    with (tmp_path / "large.bin").open("wb") as file:
        file.truncate(300_000_000)
    with pytest.raises(ConfigError, match=r"hold 30\d MB with the code, above 200; the largest is .*large\.bin"):
        snapshot(sweep, [], tmp_path, SnapshotSettings(paths=("large.bin",)))


@pytest.mark.parametrize(("key", "value"), [("enabled", "yes"), ("paths", "x"), ("path", [])])
def test_settings_are_checked(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"snapshot.{key}"):
        read_settings({key: value})


def test_modules_from_elsewhere_and_programs_keep_their_names(sweep: SweepDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project(tmp_path / "mine")
    (tmp_path / "library/tools").mkdir(parents=True)
    (tmp_path / "library/tools/__init__.py").write_text("")
    (tmp_path / "library/tools/one.py").write_text("ONE = 1\n")
    (tmp_path / "mine/hook.py").write_text(f"from tools.one import ONE\n{HOOK}")
    monkeypatch.syspath_prepend(tmp_path / "library")
    part = CommandHook(name="command", argv=("python", "hook.py", "data=program.py", "{spec}"))
    kept = snapshot(sweep, [part, hook()], tmp_path / "mine", SnapshotSettings())
    kept.write()
    assert relative(kept.folder / "modules") == {"tools/__init__.py", "tools/one.py"}
    assert relative(kept.folder / "here") == {"hook.py", "program.py", "helper.py"}
    asked = [sys.executable, "-c", "import accum_sweeps, tools, hook; print(accum_sweeps.__file__, tools.__file__, hook.__file__)"]
    told = subprocess.run(asked, env=os.environ | kept.environment, capture_output=True, text=True, check=True, cwd=tmp_path).stdout
    assert [Path(word).is_relative_to(kept.folder) for word in told.split()] == [True] * 3
    assert kept.environment[CODE_VARIABLE] == str(kept.folder / "here")


@pytest.mark.parametrize("kind", SUBJECTS)
def test_runs_that_wait_run_what_was_submitted(kind: str, tmp_path: Path) -> None:
    arguments = [
        *SUBJECTS[kind],
        "sweep=mine",
        "steps=20",
        "global_batch=8",
        "eval_every=0",
        "axes={seed:{range:4}}",
        "design.ladder=false",
    ]
    arguments += ["launcher.slots=1", "launcher.runs_per_job=1", "snapshot.enabled=true", "tracking=none"]
    calm, edited = Place(tmp_path / "calm"), Place(tmp_path / "edited")
    for place in (calm, edited):
        project(place.folder)
    calm.type(*arguments)
    command = edited.start(*arguments)
    until = time.monotonic() + 60
    while not list((edited.folder / "sweeps/runs").glob("*/*/claim.1")) and time.monotonic() < until:
        time.sleep(0.05)
    (edited.folder / "helper.py").write_text("FACTOR = 5.0\n")
    (edited.folder / "hook.py").write_text("this is no Python\n")
    (edited.folder / "program.py").write_text("this is no Python\n")
    output, _ = command.communicate(timeout=120)
    assert command.returncode == 0 and "sweep mine: 4 finished" in output, output
    assert numbers(edited.root, "mine") == numbers(calm.root, "mine")
    [name] = [path.name for path in (edited.folder / "sweeps/sweeps/mine/code").iterdir()]
    events = list((edited.folder / "sweeps/runs").rglob("events.1.jsonl"))
    assert len(events) == 4 and all(f'"snapshot":"{name}"' in path.read_text().replace(": ", ":") for path in events)
