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
    assert re.findall(r"^make (\w+)", done.stdout, re.MULTILINE) == ["sweep", "test", "bench", "clean"]


@pytest.mark.parametrize("target", ["sweep", "test"])
def test_a_python_that_is_too_old_is_named_and_nothing_is_made(tmp_path: Path, target: str) -> None:
    old = tmp_path / "old-python"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "Python 3.9.2" && exit 0\nexit 1\n')
    old.chmod(0o755)
    done = make(tmp_path, target, f"PYTHON={old}")
    assert done.returncode == 2
    assert "needs Python 3.11 or newer" in done.stderr
    assert f"'{old}' is Python 3.9.2" in done.stderr
    assert not (tmp_path / ".venv").exists()


def test_nothing_is_installed_again_while_nothing_has_changed(tmp_path: Path) -> None:
    installing = make(tmp_path, "--dry-run", "test").stdout
    assert "pip" in installing
    for stamp in ("venv", "run", "dev"):
        path = tmp_path / ".venv" / f".stamp-{stamp}"
        path.parent.mkdir(exist_ok=True)
        path.touch()
    subprocess.run(["make", "--touch", ".venv/.stamp-dev"], cwd=tmp_path, capture_output=True, check=True)
    assert "pip" not in subprocess.run(["make", "--dry-run", "test"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout


def test_a_changed_pin_installs_again(tmp_path: Path) -> None:
    make(tmp_path, "--touch", ".venv/.stamp-dev")
    os.utime(tmp_path / "constraints.txt", (2e9, 2e9))
    dry = subprocess.run(["make", "--dry-run", "sweep"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert "pip" in dry


def test_continuous_integration_runs_make_test() -> None:
    script = ROOT / ".ci/run"
    assert os.access(script, os.X_OK)
    assert script.read_text().splitlines()[-1] == "make test"
