"""The folders at the top are what the package reaches through its links, and nothing in them points to one machine."""

import re
import tomllib
from pathlib import Path

import pytest

import accum_sweeps.plan
from tests.house.checkout import ROOT, text_files

# A home or a root folder, spelled out. Built from pieces so that this file does not hold one itself.
HOME = re.compile(r"(?<![\w.~*}-])/(?:home|Users|root|work)" + r"/\w")


@pytest.mark.parametrize("name", ["jobs", "analysis", "conf"])
def test_the_package_reaches_the_top_level_folder_through_a_relative_link(name: str) -> None:
    link = ROOT / "accum_sweeps" / name
    assert link.is_symlink()
    assert link.readlink() == Path("..") / name
    assert link.resolve() == ROOT / name


def test_the_tests_import_this_checkout() -> None:
    assert Path(accum_sweeps.plan.__file__).resolve() == ROOT / "accum_sweeps/plan/__init__.py"


def test_no_text_holds_the_path_of_somebodys_home() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in text_files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if HOME.search(line)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("line", "is_home"), [("cd /" + "home/ann/x", True), ("'/" + "Users/ann'", True), ("{root}/" + "root/runs", False)]
)
def test_the_search_for_homes_tells_them_from_other_paths(line: str, is_home: bool) -> None:
    assert (HOME.search(line) is not None) == is_home


@pytest.mark.parametrize("folder", ["accum_sweeps", "jobs", "analysis"])
def test_every_folder_of_code_is_a_package(folder: str) -> None:
    code = {path.parent for path in (ROOT / folder).rglob("*.py")}
    assert sorted(str(p) for p in code if not (p / "__init__.py").is_file()) == []


def test_every_module_of_the_package_stands_in_a_layer() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["id"] == "layers")
    placed = {name for layer in layers for name in re.findall(r"accum_sweeps\.(\w+)", layer)}
    modules = {path.stem for path in (ROOT / "accum_sweeps").iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert modules - placed == {"__init__", "conf"}
