"""The language model's loss on a micro-batch: a sum over terms, and how many terms there are.

Shapes: R rows, T tokens, V vocabulary.
"""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from accum_sweeps.plan.parts import LanguageModel
from accum_sweeps.training.data.rows import IGNORED


def token_loss(logits: Tensor, targets: Tensor, tokens: int, part: LanguageModel) -> tuple[Tensor, int]:
    """(loss in nats summed over its terms, their number), for ``logits`` (R, T, V) and int64 ``targets`` (R, T).

    ``tokens`` of the targets are not IGNORED, at least one in each row. A target token's loss is its cross entropy, with the
    target probability smoothed as asked for, plus ``z_loss`` times the square of log(sum(exp(logits))) (Chowdhery et al. 2022).
    The terms are what ``mean`` says: target tokens; samples, each with the mean of its tokens; or the micro-batch as one term
    with the mean of its tokens. Computed in float32, or float64 where the logits are.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if part.mean == "token":
        summed = _entropy(logits, targets, part.label_smoothing, "sum")
        return (summed + _penalties(logits, targets, part.z_loss).sum() if part.z_loss else summed), tokens
    losses = _entropy(logits, targets, part.label_smoothing, "none").view(targets.shape)
    if part.z_loss:
        losses = losses + _penalties(logits, targets, part.z_loss)
    if part.mean == "sample":
        return (losses.sum(1) / (targets != IGNORED).sum(1)).sum(), len(targets)
    return losses.sum() / tokens, 1


def token_entropies(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy in nats of each of the R * T targets, 0 where a target is IGNORED; in float32, or float64 as the logits."""
    return _entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), targets, 0.0, "none")


def _entropy(logits: Tensor, targets: Tensor, smoothing: float, reduction: str) -> Tensor:
    flat = logits.flatten(0, 1)
    return cross_entropy(flat, targets.flatten(), ignore_index=IGNORED, reduction=reduction, label_smoothing=smoothing)


def _penalties(logits: Tensor, targets: Tensor, coefficient: float) -> Tensor:
    return torch.where(targets == IGNORED, 0, coefficient * logits.logsumexp(-1).square())
