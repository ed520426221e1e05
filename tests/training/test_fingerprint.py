"""The environment's fingerprint: stable where nothing changed, another where kernels may differ."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from accum_sweeps.training.fingerprint import cpu_model, fingerprint


def test_the_fingerprint_is_twelve_hex_digits_and_stable() -> None:
    env_id, facts = fingerprint("cpu")
    assert re.fullmatch("[0-9a-f]{12}", env_id)
    assert fingerprint("cpu") == (env_id, facts)
    assert facts["torch"] == torch.__version__
    assert facts["cpu_capability"] == torch.backends.cpu.get_cpu_capability()


@pytest.mark.parametrize("name", ["ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "DNNL_DEFAULT_FPMATH_MODE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"])
def test_variables_that_choose_kernels_change_it(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delenv(name, raising=False)
    env_id, _ = fingerprint("cpu")
    monkeypatch.setenv(name, "AVX2")
    changed, facts = fingerprint("cpu")
    assert (changed != env_id, facts[name]) == (True, "AVX2")


@pytest.mark.parametrize(
    ("backend", "flag", "counts"),
    [
        (torch.backends.cuda.matmul, "allow_fp16_accumulation", True),
        # The specification decides these, and with them the run_id.
        (torch.backends.cuda.matmul, "allow_tf32", False),
        (torch.backends.cudnn, "allow_tf32", False),
        (torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction", False),
    ],
)
def test_a_gpus_flag_counts_there_unless_the_specification_sets_it(
    monkeypatch: pytest.MonkeyPatch, backend: Any, flag: str, counts: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Example GPU")
    before = {device: fingerprint(device)[0] for device in ("cuda", "cpu")}
    value = getattr(backend, flag)
    try:
        setattr(backend, flag, not value)
        after = {device: fingerprint(device)[0] for device in ("cuda", "cpu")}
    finally:
        setattr(backend, flag, value)
    assert (after["cuda"] != before["cuda"], after["cpu"] != before["cpu"]) == (counts, False)


def test_the_facts_of_a_cpu_are_those_that_old_runs_were_recorded_with() -> None:
    names = {"torch", "torch_git", "torch_cuda", "cpu_capability", "cpu", "numpy", "python", "device"}
    assert {name for name in fingerprint("cpu")[1] if not name.isupper()} == names


def test_another_build_of_torch_changes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    env_id, _ = fingerprint("cpu")
    monkeypatch.setattr(torch.version, "git_version", "0123456789")
    assert fingerprint("cpu")[0] != env_id


def test_the_processor_is_the_first_one_listed(tmp_path: Path) -> None:
    listed = "processor : 0\ncpu family : 25\nmodel : 17\nmodel name : Example 9000\n\nprocessor : 1\nmodel name : Other\n"
    (tmp_path / "cpuinfo").write_text(listed.replace(" :", "\t:"))
    assert cpu_model(tmp_path / "cpuinfo") == "Example 9000 25 17"


def test_without_cpuinfo_the_architecture_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.processor", lambda: "")
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    assert cpu_model(tmp_path / "missing") == "riscv64"


@pytest.mark.gpu
def test_on_a_gpu_its_model_counts() -> None:
    env_id, facts = fingerprint("cuda")
    assert facts["gpu"] == torch.cuda.get_device_name()
    assert env_id != fingerprint("cpu")[0]
