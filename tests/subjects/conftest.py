"""A user's project folder: the current folder, first on sys.path, its modules forgotten after the test."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from accum_sweeps.subjects.sources import loaded_files

EXAMPLES = Path(__file__).parent / "examples"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder in which the command is typed."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # two edits within a second would find the first one's bytecode
    yield folder
    for name, module in list(sys.modules.items()):
        if Path(getattr(module, "__file__", None) or "/").is_relative_to(folder):
            del sys.modules[name]


@pytest.fixture
def examples(project: Path) -> Path:
    """The project with the worked examples of the README in it."""
    for file in EXAMPLES.glob("*.py"):
        shutil.copy(file, project)
    assert not [path for path in loaded_files() if path.is_relative_to(project)]
    return project
