"""The notebooks, executed as a person would: they make their own sweep, and every claim in them is checked in one of their cells."""

import ast
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.house.checkout import ROOT

FOLDER = ROOT / "analysis" / "notebooks"
NAMES = ("gradcache_thread", "open_lm_thread", "results_table", "variance")
KERNELSPEC = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
STRICT = """
import warnings

warnings.simplefilter("error")
warnings.filterwarnings("default", module="ipykernel")  # it warns of itself when it is shut down
"""
LIMIT_S = 400

every_notebook = pytest.mark.parametrize("name", NAMES)


def read(name: str) -> Any:
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def code_of(name: str) -> list[str]:
    return [cell.source for cell in read(name).cells if cell.cell_type == "code"]


def execute(name: str, root: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run all cells in a kernel of this interpreter; a cell that fails fails the test, and so does a warning."""
    for variable in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "TMPDIR"):
        path = folder / variable.lower()
        path.mkdir(mode=0o700, parents=True)
        monkeypatch.setenv(variable, str(path))
    monkeypatch.setenv("ACCUM_SWEEPS_ROOT", str(root))
    notebook = read(name)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(STRICT))
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("COV_", "PYTEST", "MLFLOW"))}
    client = NotebookClient(notebook, timeout=LIMIT_S, kernel_name="python3", resources={"metadata": {"path": str(folder)}})
    client.execute(env=kept)


@pytest.mark.timeout(2 * LIMIT_S)
def test_what_the_notebooks_on_the_sweep_claim_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one root: the first makes the sweep, the second finds it and makes no run again."""
    root = tmp_path / "root"
    claims = []
    for name in ("results_table", "variance"):
        execute(name, root, tmp_path / name, monkeypatch)
        claims.append({str(path.relative_to(root)) for path in root.glob("runs/*/*/claim.*")})
    assert [path.name for path in (root / "sweeps").iterdir()] == ["notebooks"]
    assert claims[0] == claims[1] and len(claims[0]) > 50


@pytest.mark.parametrize("name", ["gradcache_thread", "open_lm_thread"])
def test_what_a_notebook_on_a_thread_claims_holds(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    execute(name, tmp_path / "root", tmp_path / "place", monkeypatch)
    assert [path.name for path in (tmp_path / "root/sweeps").iterdir()] == [name]


def test_all_notebooks_are_tested() -> None:
    assert sorted(path.stem for path in FOLDER.iterdir() if not path.name.startswith(".")) == sorted(NAMES)


@every_notebook
def test_a_notebook_is_valid_and_holds_no_trace_of_a_run(name: str) -> None:
    notebook = read(name)
    nbformat.validate(notebook)
    assert notebook.metadata == KERNELSPEC
    assert [cell.metadata for cell in notebook.cells if cell.metadata] == []
    ran = [cell for cell in notebook.cells if cell.cell_type == "code" and (cell.outputs or cell.execution_count is not None)]
    assert ran == []


@every_notebook
def test_the_first_cell_gives_the_command_that_the_notebook_types(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    typed: list[list[str]] = []

    def record(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        typed.append(command)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", record)
    monkeypatch.delenv("ACCUM_SWEEPS_ROOT", raising=False)
    exec(next(source for source in code_of(name) if "subprocess" in source), {})
    (command,) = typed
    assert command[1:3] == ["-m", "accum_sweeps"] and command[-1] == "root=./sweeps"
    words = read(name).cells[0].source
    block = [line.strip().removesuffix("\\") for line in words.splitlines() if line.startswith("    ")]
    assert shlex.split(" ".join(block)) == ["python", *command[1:-1]]
    assert "`ACCUM_SWEEPS_ROOT`" in words and "`./sweeps`" in words


@every_notebook
def test_a_notebook_is_prose_with_short_cells_that_check_what_the_prose_says(name: str) -> None:
    cells = read(name).cells
    prose = sum(len(cell.source) for cell in cells if cell.cell_type == "markdown")
    code = code_of(name)
    assert prose > 0.7 * sum(map(len, code))
    assert max(len(source.splitlines()) for source in code) <= 20
    checks = [node for source in code for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Assert)]
    assert len(checks) >= 5
