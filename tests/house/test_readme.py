"""What the README tells people to type, exists."""

import ast
import re
import shlex
from pathlib import Path

import pytest

import accum_sweeps
from accum_sweeps.plan.config import ACTIONS, read_config
from tests.house.checkout import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLES = ROOT / "tests/subjects/examples"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


COMMANDS = [line for block in blocks("bash") for line in block.splitlines() if line.strip()]
PROGRAMS = [line for line in COMMANDS if line.startswith(("python -m accum_sweeps ", "accum-sweeps"))]


@pytest.mark.parametrize("command", PROGRAMS)
def test_the_configuration_of_a_command_is_accepted(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = shlex.split(command, comments=True)
    words = words[words.index("accum_sweeps") + 1 :]
    monkeypatch.chdir(tmp_path)
    folders = []
    if "--config-dir" in words:
        position = words.index("--config-dir")
        folders = [tmp_path / words[position + 1]]
        (folders[0] / "grid").mkdir(parents=True)
        (folders[0] / "grid/lr.yaml").write_text("# @package _global_\naxes:\n  optimizer.lr: [1.0e-3, 2.0e-3]\n")
        del words[position : position + 2]
    assert read_config(words, folders).sweep in {"adamw", "audit", "lr", "mine", "open_lm", "gradcache"}


def test_every_make_target_named_is_there() -> None:
    named = {word for line in COMMANDS if line.startswith("make") for word in line.partition("#")[0].split()[1:]}
    named |= set(re.findall(r"`make (?:PYTHON=\S+ )?(\w+)`", README))
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"sweep", "test", "bench"} <= named <= targets


def test_every_action_has_a_row_and_every_shipped_grid_its_number_of_runs() -> None:
    assert set(ACTIONS) <= set(re.findall(r"^\| `(\w+)` \|", README, re.MULTILINE))
    counts = {name: int(count) for name, count in re.findall(r"^\| `(\w+)` \|.*\| (\d+) \|$", README, re.MULTILINE)}
    grids = [path.stem for path in (ROOT / "conf/grid").glob("*.yaml")]
    configs = {name: read_config([f"+grid={name}"]) for name in grids}
    assert counts == {name: sum(1 for _ in config.design.complete(config.grid.expand())) for name, config in configs.items()}


def test_the_names_used_in_a_notebook_exist() -> None:
    notebooks = [block for block in blocks("python") if "import accum_sweeps as acs" in block]
    attributes = [node for block in notebooks for node in ast.walk(ast.parse(block)) if isinstance(node, ast.Attribute)]
    used = {node.attr for node in attributes if isinstance(node.value, ast.Name) and node.value.id == "acs"}
    assert used == set(accum_sweeps.__all__)


@pytest.mark.parametrize("name", ["my_training.py", "train.py", "mine.py", "my_trainer.py"])
def test_the_worked_examples_are_the_tested_ones(name: str) -> None:
    assert (EXAMPLES / name).read_text(encoding="utf-8") in blocks("python")


def test_the_grid_shown_is_the_shipped_one() -> None:
    assert blocks("yaml") == [(ROOT / "conf/grid/adamw.yaml").read_text(encoding="utf-8")]


def test_every_file_linked_is_there() -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)\)", README)
    assert [link for link in links if not (ROOT / link).exists()] == []
    assert "CHANGELOG.md" in links
