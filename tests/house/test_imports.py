"""What planning, dispatching and reading states must not load: a start of seconds, and hundreds of megabytes per process."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.checkout import ROOT

HEAVY = ("torch", "mlflow", "pandas", "pyarrow", "scipy", "matplotlib", "sklearn")
LIGHT = ("*.py", "plan/*.py", "record/*.py", "jobs/*.py")
ONLY_IN_PROCESSES_OF_THEIR_OWN = ("execute", "engine", "mlflow_client")  # the part of a worker that computes; the replay


def light_modules() -> list[str]:
    package = ROOT / "accum_sweeps"
    files = sorted({path for pattern in LIGHT for path in package.glob(pattern) if path.stem not in ONLY_IN_PROCESSES_OF_THEIR_OWN})
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in files]
    return [name.removesuffix(".__init__") for name in names]


def loaded_by(modules: list[str], cwd: Path) -> set[str]:
    code = f"import importlib, sys\nfor name in {modules!r}: importlib.import_module(name)\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_planning_and_dispatching_load_nothing_heavy(tmp_path: Path) -> None:
    modules = light_modules()
    assert {"accum_sweeps", "accum_sweeps.plan.spec", "accum_sweeps.record.store", "accum_sweeps.jobs.claims"} <= set(modules)
    loaded = loaded_by(modules, tmp_path)
    assert set(modules) <= loaded
    assert loaded.intersection(HEAVY) == set()


@pytest.mark.parametrize("package", ["plan", "record"])
def test_the_packages_below_can_be_imported_alone(tmp_path: Path, package: str) -> None:
    loaded = loaded_by([f"accum_sweeps.{package}"], tmp_path)
    assert loaded.intersection({*HEAVY, "numpy", "hydra", "submitit"}) == set()
