"""What the dtype names of a specification mean: the parameters' dtype, autocast, loss scaling, the gradient buffer's dtype.

``fp16`` keeps weights, gradients and optimizer state in float16, whose smallest number is 6e-8. Adam's eps of 1e-8 is 0 there, and the
second moment of a gradient entry below about 1e-3 is 0 too: such an entry's update is its first moment divided by zero, and the run
diverges within a few steps. That is what pure float16 does; optimizer.eps=1e-4 keeps it finite, amp_fp16 is the usual remedy.
"""

import contextlib
from collections.abc import Generator
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from accum_sweeps.plan.spec import Setup
from accum_sweeps.training.tf32 import RoundedProducts

_PARAMETERS = {"fp64": torch.float64, "bf16": torch.bfloat16, "fp16": torch.float16}  # others: float32
_AUTOCAST = {"amp_bf16": torch.bfloat16, "amp_fp16": torch.float16}
_BUFFERS = {"param": None, "bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64}


@dataclass(frozen=True, kw_only=True)
class Precision:
    """Parameters of dtype ``parameters``; operations under autocast to ``operations`` (None = no autocast) on ``device``.

    ``has_rounded_products``: the float32 factors of matrix products are rounded to TF32.
    """

    parameters: torch.dtype
    operations: torch.dtype | None
    device: str
    has_rounded_products: bool = False

    @classmethod
    def named(cls, dtype: str, device: str) -> "Precision":
        """The precision called ``dtype`` in a specification."""
        return cls(
            parameters=_PARAMETERS.get(dtype, torch.float32),
            operations=_AUTOCAST.get(dtype),
            device=device,
            has_rounded_products=dtype == "tf32_emulated",
        )

    def autocast(self) -> AbstractContextManager[object]:
        """The context that forward passes run in."""
        if self.operations is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device, self.operations)

    def arithmetic(self) -> AbstractContextManager[object]:
        """The context that a whole optimizer step, or an evaluation, runs in: how matrix products round.

        The TF32 of GPUs is a flag of the process and no matter of this context: ``jobs.engine`` sets it for each run.
        """
        return _rounded_products() if self.has_rounded_products else contextlib.nullcontext()


@contextlib.contextmanager
def _rounded_products() -> Generator[None]:
    # Attention in single operations: the products inside a fused kernel cannot be reached.
    with sdpa_kernel(SDPBackend.MATH), RoundedProducts():  # type: ignore[no-untyped-call]
        yield


def loss_scaler(setup: Setup) -> torch.amp.GradScaler | None:
    """torch's own loss scaler for amp_fp16, else None: factor 1/2 and no update after an overflow, factor 2 after 2000 steps without one.

    It scales the *sum* of a micro-batch's losses: a mean over N terms needs a factor N times as large for the same gradients, torch's
    usual 65536 at 4096 terms is 16 here. The larger the micro-batch, the larger its summed gradient: with model=tiny and 1024 tokens in
    one micro-batch 16 leaves a factor of 5 up to float16's largest number; 128 overflows, but not in four micro-batches.
    """
    if setup.dtype != "amp_fp16":
        return None
    return torch.amp.GradScaler(setup.device, init_scale=setup.loss_scale)


def accumulator_dtype(name: str) -> torch.dtype | None:
    """The gradient buffer's dtype: None for ``param`` (each parameter's own), else that of bf16, fp32 or fp64."""
    return _BUFFERS[name]
