"""TF32 by arithmetic: what tensor cores do to the inputs of a float32 matrix product, on any device.

TF32 keeps float32's 8 bits of exponent and the upper 10 of its 23 bits of mantissa (NVIDIA, "NVIDIA A100 Tensor Core GPU
Architecture", 2020): unit roundoff 2^-11. Products of such inputs are exact in float32 and are added in float32. Hardware and libraries
differ in how they round inputs; here it is to the nearest, ties to even.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten

_DROPPED_BITS = 13
# Which arguments are multiplied; what is only added to the product keeps its bits.
_FACTORS = {
    aten.mm: (0, 1),
    aten.bmm: (0, 1),
    aten.addmm: (1, 2),
    aten.addmm_: (1, 2),
    aten.baddbmm: (1, 2),
    aten.baddbmm_: (1, 2),
    aten.addbmm: (1, 2),
    aten.convolution: (0, 1),
    aten.convolution_backward: (0, 1, 2),
}


class RoundedProducts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While this mode is on, float32 factors of matrix products and convolutions are rounded to TF32, also in backward passes.

    Layers, matmul and einsum end in these operations. Fused attention does not, and must be switched off; nor do oneDNN's LSTM and products
    of a matrix and a vector. Products in other dtypes are left alone.
    """

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """The operation on rounded factors."""
        kwargs = kwargs or {}
        places = _FACTORS.get(func.overloadpacket)
        if places is None or args[places[0]].dtype != torch.float32:
            return func(*args, **kwargs)
        rounded = [rounded_to_tf32(value) if place in places else value for place, value in enumerate(args)]
        if func.overloadpacket is aten.convolution_backward:
            return _convolution_backward(func, args, rounded)
        return func(*rounded, **kwargs)


def _convolution_backward(func: Callable[..., Any], args: Sequence[Any], rounded: Sequence[Any]) -> tuple[Any, ...]:
    """Gradients of input, weight and bias; the last is a sum, not a product."""
    *_, (for_input, for_weight, for_bias) = args
    products = func(*rounded[:-1], [for_input, for_weight, False])
    sums = func(*args[:-1], [False, False, for_bias])
    return (*products[:2], sums[2])


def rounded_to_tf32(values: Tensor) -> Tensor:
    """A copy of float32 ``values`` with 10 bits of mantissa, rounded to the nearest, ties to even; infinities and NaNs stay."""
    bits = values.view(torch.int32)
    is_odd = (bits >> _DROPPED_BITS) & 1
    half = (1 << (_DROPPED_BITS - 1)) - 1
    rounded = (bits + (half + is_odd)) & -(1 << _DROPPED_BITS)
    return torch.where(values.isfinite(), rounded.view(torch.float32), values)
