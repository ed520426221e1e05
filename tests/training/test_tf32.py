"""TF32 by arithmetic: exact bit patterns, and that every matrix product of a training meets only rounded factors."""

import math
import struct
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from accum_sweeps.training.precision import Precision
from accum_sweeps.training.tf32 import rounded_to_tf32


def float_of(bits: int) -> float:
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


def bits_of(value: Tensor) -> int:
    return int(struct.unpack("<I", struct.pack("<f", value.item()))[0])


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (0x3F800000, 0x3F800000),  # 1
        (0x3F800FFF, 0x3F800000),  # below half of the last bit that stays
        (0x3F801000, 0x3F800000),  # a tie, to the even neighbour below
        (0x3F803000, 0x3F804000),  # a tie, to the even neighbour above
        (0x3F801001, 0x3F802000),  # above half
        (0xBF803000, 0xBF804000),  # the same below zero
        (0x3FFFF000, 0x40000000),  # into the next power of two
        (0x00001001, 0x00002000),  # denormal
        (0x80000000, 0x80000000),  # -0
        (0x7F7FF000, 0x7F800000),  # past the largest number
        (0x7F800000, 0x7F800000),  # infinity
        (0xFF800000, 0xFF800000),
    ],
)
def test_bits_are_rounded_to_the_nearest_ties_to_even(given: int, expected: int) -> None:
    assert bits_of(rounded_to_tf32(torch.tensor(float_of(given)))) == expected


def test_nan_stays_nan_whatever_its_bits() -> None:
    patterns = torch.tensor([0x7F800001, 0x7FC00000, -1], dtype=torch.int32).view(torch.float32)
    assert rounded_to_tf32(patterns).isnan().all()


def test_the_relative_error_is_at_most_the_unit_roundoff_and_reaches_it() -> None:
    values = torch.linspace(1, 2, 100_001)
    errors = (rounded_to_tf32(values).double() - values.double()).abs() / values.double()
    assert 0.99 * 2**-11 < errors.max() <= 2**-11


def emulated(run: Callable[[], Tensor]) -> Tensor:
    """What ``run`` gives; the gradients of its sum stay in the leaves."""
    with Precision.named("tf32_emulated", "cpu").arithmetic():
        result = run()
        result.sum().backward()
    return result.detach()


def leaves(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes]


# Each product with the dimensions of its factors, and what the emulation must equal: the same product of factors that were rounded before.
PRODUCTS: dict[str, tuple[Callable[..., Tensor], list[tuple[int, ...]]]] = {
    "mm": (torch.mm, [(3, 4), (4, 5)]),
    "bmm": (torch.bmm, [(2, 3, 4), (2, 4, 5)]),
    "matmul": (torch.matmul, [(2, 3, 4), (4, 5)]),
    "linear": (nn.functional.linear, [(2, 3, 4), (5, 4)]),
    "einsum": (lambda a, b: torch.einsum("rij,rkj->rik", a, b), [(2, 3, 4), (2, 5, 4)]),
    "conv1d": (nn.functional.conv1d, [(2, 3, 8), (4, 3, 2)]),
    "conv2d": (nn.functional.conv2d, [(2, 3, 8, 8), (4, 3, 2, 2)]),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_round_their_factors_forward_and_backward(name: str) -> None:
    product, shapes = PRODUCTS[name]
    factors = leaves(*shapes)
    weighting = leaves(tuple(product(*factors).shape))[0].detach()
    result = emulated(lambda: product(*factors) * weighting)
    rounded = [rounded_to_tf32(factor.detach()).requires_grad_() for factor in factors]
    expected = product(*rounded)
    assert torch.equal(result, (expected * weighting).detach())
    # What comes back to the product is `weighting`: in its backward products it is rounded like the factors themselves.
    expected.backward(rounded_to_tf32(weighting))
    for factor, other in zip(factors, rounded, strict=True):
        assert factor.grad is not None and other.grad is not None and torch.equal(factor.grad, other.grad)
    exact = torch.autograd.grad((product(*factors) * weighting).sum(), factors)
    assert all(not torch.equal(factor.grad, other) for factor, other in zip(factors, exact, strict=True))  # type: ignore[arg-type]


# Bias first, then the factors; the bias' shape within the result's, and over which dimensions its gradient is summed.
SUMS: dict[str, tuple[Callable[..., Tensor], list[tuple[int, ...]], tuple[int, ...], tuple[int, ...]]] = {
    "addmm": (torch.addmm, [(3, 5), (3, 4), (4, 5)], (3, 5), ()),
    "baddbmm": (torch.baddbmm, [(2, 3, 5), (2, 3, 4), (2, 4, 5)], (2, 3, 5), ()),
    "conv2d": (lambda bias, x, w: nn.functional.conv2d(x, w, bias), [(4,), (2, 3, 8, 8), (4, 3, 2, 2)], (4, 1, 1), (0, 2, 3)),
}


@pytest.mark.parametrize("name", SUMS)
def test_what_is_only_added_keeps_its_bits_and_its_gradient(name: str) -> None:
    operation, shapes, shape, summed_over = SUMS[name]
    bias, first, second = leaves(*shapes)
    first.data.zero_()
    weighting = leaves(tuple(operation(bias, first, second).shape))[0].detach()
    result = emulated(lambda: operation(bias, first, second) * weighting)
    assert torch.equal(result, bias.detach().view(shape) * weighting)
    exact = weighting.double().sum(summed_over) if summed_over else weighting.double()
    rounded = rounded_to_tf32(weighting).double().sum(summed_over) if summed_over else rounded_to_tf32(weighting).double()
    assert bias.grad is not None and (bias.grad - exact).norm() < 1e-6 * exact.norm()
    assert (rounded - exact).norm() > 1e-5 * exact.norm()


def test_attention_is_rounded_inside() -> None:
    query, key, value = leaves((1, 2, 4, 8), (1, 2, 4, 8), (1, 2, 4, 8))
    result = emulated(lambda: scaled_dot_product_attention(query, key, value, is_causal=True))
    scores = rounded_to_tf32(query.detach() * 8**-0.25) @ rounded_to_tf32(key.detach() * 8**-0.25).transpose(-1, -2)
    weights = (scores + torch.full((4, 4), -math.inf).triu(1)).softmax(-1)
    expected = rounded_to_tf32(weights) @ rounded_to_tf32(value.detach())
    assert (result - expected).abs().max() <= 1e-6  # measured: 0; float32's roundoff of numbers of size 1
    plain = scaled_dot_product_attention(query, key, value, is_causal=True)
    assert (result - plain).abs().max() > 2e-4  # measured: 6e-4


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes_are_left_alone(dtype: torch.dtype) -> None:
    a, b = leaves((3, 4), (4, 5), dtype=dtype)
    result = emulated(lambda: a @ b)
    assert torch.equal(result, (a @ b).detach())
    assert a.grad is not None and torch.equal(a.grad, torch.autograd.grad((a @ b).sum(), a)[0])


def test_outside_of_the_context_nothing_is_rounded() -> None:
    a, b = leaves((3, 4), (4, 5))
    before = (a @ b).detach()
    emulated(lambda: a @ b)
    assert torch.equal((a @ b).detach(), before)
