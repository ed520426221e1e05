"""A decoder-only transformer with pre-norm blocks.

Shapes: R rows, T tokens, D width, C width of a head, F hidden width, V vocabulary.
No operation has a precision of its own: in float64 everything is float64, apart from integers.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear, silu

from accum_sweeps.plan.parts import Decoder as DecoderPart
from accum_sweeps.training.models.attention import Attention, Rotation, rope_rotation
from accum_sweeps.training.models.dropout import Dropout, SampleMasks
from accum_sweeps.training.models.frozen import freeze
from accum_sweeps.training.models.initial import initialize
from accum_sweeps.training.models.norms import make_norm


class Decoder(nn.Module):
    """Token ids (R, T) -> logits (R, T, V). ``seq_len`` is the number of learned positions, the longest T that there can be.

    With ``tied`` there is no head: the embedding's weight is used for both. Raises ValueError for learned positions without ``seq_len``.
    """

    def __init__(self, part: DecoderPart, seq_len: int = 0) -> None:
        super().__init__()
        if part.positions == "learned" and seq_len < 1:
            raise ValueError("positions=learned needs the number of positions")
        self.has_rope = part.positions == "rope"
        self.head_width = part.width // part.heads
        self.embedding = nn.Embedding(part.vocabulary, part.width)
        self.position = nn.Embedding(seq_len, part.width) if part.positions == "learned" else None
        self.embedding_dropout = Dropout(part.dropout, "embedding")
        self.blocks = nn.ModuleList(Block(part, number) for number in range(part.layers))
        self.norm = make_norm(part.norm, part.width, part.norm_groups)
        self.head = None if part.tied else nn.Linear(part.width, part.vocabulary, bias=False)

    def forward(self, ids: Tensor, masks: SampleMasks | None = None) -> Tensor:
        """Logits for the token after each position; positions see themselves and those before.

        While training, dropout uses ``masks``; None = torch's global stream.
        """
        x = self.embedding(ids)
        if self.position is not None:
            x = x + self.position.weight[: ids.shape[-1]]
        x = self.embedding_dropout(x, masks)
        rotation = rope_rotation(ids.shape[-1], self.head_width, x.device, x.dtype) if self.has_rope else None
        for block in self.blocks:
            x = block(x, rotation, masks)
        x = self.norm(x)
        logits: Tensor = linear(x, self.embedding.weight) if self.head is None else self.head(x)
        return logits


class Block(nn.Module):
    """Attention, then a feed-forward layer, each on a normalized copy of the residual stream."""

    def __init__(self, part: DecoderPart, number: int) -> None:
        super().__init__()
        self.attention_norm = make_norm(part.norm, part.width, part.norm_groups)
        self.attention = Attention(part)
        self.attention_dropout = Dropout(part.dropout, f"blocks.{number}.attention")
        self.feed_forward_norm = make_norm(part.norm, part.width, part.norm_groups)
        self.feed_forward = _FEED_FORWARDS[part.ffn](part.width, part.ffn_width)
        self.feed_forward_dropout = Dropout(part.dropout, f"blocks.{number}.feed_forward")

    def forward(self, x: Tensor, rotation: Rotation | None, masks: SampleMasks | None) -> Tensor:
        """(R, T, D) -> (R, T, D)."""
        x = x + self.attention_dropout(self.attention(self.attention_norm(x), rotation), masks)
        result: Tensor = x + self.feed_forward_dropout(self.feed_forward(self.feed_forward_norm(x)), masks)
        return result


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


class Gelu(nn.Module):
    """out(gelu(up(x))) with hidden width F; gelu is x times the normal distribution function of x (Hendrycks and Gimpel 2016)."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden, bias=False)
        self.output = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(R, T, D) -> (R, T, D)."""
        result: Tensor = self.output(gelu(self.up(x)))
        return result


_FEED_FORWARDS: dict[str, type[SwiGLU] | type[Gelu]] = {"swiglu": SwiGLU, "gelu": Gelu}


def build(part: DecoderPart, seed: int, seq_len: int = 0) -> Decoder:
    """The decoder in float32 on the CPU, with weights drawn from the stream ``init``, and with its frozen parameters marked."""
    with torch.device("meta"):
        model = Decoder(part, seq_len)
    model.to_empty(device="cpu")
    initialize(model, part, seed)
    freeze(model, part.frozen)
    return model
