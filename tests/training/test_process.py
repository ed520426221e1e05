"""What a run asks of the process that computes it, and that nothing of the run before is left."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.backends import cuda, cudnn, mkldnn

from accum_sweeps.plan.spec import DTYPES, Setup
from accum_sweeps.training.process import settle
from tests.specs import make_spec


def setup(device: str = "cuda", **changes: object) -> Setup:
    return make_spec(device=device, threads=torch.get_num_threads(), deterministic=False, **changes).setup


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    settle(setup("cpu"))


def tf32() -> tuple[bool, bool]:
    return cuda.matmul.allow_tf32, cudnn.allow_tf32


def reduction() -> tuple[bool, bool]:
    return cuda.matmul.allow_fp16_reduced_precision_reduction, cuda.matmul.allow_bf16_reduced_precision_reduction


def test_only_the_dtype_tf32_has_tf32_and_the_next_run_puts_it_back() -> None:
    for dtype in DTYPES:
        settle(setup(dtype=dtype))
        assert tf32() == (dtype == "tf32",) * 2
        settle(setup(dtype="fp32"))
        assert tf32() == (False, False)


def test_reduced_precision_reduction_is_as_specified_and_the_next_run_puts_it_back() -> None:
    settle(setup(dtype="bf16", reduced_precision_reduction=False))
    assert reduction() == (False, False)
    settle(setup(dtype="bf16"))
    assert reduction() == (True, True)


# Their types do not know the parts of torch.backends that are made when it is imported.
SPECIAL: list[Any] = [
    cuda.matmul,
    *(getattr(cudnn, name) for name in ("conv", "rnn")),
    *(getattr(mkldnn, name) for name in ("matmul", "conv", "rnn")),
]


@pytest.mark.parametrize("owner", [torch.backends, cudnn, mkldnn, *SPECIAL])
def test_torchs_newer_switches_are_put_back_too(owner: Any) -> None:
    settle(setup())
    before = [each.fp32_precision for each in SPECIAL]
    owner.fp32_precision = "tf32"
    assert [each.fp32_precision for each in SPECIAL] != before
    settle(setup())
    assert [each.fp32_precision for each in SPECIAL] == before
    assert "tf32" not in before and tf32() == (False, False)


@pytest.mark.gpu
def test_on_a_gpu_a_product_is_as_exact_as_the_dtype_says() -> None:
    factor = torch.tensor([[1.0 + 2.0**-20]], device="cuda").expand(256, 256).contiguous()
    unit = torch.eye(256, device="cuda")
    for dtype, is_exact in (("fp32", True), ("tf32", False), ("fp32", True)):
        settle(setup(dtype=dtype))
        assert torch.equal(factor @ unit, factor) == is_exact
