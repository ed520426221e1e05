"""What the dtype names of a specification mean: the parameters' dtype, autocast, the gradient buffer's dtype."""

import contextlib
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

_PARAMETERS = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16, "amp_bf16": torch.float32}
_AUTOCAST = {"amp_bf16": torch.bfloat16}
_BUFFERS = {"param": None, "bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64}


@dataclass(frozen=True, kw_only=True)
class Precision:
    """Parameters of dtype ``parameters``; operations under autocast to ``operations`` (None = no autocast) on ``device``."""

    parameters: torch.dtype
    operations: torch.dtype | None
    device: str

    @classmethod
    def named(cls, dtype: str, device: str) -> "Precision":
        """The precision called ``dtype`` in a specification: fp64, fp32, bf16 or amp_bf16. KeyError for another name."""
        return cls(parameters=_PARAMETERS[dtype], operations=_AUTOCAST.get(dtype), device=device)

    def autocast(self) -> AbstractContextManager[object]:
        """The context that forward passes run in."""
        if self.operations is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device, self.operations)


def accumulator_dtype(name: str) -> torch.dtype | None:
    """The gradient buffer's dtype: None for ``param`` (each parameter's own), else that of bf16, fp32 or fp64."""
    return _BUFFERS[name]
