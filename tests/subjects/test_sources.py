import shutil
from pathlib import Path

import pytest

from accum_sweeps.plan.errors import ConfigError
from accum_sweeps.plan.parts import CommandHook, PythonHook
from accum_sweeps.subjects.sources import code_hash, source_files


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def hook(target: str = "setup:Setup", *files: str) -> PythonHook:
    return PythonHook(name="", target=target, files=files)


def command(*argv: str, files: tuple[str, ...] = ()) -> CommandHook:
    return CommandHook(name="", argv=argv, files=files)


def test_imports_are_followed_through_packages_relative_names_and_functions(project: Path) -> None:
    write(
        project,
        {
            "setup.py": "import json, numpy\nimport lib.model\nfrom lib import data\n",
            "lib/__init__.py": "",
            "lib/model.py": "from .layers import Layer\nfrom . import *\ndef late():\n    import other\n",
            "lib/layers/__init__.py": "from ..activation import relu\n",
            "lib/activation.py": "",
            "lib/data.py": "",
            "lib/unused.py": "",
            "other.py": "import setup\n",
            "unused.py": "",
        },
    )
    found = source_files(hook(), project)
    assert set(found) == {"setup", "lib", "lib.model", "lib.layers", "lib.activation", "lib.data", "other"}
    assert found["lib.layers"] == project / "lib/layers/__init__.py"


def test_modules_of_this_package_the_standard_library_and_installed_packages_are_not_the_users(project: Path) -> None:
    write(project, {"setup.py": "import argparse, torch, pytest, accum_sweeps.plan.spec\n"})
    assert set(source_files(hook(), project)) == {"setup"}


def test_a_users_module_that_shadows_a_library_is_the_users(project: Path) -> None:
    write(project, {"setup.py": "import statistics\n", "statistics.py": ""})
    assert set(source_files(hook(), project)) == {"setup", "statistics"}


def test_a_users_module_elsewhere_on_the_path_is_followed(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"shared_code/lab_tools/__init__.py": "from lab_tools import plots\n", "shared_code/lab_tools/plots.py": ""})
    write(project, {"setup.py": "import lab_tools\n"})
    monkeypatch.syspath_prepend(tmp_path / "shared_code")
    assert set(source_files(hook(), project)) == {"setup", "lab_tools", "lab_tools.plots"}


def test_the_hash_follows_contents_and_not_the_place(project: Path, tmp_path: Path) -> None:
    write(project, {"setup.py": "import helper\n", "helper.py": "WIDTH = 1\n"})
    before = code_hash(source_files(hook(), project))
    moved = shutil.copytree(project, tmp_path / "moved")
    assert code_hash(source_files(hook(), moved)) == before
    write(moved, {"helper.py": "WIDTH = 22\n"})
    assert code_hash(source_files(hook(), moved)) != before


def test_declared_files_and_folders_count(project: Path) -> None:
    write(project, {"setup.py": "", "data/a.bin": "1", "data/deep/b.bin": "2", "words.txt": "3"})
    found = source_files(hook("setup:Setup", "data/", "words.txt"), project)
    assert set(found) == {"setup", "data/a.bin", "data/deep/b.bin", "words.txt"}
    before = code_hash(found)
    write(project, {"data/deep/b.bin": "22"})
    assert code_hash(source_files(hook("setup:Setup", "data/", "words.txt"), project)) != before


def test_a_declared_file_that_is_missing_is_named(project: Path) -> None:
    with pytest.raises(ConfigError, match=r"subject\.files='nowhere\.txt': there is no such file or folder"):
        source_files(hook("setup:Setup", "nowhere.txt"), project)


def test_a_commands_files_are_its_scripts_what_they_import_and_its_settings(project: Path) -> None:
    write(project, {"jobs/train.py": "import model\n", "jobs/model.py": "", "conf.yaml": "", "README": ""})
    found = source_files(command("python", "jobs/train.py", "--conf=conf.yaml", "{spec}"), project)
    assert set(found) == {"jobs/train.py", "model", "conf.yaml"}


def test_a_module_run_by_name_is_a_commands_file(project: Path) -> None:
    write(project, {"lab/__init__.py": "", "lab/train.py": "from lab import model\n", "lab/model.py": ""})
    assert set(source_files(command("python", "-m", "lab.train", "{spec}"), project)) == {"lab", "lab.train", "lab.model"}


def test_a_projects_own_program_counts_and_its_virtual_environment_does_not(project: Path) -> None:
    write(project, {"train.sh": "", "venv/pyvenv.cfg": "", "venv/bin/torchrun": "#!python"})
    assert set(source_files(command("./train.sh", "{spec}"), project)) == {"./train.sh"}
    assert set(source_files(command("venv/bin/torchrun", "{spec}"), project)) == set()


def test_a_script_for_another_python_is_hashed_without_following_it(project: Path) -> None:
    write(project, {"train.py": "import model\nprint 'two'\n", "model.py": ""})
    assert set(source_files(command("python2", "train.py", "{spec}"), project)) == {"train.py"}
