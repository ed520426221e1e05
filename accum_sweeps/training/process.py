"""What holds for a whole process and can change a number: threads, determinism, flags of torch."""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch.backends import cuda, cudnn


class Wanted(Protocol):
    """What runs ask of the process that computes them, as a Setup has it."""

    @property
    def device(self) -> str:
        """Type of device."""

    @property
    def threads(self) -> int:
        """CPU threads."""

    @property
    def deterministic(self) -> bool:
        """Deterministic algorithms only."""


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


def settle(wanted: Wanted) -> None:
    """Threads, determinism and flags as at the start of a worker: a user's class may have changed them."""
    for put, value in _AT_FIRST:
        put(value)
    torch.set_num_threads(wanted.threads)
    torch.use_deterministic_algorithms(wanted.deterministic)
    if wanted.deterministic and wanted.device == "cuda":
        cudnn.benchmark = False
