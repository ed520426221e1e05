"""What the dtype names of a specification mean: the parameters' dtype, autocast, the gradient buffer's dtype."""

import contextlib
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from accum_sweeps.plan.spec import Setup

_PARAMETERS = {"fp64": torch.float64, "bf16": torch.bfloat16, "fp16": torch.float16}  # others: float32
_AUTOCAST = {"amp_bf16": torch.bfloat16, "amp_fp16": torch.float16}
_BUFFERS = {"param": None, "bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64}


@dataclass(frozen=True, kw_only=True)
class Precision:
    """Parameters of dtype ``parameters``; operations under autocast to ``operations`` (None = no autocast) on ``device``."""

    parameters: torch.dtype
    operations: torch.dtype | None
    device: str

    @classmethod
    def named(cls, dtype: str, device: str) -> "Precision":
        """The precision called ``dtype`` in a specification."""
        return cls(parameters=_PARAMETERS.get(dtype, torch.float32), operations=_AUTOCAST.get(dtype), device=device)

    def autocast(self) -> AbstractContextManager[object]:
        """The context that forward passes run in."""
        if self.operations is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device, self.operations)

    def arithmetic(self) -> AbstractContextManager[object]:
        """The context that a whole optimizer step, or an evaluation, runs in: how matrix products round."""
        return contextlib.nullcontext()


def loss_scaler(setup: Setup) -> torch.amp.GradScaler | None:
    """torch's own loss scaler for amp_fp16, else None. It scales the *sum* of the losses, whose gradients are those of single terms."""
    if setup.dtype != "amp_fp16":
        return None
    return torch.amp.GradScaler(setup.device, init_scale=setup.loss_scale)


def accumulator_dtype(name: str) -> torch.dtype | None:
    """The gradient buffer's dtype: None for ``param`` (each parameter's own), else that of bf16, fp32 or fp64."""
    return _BUFFERS[name]
