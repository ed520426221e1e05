"""What an optimizer's step makes of a small difference between two gradients at the same weights.

Adam's first update is lr * h(g) with h(x) = x / (|x| + eps): both moments, divided by their bias corrections, are those of the one
gradient (Kingma and Ba 2015). h is steep where |x| is not much larger than eps (the soft region), and jumps by 2 where the sign of a
gradient below the noise flips.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from accum_sweeps.ladder.compare import chunks, ratio
from accum_sweeps.ladder.observation import Observation
from accum_sweeps.plan.parts import Adam, AdamW, Optimizer, Sgd

SOFT = 10.0  # the soft region: |g| below so many eps

Rule = Callable[[Tensor, Tensor], Tensor]  # gradient, weights -> the update without decoupled weight decay; float64


@dataclass(frozen=True, kw_only=True)
class Amplification:
    """How two updates differ, and where that comes from.

    ``update`` and ``gradient`` are relative L2 differences of the updates and of what the optimizer was given; ``gain`` is their
    ratio. ``prediction`` is the measured difference of the updates over that of the closed form, L2 norms (NaN without a closed
    form, or where neither differs). Shares are of the squared difference of the updates: from elements in the soft region, from those
    whose sign differs, by tensor. ``soft_elements`` and ``flip_elements`` are proportions of the elements with a gradient.
    """

    update: float
    gradient: float
    prediction: float
    soft_share: float
    flip_share: float
    soft_elements: float
    flip_elements: float
    by_tensor: Mapping[str, float] = field(repr=False)

    @property
    def gain(self) -> float:
        """Relative difference of the updates over that of the gradients."""
        return ratio(self.update, self.gradient)

    @property
    def largest_tensor(self) -> str:
        """The tensor with the largest share of the squared difference."""
        return max(self.by_tensor, key=lambda name: self.by_tensor[name], default="")


def first_step(part: Optimizer, lr: float) -> Rule | None:
    """The closed form of the first update of a fresh optimizer; None where there is none (Muon)."""
    if isinstance(part, Adam | AdamW):
        decay = part.weight_decay if isinstance(part, Adam) else 0.0
        return lambda g, w: -lr * _softsign(g + decay * w, part.eps)
    if isinstance(part, Sgd):
        # The momentum buffer starts as the gradient itself; Nesterov adds momentum times the buffer.
        factor = 1 + part.momentum if part.nesterov else 1.0
        return lambda g, w: -lr * factor * (g + part.weight_decay * w)
    return None


def soft_eps(part: Optimizer) -> float:
    """The optimizer's eps; 0 for one that has none."""
    return float(getattr(part, "eps", 0.0))


def _softsign(x: Tensor, eps: float) -> Tensor:
    return x / (x.abs() + eps)


def amplification(arm: Observation, reference: Observation, rule: Rule | None, eps: float) -> Amplification:
    """What becomes of the difference between two gradients; ``rule`` predicts the updates, ``eps`` bounds the soft region."""
    sums = {name: _sums(arm, reference, name, rule, eps) for name in reference.after}
    whole = torch.stack(list(sums.values())).sum(dim=0).tolist()
    squared, moved, gradient, given, predicted, soft, flip, softs, flips, count = whole
    return Amplification(
        update=ratio(math.sqrt(squared), math.sqrt(moved)),
        gradient=ratio(math.sqrt(gradient), math.sqrt(given)),
        prediction=math.sqrt(squared / predicted) if predicted else math.nan,
        soft_share=ratio(soft, squared),
        flip_share=ratio(flip, squared),
        soft_elements=ratio(softs, count),
        flip_elements=ratio(flips, count),
        by_tensor={name: ratio(float(each[0]), squared) for name, each in sums.items()},
    )


def _sums(arm: Observation, reference: Observation, name: str, rule: Rule | None, eps: float) -> Tensor:
    """Squared sums of one tensor, in the order in which :func:`amplification` takes them apart; float64, (10,)."""
    zeros = torch.zeros_like(reference.after[name])
    sides = [(seen.after[name], seen.before[name], seen.clipped.get(name, zeros)) for seen in (arm, reference)]
    if name not in reference.clipped:
        rule = None
    return sum((_piece(rule, eps, *(t.double() for t in pieces)) for pieces in chunks(*sides[0], *sides[1])), torch.zeros(10).double())


def _piece(
    rule: Rule | None, eps: float, after: Tensor, before: Tensor, gradient: Tensor, after0: Tensor, before0: Tensor, gradient0: Tensor
) -> Tensor:
    """The sums over a piece, float64 on the CPU; 0 marks the reference."""
    update = after0 - before0
    squared = (after - before - update).square()
    is_given = (gradient != 0) | (gradient0 != 0)
    is_soft = is_given & (gradient0.abs() < SOFT * eps)
    is_flipped = gradient * gradient0 < 0
    predicted = torch.zeros_like(update) if rule is None else rule(gradient, before) - rule(gradient0, before0)
    values = (squared, update.square(), (gradient - gradient0).square(), gradient0.square(), predicted.square())
    shares = (squared * is_soft, squared * is_flipped, is_soft, is_flipped, is_given)
    return torch.stack([value.sum(dtype=torch.float64) for value in (*values, *shares)]).cpu()
