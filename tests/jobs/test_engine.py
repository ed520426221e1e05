"""The engine: a run's numbers do not depend on what ran before in the same process."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from accum_sweeps.jobs import engine
from accum_sweeps.jobs.order import Group
from accum_sweeps.plan.parts import StandardLibrary
from accum_sweeps.plan.spec import RunSpec
from accum_sweeps.record.store import open_root
from accum_sweeps.training.data import corpus
from tests.specs import make_spec

GROUP = Group("cpu", 1, True)
NONE = {"kind": "none", "name": "none"}
HOOK = """
import torch

class Setup:
    def build(self, config, seeds):
        torch.set_num_threads(3)
        torch.use_deterministic_algorithms(False)
        torch.set_default_dtype(torch.float64)
        torch.set_float32_matmul_precision("high")  # TF32 on a GPU
        torch.backends.cudnn.allow_tf32 = True
        torch.backends.cuda.matmul.allow_fp16_accumulation = True
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        torch.set_flush_denormal(True)
        torch.set_default_device("meta")
        torch.set_grad_enabled(False)
        raise ValueError("all is changed")

    def batch(self, step, seed): ...

    def loss(self, model, samples): ...
"""


def flags() -> dict[str, Any]:
    return {
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "dtype": torch.get_default_dtype(),
        "device": str(torch.get_default_device()),
        "grad": torch.is_grad_enabled(),
        "precision": torch.get_float32_matmul_precision(),
        "tf32": (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32),
        "reduction": torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
        "accumulation": torch.backends.cuda.matmul.allow_fp16_accumulation,
        "denormals": float(torch.tensor([1e-40], dtype=torch.float32, device="cpu") * 1.0) > 0,
    }


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    engine.start(Group("cpu", threads, False))


def run(root: Path, spec: RunSpec) -> tuple[str, list[dict[str, float]], Path]:
    run_dir = open_root(root, create=True).run_dir(spec.run_id, "e" * 12)
    run_dir.path.mkdir(parents=True)
    outcome = engine.execute(spec, run_dir, 1, {}, engine.limits(None))
    return outcome, [point.values for point in run_dir.history().points()], run_dir.path


def test_what_a_users_class_sets_ends_with_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "changes_all.py").write_text(HOOK)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    digest = corpus.identify(StandardLibrary(name="", seq_len=64, lengths="documents", eval_rows=1)).hash  # type: ignore[union-attr]
    small = make_spec(steps=2, eval_every=0, global_batch=4, accum=2, **{"data.eval_rows": 1, "data.hash": digest})
    hook = make_spec(subject={"kind": "python", "name": "", "target": "changes_all:Setup"}, model=NONE, data=NONE)
    engine.start(GROUP)
    clean = flags()
    outcome, expected, _ = run(tmp_path / "fresh", small)
    assert (outcome, len(expected)) == ("finished", 2)
    outcome, _, folder = run(tmp_path / "warm", hook)
    assert outcome == "failed" and "all is changed" in (folder / "log.1.txt").read_text()
    assert {name for name, value in flags().items() if value == clean[name]} == set()
    assert run(tmp_path / "warm", small)[:2] == ("finished", expected)
    assert flags() == clean
