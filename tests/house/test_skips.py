"""In continuous integration a skipped test is a failure, unless it needs a GPU."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.checkout import ROOT

TESTS = """
import pytest

def test_passes(): pass

def test_skips(): pytest.skip("no reason good enough")

@pytest.mark.gpu
def test_needs_a_gpu(): pytest.skip("no CUDA device")

@pytest.mark.xfail(strict=True)
def test_fails_as_expected(): assert False
"""
SETTINGS = "[pytest]\nmarkers =\n    gpu\n    slurm\n"
NO_GPU = "class cuda:\n    is_available = staticmethod(lambda: False)\n"  # stands in for torch, here and on machines with a GPU


def outcome(folder: Path, ci: str, test: str = TESTS) -> tuple[int, str]:
    shutil.copy(ROOT / "tests/conftest.py", folder)
    (folder / "pytest.ini").write_text(SETTINGS)
    (folder / "test_it.py").write_text(test)
    (folder / "torch.py").write_text(NO_GPU)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "COV"))}
    environment |= {"CI": ci, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


def test_a_skip_fails_in_continuous_integration(tmp_path: Path) -> None:
    code, printed = outcome(tmp_path, ci="true")
    assert code == 1
    assert "1 failed, 1 passed, 1 skipped, 1 xfailed" in printed
    assert "no reason good enough" in printed


def test_a_skip_is_only_a_skip_elsewhere(tmp_path: Path) -> None:
    code, printed = outcome(tmp_path, ci="")
    assert code == 0
    assert "1 passed, 2 skipped, 1 xfailed" in printed


@pytest.mark.parametrize(("ci", "code"), [("true", 2), ("", 5)])
def test_a_module_that_skips_itself_fails_in_continuous_integration(tmp_path: Path, ci: str, code: int) -> None:
    assert outcome(tmp_path, ci, "import pytest\npytest.importorskip('no_such_module_anywhere')\n")[0] == code
