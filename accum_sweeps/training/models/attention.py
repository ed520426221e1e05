"""Causal multi-head attention with rotary positions.

Shapes: R rows, T tokens, D width, H heads, C = D / H width of a head.
"""

import functools

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from accum_sweeps.plan.parts import Decoder as DecoderPart
from accum_sweeps.training.models.norms import make_norm

ROPE_BASE = 10_000.0
# Tokens of a row from which on CPUs keep no T x T scores: twelve layers of 12 heads at T = 2048 would hold 2.4 GB a row in float32.
FUSED_FROM = 1024

Rotation = tuple[Tensor, Tensor]  # (cos, sin)


class Attention(nn.Module):
    """Causal multi-head attention. With ``qk_norm`` queries and keys are RMS-normalized per head, with a gain."""

    def __init__(self, part: DecoderPart) -> None:
        super().__init__()
        self.heads = part.heads
        self.query_key_value = nn.Linear(part.width, 3 * part.width, bias=part.attention_bias)
        self.output = nn.Linear(part.width, part.width, bias=part.attention_bias)
        head_norm = "rmsnorm" if part.qk_norm else "none"
        self.query_norm = make_norm(head_norm, part.width // part.heads)
        self.key_norm = make_norm(head_norm, part.width // part.heads)

    def forward(self, x: Tensor, rotation: Rotation | None) -> Tensor:
        """(R, T, D) -> (R, T, D). Padding stands at the end of a row, where no real position can see it."""
        split = self.query_key_value(x).unflatten(-1, (3, self.heads, -1))
        query, key, value = split.permute(2, 0, 3, 1, 4)  # each (R, H, T, C)
        query, key = self.query_norm(query), self.key_norm(key)
        if rotation is not None:
            query, key = rotate(query, *rotation), rotate(key, *rotation)
        mixed = attend(query, key, value)
        result: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return result


def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal softmax attention: three times (R, H, T, C) -> (R, H, T, C)."""
    if query.is_cuda or query.shape[-2] >= FUSED_FROM:
        return scaled_dot_product_attention(query, key, value, is_causal=True)
    # On CPUs the fused kernel takes four times as long as this in bfloat16.
    scale = query.shape[-1] ** -0.5
    bias = causal_bias(query.shape[-2], query.dtype)
    scores = torch.baddbmm(bias, query.flatten(0, 1), key.flatten(0, 1).transpose(1, 2), alpha=scale)
    mixed = scores.softmax(dim=-1) @ value.flatten(0, 1)
    return mixed.view(query.shape)


@functools.lru_cache(maxsize=16)
def causal_bias(length: int, dtype: torch.dtype) -> Tensor:
    """(T, T): 0 where the column's position may be seen from the row's, else minus infinity."""
    return torch.full((length, length), -torch.inf, dtype=dtype).triu(1)


@functools.lru_cache(maxsize=16)
def rope_rotation(length: int, head_width: int, device: torch.device, dtype: torch.dtype) -> Rotation:
    """(cos, sin), each (T, C), computed in float64 (Su et al. 2021): dimension i turns by position * base^(-2i/C)."""
    frequencies = ROPE_BASE ** (-torch.arange(0, head_width, 2, dtype=torch.float64) / head_width)
    angles = torch.arange(length, dtype=torch.float64)[:, None] * frequencies.repeat(2)
    return angles.cos().to(device, dtype), angles.sin().to(device, dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the pairs (i, i + C/2) of the last dimension of ``x`` (R, H, T, C) by the angles of their positions."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin
