"""The notebook interface: names come when used, and importing the package costs nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

import accum_sweeps as acs
from tests.analysis.roots import finish, plan
from tests.specs import make_spec


def test_a_notebook_session(tmp_path: Path) -> None:
    sweep = plan(tmp_path, specs := [make_spec(seed=seed, accum=k) for seed in range(3) for k in (1, 4)])
    for spec in specs:
        finish(sweep.root, spec, 2.0 + spec.seed / 10 + spec.accum / 1000)
    results = acs.load(tmp_path)
    [verdict] = acs.verdict(results, response="eval_loss_final", margin=0.1)
    assert verdict.to_frame()["shift"].tolist() == pytest.approx([0.003])
    assert len(acs.trajectories(tmp_path)) == 12
    assert acs.distances(tmp_path, acs.reference_pairs(results)).empty


def test_every_public_name_exists_and_no_other() -> None:
    assert set(acs.__all__) <= set(dir(acs))
    assert all(callable(getattr(acs, name)) for name in acs.__all__)
    with pytest.raises(AttributeError, match="no attribute 'verdicts'"):
        _ = acs.verdicts


def test_importing_the_package_imports_nothing_heavy() -> None:
    heavy = ("torch", "pandas", "numpy", "mlflow", "scipy", "pyarrow")
    code = f"import sys, accum_sweeps; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_analysis_imports_neither_torch_nor_mlflow() -> None:
    code = (
        "import sys, accum_sweeps as acs; acs.load, acs.verdict, acs.distances; import accum_sweeps.analysis.summary;"
        "print([name for name in ('torch', 'mlflow', 'matplotlib') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
