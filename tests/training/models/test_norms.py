"""Norms: the published formulas, what their statistics are of, and what each brings along."""

import pytest
import torch
from torch import Tensor

from accum_sweeps.training.models.norms import make_norm

SHAPE = (3, 5, 8)  # R, T, D


def positions() -> Tensor:
    return torch.randn(*SHAPE, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3 + 1


def standard(x: Tensor, dims: tuple[int, ...] | int) -> Tensor:
    centred = x - x.mean(dims, keepdim=True)
    return centred / (centred.square().mean(dims, keepdim=True) + 1e-5).sqrt()


EXPECTED = {
    "layernorm": lambda x: standard(x, -1),
    "layernorm_gain": lambda x: standard(x, -1),
    "layernorm_plain": lambda x: standard(x, -1),
    "rmsnorm": lambda x: x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt(),
    "batchnorm": lambda x: standard(x, (0, 1)),
    "groupnorm": lambda x: standard(x.unflatten(-1, (2, 4)), -1).flatten(2),
    "none": lambda x: x,
}
PARAMETERS = {
    "layernorm": {"weight", "bias"},
    "layernorm_gain": {"weight"},
    "layernorm_plain": set(),
    "rmsnorm": {"weight"},
    "batchnorm": {"weight", "bias"},
    "groupnorm": {"weight", "bias"},
    "none": set(),
}


@pytest.mark.parametrize("norm", EXPECTED)
def test_norms_are_the_published_formulas(norm: str) -> None:
    made = make_norm(norm, 8, 2).double()
    assert torch.allclose(made(positions()).detach(), EXPECTED[norm](positions()), rtol=1e-12, atol=1e-13)
    assert {name for name, _ in made.named_parameters()} == PARAMETERS[norm]


@pytest.mark.parametrize("norm", EXPECTED)
def test_only_batchnorm_sees_other_positions_and_that_only_while_training(norm: str) -> None:
    made, changed = make_norm(norm, 8, 2).double().requires_grad_(False), positions()
    changed[2, 4] += 1.0
    for mode in (True, False):
        made.train(mode)
        moved = bool((made(changed)[:2] != made(positions())[:2]).any())
        assert moved == (norm == "batchnorm" and mode)


def test_batchnorms_running_statistics_are_those_of_all_positions() -> None:
    made = make_norm("batchnorm", 8).double()
    made(positions())
    made.eval()
    mean, variance = 0.1 * positions().mean((0, 1)), 0.9 + 0.1 * positions().flatten(0, 1).var(0)
    assert torch.allclose(made(positions()), (positions() - mean) / (variance + 1e-5).sqrt(), rtol=1e-12)


def test_an_unknown_norm_is_named() -> None:
    with pytest.raises(ValueError, match="norm='rms'"):
        make_norm("rms", 8)
