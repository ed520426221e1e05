"""What the dtype names mean."""

import pytest
import torch

from accum_sweeps.plan.spec import ACCUMULATORS, DTYPES
from accum_sweeps.training.precision import Precision, accumulator_dtype


@pytest.mark.parametrize(
    ("name", "parameters", "product"),
    [
        ("fp64", torch.float64, torch.float64),
        ("fp32", torch.float32, torch.float32),
        ("bf16", torch.bfloat16, torch.bfloat16),
        ("amp_bf16", torch.float32, torch.bfloat16),
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
