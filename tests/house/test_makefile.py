"""The commands of the Makefile, as far as they can be tried without installing anything."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.house.checkout import ROOT


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    environment = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    return subprocess.run(["make", *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_make_alone_explains_the_commands(tmp_path: Path) -> None:
    done = make(tmp_path)
    assert done.returncode == 0
    assert re.findall(r"^make ([\w-]+)", done.stdout, re.MULTILINE) == ["sweep", "test", "tracking-server", "bench", "chaos", "clean"]


@pytest.mark.parametrize("target", ["sweep", "test"])
def test_a_python_that_is_too_old_is_named_and_nothing_is_made(tmp_path: Path, target: str) -> None:
    old = tmp_path / "old-python"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "Python 3.9.2" && exit 0\nexit 1\n')
    old.chmod(0o755)
    done = make(tmp_path, target, f"PYTHON={old}")
    assert done.returncode == 2
    assert "needs Python 3.11 or newer" in done.stderr
    assert f"{old} is Python 3.9.2" in done.stderr
    assert not (tmp_path / ".venv").exists()


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder in which everything is installed, as far as make can tell."""
    make(tmp_path)
    (tmp_path / ".venv").mkdir()
    for age, stamp in enumerate(("bench", "dev", "run", "venv")):
        path = tmp_path / f".venv/.stamp-{stamp}"
        path.write_text(f"{tmp_path}\n")
        os.utime(path, (2e9 - age, 2e9 - age))
    return tmp_path


def commands(folder: Path, target: str) -> str:
    return subprocess.run(["make", "--dry-run", target], cwd=folder, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("target", ["sweep", "test", "bench"])
def test_everything_is_installed_once(tmp_path: Path, installed: Path, target: str) -> None:
    assert "pip" not in commands(installed, target)
    (tmp_path / ".venv/.stamp-run").unlink()
    assert "pip" in commands(installed, target)


def test_only_the_timings_need_what_they_compare_with(installed: Path) -> None:
    (installed / ".venv/.stamp-bench").unlink()
    assert [target for target in ("sweep", "test", "bench") if "pip" in commands(installed, target)] == ["bench"]


@pytest.mark.parametrize("name", ["constraints.txt", "pyproject.toml"])
def test_a_changed_version_installs_again(installed: Path, name: str) -> None:
    os.utime(installed / name, (2.1e9, 2.1e9))
    assert "pip" in commands(installed, "sweep")
    assert "--clear" not in commands(installed, "sweep")


def test_an_environment_that_was_moved_is_made_anew(installed: Path) -> None:
    (installed / ".venv/.stamp-venv").write_text("/somewhere/else\n")
    assert "-m venv --clear" in commands(installed, "sweep")


def test_continuous_integration_runs_make_test() -> None:
    script = ROOT / ".ci/run"
    assert os.access(script, os.X_OK)
    assert script.read_text().splitlines()[-1] == "make test"
