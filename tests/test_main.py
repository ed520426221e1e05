"""Tests of the command: what it prints, its exit codes, and that it starts light."""

import subprocess
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from accum_sweeps.__main__ import main
from accum_sweeps.plan.config import Config
from accum_sweeps.plan.errors import UserError
from tests.plan.test_compose import write

Perform = Callable[[Config], int]


@pytest.fixture
def perform(monkeypatch: pytest.MonkeyPatch) -> Callable[[Perform], list[Config]]:
    """Replaces what a command does; the configurations it was called with."""

    def install(action: Perform) -> list[Config]:
        seen: list[Config] = []
        actions = types.ModuleType("accum_sweeps.actions")
        actions.perform = lambda config: (seen.append(config), action(config))[1]  # type: ignore[attr-defined, func-returns-value]
        monkeypatch.setitem(sys.modules, "accum_sweeps.actions", actions)
        return seen

    return install


def run_python(arguments: Sequence[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter."""
    return subprocess.run([sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("code", [0, 1, 3, 4])
def test_exit_code_is_that_of_the_action(perform: Callable[[Perform], list[Config]], code: int) -> None:
    seen = perform(lambda config: code)
    assert main(["+grid=smoke", "action=plan", "root=/r"]) == code
    assert [(config.action, config.sweep, config.root) for config in seen] == [("plan", "smoke", Path("/r"))]


def test_notices_go_to_stderr(perform: Callable[[Perform], list[Config]], capsys: pytest.CaptureFixture[str]) -> None:
    perform(lambda config: 0)
    assert main(["+grid=smoke", "seed=1"]) == 0
    assert capsys.readouterr() == ("", "note: axis seed reduced to 1, as the command line sets it\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["+grid=smok"],
            "error: grid='smok': there is no such option; must be one of adamw, audit, dtypes, faults, gradcache, ladder, norms, ",
        ),
        (["stepz=3"], "error: stepz=3: there is no such key"),
        (["-m", "seed=1,2"], "error: -m (--multirun) is not used here: the grid holds all runs.\n  seed=1,2: several values"),
        (["seed=1,2", "--multirun"], "error: -m (--multirun) is not used here"),
        (["seed=1,2"], "error: seed=1,2: several values of a setting are an axis of the grid.\n  Write: 'axes={seed:[1,2]}'\n"),
        (["--nonsense"], "error: unrecognized arguments: --nonsense\n  See python -m accum_sweeps --help\n"),
        (["--cfg", "all"], "error: argument --cfg: invalid choice: 'all'"),
        (["--config-dir", "/nowhere/x"], "error: --config-dir /nowhere/x: there is no such folder.\n"),
        (["root=a", "root=b"], "error: root is given twice on the command line"),
    ],
)
def test_bad_configuration_is_one_message_and_exit_code_two(
    arguments: list[str], words: str, perform: Callable[[Perform], list[Config]], capsys: pytest.CaptureFixture[str]
) -> None:
    seen = perform(lambda config: 0)
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert (out, seen) == ("", [])
    assert err.startswith(words)
    assert "Traceback" not in err
    assert "HYDRA_FULL_ERROR" not in err


def test_mistake_found_by_the_action_is_exit_code_two(
    perform: Callable[[Perform], list[Config]], capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(config: Config) -> int:
        raise UserError("no space")

    perform(refuse)
    assert main([]) == 2
    assert capsys.readouterr().err == "error: no space\n"


def test_interrupt_is_exit_code_130(perform: Callable[[Perform], list[Config]]) -> None:
    def interrupt(config: Config) -> int:
        raise KeyboardInterrupt

    perform(interrupt)
    assert main([]) == 130


def test_fault_of_the_program_is_not_hidden(perform: Callable[[Perform], list[Config]]) -> None:
    def fail(config: Config) -> int:
        raise ZeroDivisionError

    perform(fail)
    with pytest.raises(ZeroDivisionError):
        main([])


def test_configuration_is_printed_as_yaml_with_the_command_lines_axes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["+grid=smoke", "--cfg", "job", "axes.accum=[1,2]", "root=/r"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {"root: /r", "sweep: smoke", "steps: 20", "  name: tiny"} <= set(lines)
    assert lines[lines.index("  accum:") :] == ["  accum:", "  - 1", "  - 2"]


def test_users_grids_and_presets_come_from_their_folder(
    tmp_path: Path, perform: Callable[[Perform], list[Config]], capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "grid/mine", "# @package _global_\n# Does momentum matter? In detail.\naxes: {optimizer: [half], accum: [1, 2]}\n")
    write(tmp_path, "optimizer/half", "defaults: [sgd, _self_]\nmomentum: 0.5\n")
    seen = perform(lambda config: 0)
    assert main(["--config-dir", str(tmp_path), "+grid=mine"]) == 0
    runs = list(seen[0].grid.expand())
    assert [(run.setup.optimizer.name, run.setup.optimizer.momentum, run.accum) for run in runs] == [  # type: ignore[union-attr]
        ("half", 0.5, 1),
        ("half", 0.5, 2),
    ]
    assert main(["--help", "--config-dir", str(tmp_path)]) == 0
    assert "  mine         Does momentum matter?\n" in capsys.readouterr().out


def test_help_shows_every_grid_action_and_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for word in ("adamw", "dtypes", "norms", "optimizers", "sgd", "smoke", "--config-dir", "~axes.NAME", "130 interrupted"):
        assert word in text
    for action in ("run", "plan", "status", "report", "sync", "cancel", "list", "prune"):
        assert f"  {action} " in text
    assert max(map(len, text.splitlines())) <= 140
    assert len(text.splitlines()) <= 45


def test_planning_imports_nothing_heavy_and_makes_no_folder(tmp_path: Path) -> None:
    code = (
        "import sys; from accum_sweeps.plan.config import read_config\n"
        "config = read_config(['+grid=smoke']); n = sum(1 for _ in config.grid.expand())\n"
        "print(n, sorted({'torch', 'mlflow', 'pandas', 'numpy', 'submitit'} & set(sys.modules)))"
    )
    done = run_python(["-c", code], tmp_path)
    assert (done.stdout, done.stderr) == ("6 []\n", "")
    assert list(tmp_path.iterdir()) == []


def test_command_runs_as_a_module_from_any_folder(tmp_path: Path) -> None:
    done = run_python(["-m", "accum_sweeps", "+grid=smoke", "--cfg", "job"], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"root: {tmp_path}/sweeps" in done.stdout.splitlines()
    done = run_python(["-m", "accum_sweeps", "+gird=smoke"], tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: gird='smoke': there is no such key; must be one of")
    assert list(tmp_path.iterdir()) == []


def test_closed_output_is_no_error(tmp_path: Path) -> None:
    command = f"{sys.executable} -m accum_sweeps --help | head -n 1"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("Does gradient accumulation")
    assert done.stderr == ""
