"""What holds for a whole process and can change a number: threads, determinism, flags of torch."""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch
from torch.backends import cuda, cudnn, mkldnn

from accum_sweeps.plan.spec import Setup


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


_PRECISION_OWNERS: tuple[Any, ...] = (torch.backends, cudnn, mkldnn, mkldnn.matmul, mkldnn.conv, mkldnn.rnn)  # type: ignore[attr-defined]


def _as_found() -> list[tuple[Callable[[Any], Any], Any]]:
    """What sets each flag of the process that can change a number, and the value that it has now."""
    return [
        (torch.set_default_dtype, torch.get_default_dtype()),
        (torch.set_default_device, None),
        (torch.set_grad_enabled, True),
        (torch.set_flush_denormal, False),
        # torch's newer switches for the precision of products, from the general to the special; then the older ones, which set newer ones.
        *((partial(setattr, owner, "fp32_precision"), owner.fp32_precision) for owner in _PRECISION_OWNERS),
        (torch.set_float32_matmul_precision, torch.get_float32_matmul_precision()),
        (partial(setattr, cuda.matmul, "allow_fp16_accumulation"), cuda.matmul.allow_fp16_accumulation),
        (partial(setattr, cudnn, "benchmark"), cudnn.benchmark),
        (partial(setattr, cudnn, "deterministic"), cudnn.deterministic),
        (cuda.enable_flash_sdp, cuda.flash_sdp_enabled()),  # type: ignore[no-untyped-call]
        (cuda.enable_mem_efficient_sdp, cuda.mem_efficient_sdp_enabled()),  # type: ignore[no-untyped-call]
        (cuda.enable_math_sdp, cuda.math_sdp_enabled()),  # type: ignore[no-untyped-call]
        (cuda.allow_fp16_bf16_reduction_math_sdp, cuda.fp16_bf16_reduction_math_sdp_allowed()),  # type: ignore[no-untyped-call]
    ]


_AT_FIRST = _as_found()


def settle(wanted: Wanted | Setup) -> None:
    """Threads, determinism and flags as ``wanted`` says, all others as at the start: a user's class may have changed them.

    TF32 is on for a Setup with dtype=tf32 and off otherwise, cuDNN's too, which torch leaves on: float32 is float32.
    """
    for put, value in _AT_FIRST:
        put(value)
    _settle_products(wanted if isinstance(wanted, Setup) else None)
    torch.set_num_threads(wanted.threads)
    torch.use_deterministic_algorithms(wanted.deterministic)
    if wanted.deterministic and wanted.device == "cuda":
        cudnn.benchmark = False


def _settle_products(setup: Setup | None) -> None:
    """How GPUs multiply float32 and half-precision matrices; without a setup as with the default settings."""
    cuda.matmul.allow_tf32 = cudnn.allow_tf32 = setup is not None and setup.dtype == "tf32"
    may_reduce = setup is None or setup.reduced_precision_reduction
    cuda.matmul.allow_fp16_reduced_precision_reduction = may_reduce
    cuda.matmul.allow_bf16_reduced_precision_reduction = may_reduce
