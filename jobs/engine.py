"""The heavy half of a worker, imported once, after the slot is pinned: torch, and how a run is computed."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.backends import cuda, cudnn

from accum_sweeps.execute import Limits
from accum_sweeps.execute import execute as execute_run
from accum_sweeps.jobs.order import Group
from accum_sweeps.plan.spec import RunSpec, Setup
from accum_sweeps.record.store import RunDir
from accum_sweeps.training.fingerprint import fingerprint

__all__ = ["Limits", "execute", "limits", "start"]


def _as_found() -> list[tuple[Callable[[Any], Any], Any]]:
    """What sets each flag of the process that can change a number, and the value that it has now."""
    return [
        (torch.set_default_dtype, torch.get_default_dtype()),
        (torch.set_default_device, None),
        (torch.set_grad_enabled, True),
        (torch.set_flush_denormal, False),
        # First the precision of all matrix products, which takes back a mix of torch's older and newer switches for it.
        (torch.set_float32_matmul_precision, torch.get_float32_matmul_precision()),
        (lambda value: setattr(cuda.matmul, "allow_tf32", value), cuda.matmul.allow_tf32),
        (lambda value: setattr(cudnn, "allow_tf32", value), cudnn.allow_tf32),
        (lambda value: setattr(cudnn, "benchmark", value), cudnn.benchmark),
        (lambda value: setattr(cudnn, "deterministic", value), cudnn.deterministic),
        (cuda.enable_flash_sdp, cuda.flash_sdp_enabled()),  # type: ignore[no-untyped-call]
        (cuda.enable_mem_efficient_sdp, cuda.mem_efficient_sdp_enabled()),  # type: ignore[no-untyped-call]
        (cuda.enable_math_sdp, cuda.math_sdp_enabled()),  # type: ignore[no-untyped-call]
    ]


_AT_FIRST = _as_found()


def start(group: Group) -> tuple[str, dict[str, Any]]:
    """Set what holds for the whole process; returns env_id and the facts that it stands for."""
    _settle(group)
    return fingerprint(group.device)


def execute(spec: RunSpec, run_dir: RunDir, attempt: int, environment: dict[str, Any], limits: Limits, **facts: Any) -> str:
    """:func:`accum_sweeps.execute.execute`, whatever the run before left behind in this process."""
    _settle(spec.setup)
    return execute_run(spec, run_dir, attempt, environment, limits, **facts)


def _settle(wanted: Group | Setup) -> None:
    """Threads, determinism and flags as at the start of a worker: a user's class may have changed them."""
    for put, value in _AT_FIRST:
        put(value)
    torch.set_num_threads(wanted.threads)
    torch.use_deterministic_algorithms(wanted.deterministic)
    if wanted.deterministic and wanted.device == "cuda":
        cudnn.benchmark = False


def limits(run_limit_s: float | None, **settings: Any) -> Limits:
    """The bounds of one execution."""
    return Limits(run_limit_s=math.inf if run_limit_s is None else run_limit_s, **settings)
