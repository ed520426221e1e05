"""Attention: both ways to compute it, and rotary positions."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from accum_sweeps.training.models import attention
from accum_sweeps.training.models.attention import attend, rope_rotation, rotate


def values(length: int) -> torch.Tensor:
    """Queries, keys and values of 2 rows and 2 heads."""
    return torch.randn(3, 2, 2, length, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_written_out_attention_is_torchs_attention() -> None:
    query, key, value = values(16)
    expected = scaled_dot_product_attention(query, key, value, is_causal=True)
    assert float((attend(query, key, value) - expected).norm() / expected.norm()) < 1e-15


def test_long_rows_give_the_same_values_and_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for fused_from in (1024, 33):
        monkeypatch.setattr(attention, "FUSED_FROM", fused_from)
        given = values(33).requires_grad_()
        mixed = attend(*given)
        (gradient,) = torch.autograd.grad(mixed.square().sum(), given)
        results.append((mixed.detach(), gradient))
    for written, fused in zip(*results, strict=True):
        assert 0 < float((written - fused).norm() / written.norm()) < 1e-14  # another kernel: not the same bits


def test_rotation_keeps_norms_and_makes_products_depend_on_distances_alone() -> None:
    cos, sin = rope_rotation(16, 24, torch.device("cpu"), torch.float64)
    q, k = torch.randn(2, 24, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rotated_q, rotated_k = (rotate(x.expand(1, 1, 16, 24), cos, sin)[0, 0] for x in (q, k))
    assert torch.allclose(rotated_q.norm(dim=1), q.norm().expand(16), rtol=1e-14)
    products = rotated_q @ rotated_k.T
    assert torch.allclose(products.diagonal(-3), products[3, 0].expand(13), rtol=1e-12)
    assert float(products[3, 0] - products[0, 0]) != 0.0
