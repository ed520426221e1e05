"""A decoder-only transformer: pre-norm blocks, SwiGLU, rotary positions, an untied head, no biases in linear layers.

Shapes: R rows, T tokens, D width, H heads, C = D / H width of a head, F hidden width, V vocabulary.
No operation has a precision of its own: in float64 everything is float64, apart from integers.
"""

import functools

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, silu

from accum_sweeps.plan.parts import Decoder as DecoderPart
from accum_sweeps.training import seeding

NORM_EPS = 1e-5
ROPE_BASE = 10_000.0


class Decoder(nn.Module):
    """Token ids (R, T) -> logits (R, T, V)."""

    def __init__(self, part: DecoderPart) -> None:
        super().__init__()
        self.has_rope = part.positions == "rope"
        self.head_width = part.width // part.heads
        self.embedding = nn.Embedding(part.vocabulary, part.width)
        self.blocks = nn.ModuleList(Block(part) for _ in range(part.layers))
        self.norm = make_norm(part.norm, part.width)
        self.head = nn.Linear(part.width, part.vocabulary, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits for the token after each position; positions see themselves and those before."""
        x = self.embedding(ids)
        rotation = rope_rotation(ids.shape[-1], self.head_width, x.device, x.dtype) if self.has_rope else None
        for block in self.blocks:
            x = block(x, rotation)
        logits: Tensor = self.head(self.norm(x))
        return logits


class Block(nn.Module):
    """Attention, then a feed-forward layer, each on a normalized copy of the residual stream."""

    def __init__(self, part: DecoderPart) -> None:
        super().__init__()
        self.attention_norm = make_norm(part.norm, part.width)
        self.attention = Attention(part)
        self.feed_forward_norm = make_norm(part.norm, part.width)
        self.feed_forward = SwiGLU(part.width, part.ffn_width)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor] | None) -> Tensor:
        """(R, T, D) -> (R, T, D)."""
        x = x + self.attention(self.attention_norm(x), rotation)
        result: Tensor = x + self.feed_forward(self.feed_forward_norm(x))
        return result


class Attention(nn.Module):
    """Causal multi-head attention. With ``qk_norm`` queries and keys are RMS-normalized per head, with a gain."""

    def __init__(self, part: DecoderPart) -> None:
        super().__init__()
        self.heads = part.heads
        self.query_key_value = nn.Linear(part.width, 3 * part.width, bias=False)
        self.output = nn.Linear(part.width, part.width, bias=False)
        head_norm = "rmsnorm" if part.qk_norm else "none"
        self.query_norm = make_norm(head_norm, part.width // part.heads)
        self.key_norm = make_norm(head_norm, part.width // part.heads)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor] | None) -> Tensor:
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
    if query.is_cuda:
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


class SwiGLU(nn.Module):
    """out(silu(gate(x)) * up(x)) with hidden width F (Shazeer 2020)."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate_up = nn.Linear(width, 2 * hidden, bias=False)
        self.output = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(R, T, D) -> (R, T, D)."""
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        result: Tensor = self.output(silu(gate) * up)
        return result


def make_norm(norm: str, width: int) -> nn.Module:
    """``layernorm`` (gain and bias), ``rmsnorm`` (gain) or ``none`` over the last dimension."""
    if norm == "layernorm":
        return nn.LayerNorm(width, eps=NORM_EPS)
    return nn.RMSNorm(width, eps=NORM_EPS) if norm == "rmsnorm" else nn.Identity()


@functools.lru_cache(maxsize=16)
def rope_rotation(length: int, head_width: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(cos, sin), each (T, C), computed in float64 (Su et al. 2021): dimension i turns by position * base^(-2i/C)."""
    frequencies = ROPE_BASE ** (-torch.arange(0, head_width, 2, dtype=torch.float64) / head_width)
    angles = torch.arange(length, dtype=torch.float64)[:, None] * frequencies.repeat(2)
    return angles.cos().to(device, dtype), angles.sin().to(device, dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the pairs (i, i + C/2) of the last dimension of ``x`` (R, H, T, C) by the angles of their positions."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


def build(part: DecoderPart, seed: int) -> Decoder:
    """The decoder with weights in float32 drawn from the stream ``init``: a function of seed, tensor name and shape alone.

    Matrices are normal with standard deviation 1/sqrt(inputs), those that write into the residual stream divided by
    sqrt(2 layers) once more; gains are 1, biases 0.
    """
    with torch.device("meta"):
        model = Decoder(part)
    model.to_empty(device="cpu")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)
                continue
            scale = parameter.shape[1] ** -0.5
            if name.endswith("output.weight"):
                scale *= (2 * part.layers) ** -0.5
            drawn = seeding.generator("init", seed, name).standard_normal(tuple(parameter.shape)) * scale
            parameter.copy_(torch.from_numpy(drawn))
    return model
