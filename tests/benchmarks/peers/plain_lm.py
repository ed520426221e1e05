"""What one would write in plain PyTorch for the language model and each of its toggles: model, loss, optimizer, step.

Shapes: R rows, T tokens, D width, H heads, V vocabulary.
"""

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout, gelu, silu

from accum_sweeps.plan.parts import Adam, AdamW, Decoder, LanguageModel, Muon, Sgd
from accum_sweeps.plan.spec import Setup

_WEIGHTS = {"fp64": torch.float64, "bf16": torch.bfloat16, "fp16": torch.float16}
_AUTOCAST = {"amp_bf16": torch.bfloat16, "amp_fp16": torch.float16}
_BUFFERS = {"bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64}


class OverPositions(nn.Module):
    """BatchNorm or GroupNorm on (R, T, D)."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        """Normalize each position's channels."""
        return self.norm(x.flatten(0, 1)).view(x.shape)  # type: ignore[no-any-return]


def norm(name: str, width: int, groups: int) -> nn.Module:
    """The layer of torch."""
    made: dict[str, Any] = {
        "layernorm": lambda: nn.LayerNorm(width),
        "layernorm_gain": lambda: nn.LayerNorm(width, bias=False),
        "layernorm_plain": lambda: nn.LayerNorm(width, elementwise_affine=False),
        "rmsnorm": lambda: nn.RMSNorm(width, eps=1e-5),
        "batchnorm": lambda: OverPositions(nn.BatchNorm1d(width)),
        "groupnorm": lambda: OverPositions(nn.GroupNorm(groups, width)),
        "none": nn.Identity,
    }
    return made[name]()  # type: ignore[no-any-return]


class Block(nn.Module):
    """One pre-norm block."""

    def __init__(self, part: Decoder) -> None:
        super().__init__()
        width, self.part = part.width, part
        self.norm1, self.norm2 = (norm(part.norm, width, part.norm_groups) for _ in range(2))
        self.qkv = nn.Linear(width, 3 * width, bias=part.attention_bias)
        self.out = nn.Linear(width, width, bias=part.attention_bias)
        heads_norm = "rmsnorm" if part.qk_norm else "none"
        self.q_norm, self.k_norm = (norm(heads_norm, width // part.heads, 1) for _ in range(2))
        self.up = nn.Linear(width, (2 if part.ffn == "swiglu" else 1) * part.ffn_width, bias=False)
        self.down = nn.Linear(part.ffn_width, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        """(R, T, D) -> (R, T, D)."""
        p = self.part.dropout
        x = x + dropout(self.attention(self.norm1(x), cos, sin, mask), p, self.training)
        h = self.up(self.norm2(x))
        if self.part.ffn == "swiglu":
            gate, up = h.chunk(2, dim=-1)
            h = silu(gate) * up
        else:
            h = gelu(h)
        return x + dropout(self.down(h), p, self.training)

    def attention(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        """Scores in full: on CPUs faster than the fused kernel, as in the product."""
        rows, tokens, width = x.shape
        q, k, v = self.qkv(x).view(rows, tokens, 3, self.part.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = self.q_norm(q), self.k_norm(k)
        if self.part.positions == "rope":
            q, k = (y * cos + torch.cat([-y.chunk(2, -1)[1], y.chunk(2, -1)[0]], -1) * sin for y in (q, k))
        scores = torch.baddbmm(mask.to(q.dtype), q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2), alpha=q.shape[-1] ** -0.5)
        mixed = (scores.softmax(-1) @ v.flatten(0, 1)).view(q.shape)
        return self.out(mixed.transpose(1, 2).reshape(rows, tokens, width))  # type: ignore[no-any-return]


class PlainDecoder(nn.Module):
    """Token ids (R, T) -> logits (R, T, V)."""

    def __init__(self, part: Decoder, seq_len: int) -> None:
        super().__init__()
        self.part = part
        self.embedding = nn.Embedding(part.vocabulary, part.width)
        self.position = nn.Embedding(seq_len, part.width) if part.positions == "learned" else None
        self.blocks = nn.ModuleList(Block(part) for _ in range(part.layers))
        self.norm = norm(part.norm, part.width, part.norm_groups)
        self.head = nn.Linear(part.width, part.vocabulary, bias=False)
        if part.tied:
            self.head.weight = self.embedding.weight
        frequencies = 10_000.0 ** (-torch.arange(0, part.width // part.heads, 2) / (part.width // part.heads))
        angles = torch.arange(seq_len)[:, None] * frequencies.repeat(2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
        self.register_buffer("mask", torch.full((seq_len, seq_len), -torch.inf).triu(1))

    def forward(self, ids: Tensor) -> Tensor:
        """Logits."""
        x = self.embedding(ids)
        if self.position is not None:
            x = x + self.position.weight
        x = dropout(x, self.part.dropout, self.training)
        for block in self.blocks:
            x = block(x, self.cos.to(x.dtype), self.sin.to(x.dtype), self.mask)
        return self.head(self.norm(x))  # type: ignore[no-any-return]


def mean_loss(logits: Tensor, targets: Tensor, part: LanguageModel) -> Tensor:
    """The mean over all targets: rows are full, so that every kind of mean is this one."""
    logits = logits if logits.dtype == torch.float64 else logits.float()
    loss = cross_entropy(logits.flatten(0, 1), targets.flatten(), label_smoothing=part.label_smoothing)
    return loss + part.z_loss * logits.logsumexp(-1).square().mean() if part.z_loss else loss


def make_optimizers(setup: Setup, model: PlainDecoder) -> list[torch.optim.Optimizer]:
    """torch's, over the parameters themselves."""
    part = setup.optimizer
    if isinstance(part, Sgd):
        return [torch.optim.SGD(model.parameters(), part.lr, momentum=part.momentum, nesterov=part.nesterov)]
    if isinstance(part, Adam | AdamW):
        kind = torch.optim.AdamW if isinstance(part, AdamW) else torch.optim.Adam
        return [kind(model.parameters(), part.lr, betas=part.betas, eps=part.eps, weight_decay=part.weight_decay)]
    assert isinstance(part, Muon)
    hidden = [p for p in model.blocks.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if all(p is not h for h in hidden)]
    muon = torch.optim.Muon(hidden, part.lr, weight_decay=part.weight_decay, momentum=part.momentum, ns_steps=part.ns_steps)
    return [muon, torch.optim.AdamW(others, part.adamw_lr, betas=part.betas, eps=part.eps, weight_decay=part.weight_decay)]


def train(setup: Setup, accum: int, text: np.ndarray[Any, Any], seq_len: int) -> Iterator[float]:
    """Windows of bytes, micro-batches, clipping, the optimizer, a cosine: one mean loss for each optimizer step."""
    assert isinstance(setup.model, Decoder) and isinstance(setup.subject, LanguageModel)
    model = PlainDecoder(setup.model, seq_len).to(_WEIGHTS.get(setup.dtype, torch.float32))
    parameters, rng = list(model.parameters()), np.random.default_rng(0)
    optimizers = make_optimizers(setup, model)
    schedules = [torch.optim.lr_scheduler.LambdaLR(o, lambda step: 0.5 * (1 + np.cos(np.pi * step / setup.steps))) for o in optimizers]
    scaler = torch.amp.GradScaler("cpu", init_scale=65536.0 / 8, enabled=setup.dtype == "amp_fp16")
    average = copy.deepcopy(model) if setup.ema is not None else None
    while True:
        starts = rng.integers(0, text.size - seq_len, size=setup.global_batch)
        rows = torch.from_numpy(text[starts[:, None] + np.arange(seq_len + 1)].astype(np.int64))
        yield step(setup, accum, model, parameters, optimizers, scaler, rows)
        for schedule in schedules:
            schedule.step()
        if average is not None:
            with torch.no_grad():
                torch._foreach_lerp_(list(average.parameters()), parameters, 1 - setup.ema)  # type: ignore[arg-type, operator]


def step(
    setup: Setup,
    accum: int,
    model: PlainDecoder,
    parameters: list[nn.Parameter],
    optimizers: list[torch.optim.Optimizer],
    scaler: torch.amp.GradScaler,
    rows: Tensor,
) -> float:
    """One optimizer step."""
    buffer_dtype, logged = _BUFFERS.get(setup.accumulator), 0.0
    buffers: list[Tensor] = []
    for optimizer in optimizers:
        optimizer.zero_grad()
    for part in rows.chunk(accum):
        with torch.autocast("cpu", _AUTOCAST.get(setup.dtype, torch.bfloat16), enabled=setup.dtype in _AUTOCAST):
            loss = mean_loss(model(part[:, :-1]), part[:, 1:], setup.subject) / accum  # type: ignore[arg-type]
        scaler.scale(loss).backward()
        logged += loss.item()
        if buffer_dtype is not None:
            gradients = [p.grad.to(buffer_dtype) for p in parameters]  # type: ignore[union-attr]
            buffers = [b.add_(g) for b, g in zip(buffers, gradients, strict=True)] if buffers else gradients
            model.zero_grad()
    for p, b in zip(parameters, buffers, strict=False):
        p.grad = b.to(p.dtype)
    for optimizer in optimizers:
        scaler.unscale_(optimizer)
    if setup.optimizer.max_norm is not None:
        nn.utils.clip_grad_norm_(parameters, setup.optimizer.max_norm)
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()
    return logged
