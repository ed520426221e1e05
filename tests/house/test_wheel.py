"""What is built from the tree: real files inside one package, and a program that runs from anywhere."""

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from tests.house.checkout import copy_to, preset_files

DECOY = "raise RuntimeError('a folder of the user was imported instead of the package')\n"
SYMLINK_BITS = 0o120000


def build(kind: list[str], source: Path, out: Path) -> None:
    command = [sys.executable, "-m", "build", "--no-isolation", *kind, "--outdir", str(out), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_to(tmp_path_factory.mktemp("source") / "accum_sweeps")


@pytest.fixture(scope="module")
def wheel(source: Path) -> Path:
    """The wheel made straight from the tree."""
    build(["--wheel"], source, source.parent / "from-tree")
    return next((source.parent / "from-tree").glob("*.whl"))


@pytest.fixture(scope="module")
def sdist(source: Path) -> Path:
    """The source archive, with the wheel that is made from it beside it."""
    build([], source, source.parent / "from-sdist")
    return next((source.parent / "from-sdist").glob("*.tar.gz"))


@pytest.fixture(scope="module")
def clean(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment that holds the wheel, and sees the dependencies (not the package) of the one that runs the tests."""
    folder = tmp_path_factory.mktemp("clean") / "env"
    venv.create(folder, with_pip=False, symlinks=True)
    packages = site_packages(folder)
    outer = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (packages / "dependencies.pth").write_text("\n".join(sorted(outer)) + "\n")
    install = [sys.executable, "-m", "pip", "--python", str(folder / "bin/python"), "--disable-pip-version-check", "install", "--no-deps"]
    done = subprocess.run([*install, "--no-index", str(wheel)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def site_packages(environment: Path) -> Path:
    return next((environment / "lib").glob("python3*/site-packages"))


@pytest.fixture
def decoys(tmp_path: Path) -> Path:
    """A user's folder with packages named like our top-level folders, each of which fails when imported."""
    for name in ("jobs", "analysis", "conf"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(DECOY)
    (tmp_path / "conf/config.yaml").write_text("decoy: true\n")
    return tmp_path


def run(command: list[str], cwd: Path, root: Path) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "COV", "PYTEST", "ACCUM_SWEEPS"))}
    environment |= {"ACCUM_SWEEPS_ROOT": str(root), "COLUMNS": "200"}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=240, check=False)


def test_the_wheel_holds_real_files_inside_one_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        entries = archive.infolist()
    assert {Path(entry.filename).parts[0].split("-")[0] for entry in entries} == {"accum_sweeps"}
    assert [entry.filename for entry in entries if (entry.external_attr >> 16) & 0o170000 == SYMLINK_BITS] == []
    names = {entry.filename for entry in entries}
    assert {"accum_sweeps/jobs/__init__.py", "accum_sweeps/analysis/__init__.py", "accum_sweeps/py.typed"} <= names
    assert {"accum_sweeps/analysis/verdict_rates.csv", "accum_sweeps/analysis/studies/gradcache.csv"} <= names
    assert "accum_sweeps/analysis/notebooks/results_table.ipynb" in names


def test_the_wheel_holds_every_configuration_file(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        shipped = {name.removeprefix("accum_sweeps/") for name in archive.namelist() if name.endswith(".yaml")}
    assert shipped == preset_files()
    assert "conf/config.yaml" in shipped


def test_the_source_archive_makes_the_same_wheel_as_the_tree(sdist: Path, wheel: Path) -> None:
    with tarfile.open(sdist) as archive:
        assert [m.name for m in archive.getmembers() if not (m.isfile() or m.isdir())] == []
    with zipfile.ZipFile(next(sdist.parent.glob("*.whl"))) as ours, zipfile.ZipFile(wheel) as theirs:
        assert {e.filename: e.CRC for e in ours.infolist()} == {e.filename: e.CRC for e in theirs.infolist()}


def test_installing_adds_nothing_but_the_package(clean: Path) -> None:
    added = {path.name.split("-")[0] for path in site_packages(clean).iterdir()}
    assert added == {"accum_sweeps", "dependencies.pth"}


def test_the_installed_package_is_imported_not_the_checkout(clean: Path, decoys: Path, tmp_path: Path) -> None:
    code = "import accum_sweeps.jobs, accum_sweeps.analysis as a; print(accum_sweeps.__file__); print(a.__file__)"
    done = run([str(clean / "bin/python"), "-c", code], decoys, tmp_path / "root")
    assert done.returncode == 0, done.stderr
    assert [Path(line).is_relative_to(site_packages(clean)) for line in done.stdout.split()] == [True, True]


def test_a_small_grid_runs_from_a_folder_with_decoys(clean: Path, decoys: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    small = ["+grid=smoke", "axes={accum:[1,2],seed:{range:2}}", "steps=3", "optimizer.warmup_steps=1", "launcher.slots=1"]
    for program in (["bin/python", "-m", "accum_sweeps"], ["bin/accum-sweeps"]):  # the second finds nothing left to run
        done = run([str(clean / program[0]), *program[1:], *small], decoys, root)
        assert done.returncode == 0, done.stdout + done.stderr
        assert len((root / "sweeps/smoke/results.csv").read_text().splitlines()) == 1 + 4
        assert {path.name for path in root.glob("runs/*/*/claim.*")} == {"claim.1"}
    assert {path.name for path in decoys.iterdir()} == {"jobs", "analysis", "conf", "root"}
