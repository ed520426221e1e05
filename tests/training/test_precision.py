"""What the dtype names mean."""

import pytest
import torch

from accum_sweeps.plan.spec import ACCUMULATORS, DTYPES
from accum_sweeps.training.precision import Precision, accumulator_dtype, loss_scaler
from tests.specs import make_spec


@pytest.mark.parametrize(
    ("name", "parameters", "product"),
    [
        ("fp64", torch.float64, torch.float64),
        ("fp32", torch.float32, torch.float32),
        ("bf16", torch.bfloat16, torch.bfloat16),
        ("amp_bf16", torch.float32, torch.bfloat16),
        ("fp16", torch.float16, torch.float16),
        ("amp_fp16", torch.float32, torch.float16),
        ("tf32", torch.float32, torch.float32),
        ("tf32_emulated", torch.float32, torch.float32),
    ],
)
def test_the_dtype_of_parameters_and_of_matrix_products(name: str, parameters: torch.dtype, product: torch.dtype) -> None:
    precision = Precision.named(name, "cpu")
    weight = torch.ones(2, 2, dtype=precision.parameters)
    with precision.autocast():
        assert (precision.parameters, (weight @ weight).dtype) == (parameters, product)
    assert (weight @ weight).dtype == parameters


def test_every_name_of_a_specification_is_known() -> None:
    assert [Precision.named(name, "cuda").parameters.is_floating_point for name in DTYPES] == [True] * len(DTYPES)
    assert [accumulator_dtype(name) for name in ACCUMULATORS] == [None, torch.bfloat16, torch.float32, torch.float64]


@pytest.mark.parametrize(("name", "given"), [("tf32_emulated", 1.0), ("fp32", 1.0 + 2.0**-20), ("tf32", 1.0 + 2.0**-20)])
def test_only_the_emulation_rounds_factors_here(name: str, given: float) -> None:
    with Precision.named(name, "cpu").arithmetic():
        assert float(torch.tensor([[1.0 + 2.0**-20]]) @ torch.ones(1, 1)) == given


def test_only_amp_fp16_has_a_loss_scale() -> None:
    specs = [make_spec(dtype=dtype, **({"loss_scale": 8.0} if dtype == "amp_fp16" else {})) for dtype in DTYPES if dtype != "tf32"]
    scales = {spec.setup.dtype: loss_scaler(spec.setup) for spec in specs}
    assert {dtype: scaler.get_scale() for dtype, scaler in scales.items() if scaler is not None} == {"amp_fp16": 8.0}
