"""How one gradient lies to another, free of scale, and which micro-batches it is made of. Pure functions; sums in float64.

g is the gradient under test, r the reference, both by name of parameter; a tensor that is missing on one side counts as zeros there.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from accum_sweeps.ladder.compare import chunks, ratio

Gradient = Mapping[str, Tensor]
Terms = Callable[[Tensor, Tensor], tuple[Tensor, ...]]


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """``relative`` = |g - r| / |r|, ``rho`` = |g| / |r|, ``cosine`` = <g, r> / (|g| |r|).

    ``multiple`` = <g, r> / <r, r> is the best multiple of r, ``bias`` = multiple - 1 = <g - r, r> / <r, r>, and ``eta`` = the share of g
    that no multiple of r explains, |g - multiple r| / |g|. relative^2 = rho^2 + 1 - 2 rho cosine. A zero r makes ratios infinite, a
    zero g and r all of them 0 but for the cosine, which is NaN where either is zero.
    """

    relative: float
    rho: float
    cosine: float
    multiple: float
    bias: float
    eta: float


def geometry(gradient: Gradient, reference: Gradient) -> Geometry:
    """The geometry of ``gradient`` to ``reference``.

    Differences are formed element by element: from inner products alone, eta and the relative difference would end at 1e-8.
    """
    pairs = paired(gradient, reference)
    gg, rr, gr, bias = _sums(pairs, lambda g, r: (g.square(), r.square(), g * r, (g - r) * r), 4)
    multiple = ratio(gr, rr) if rr else 0.0
    apart, left = _sums(pairs, lambda g, r: ((g - r).square(), (g - multiple * r).square()), 2)
    return Geometry(
        relative=ratio(math.sqrt(apart), math.sqrt(rr)),
        rho=ratio(math.sqrt(gg), math.sqrt(rr)),
        cosine=gr / math.sqrt(gg) / math.sqrt(rr) if gg and rr else math.nan,
        multiple=multiple,
        bias=ratio(bias, rr),
        eta=ratio(math.sqrt(left), math.sqrt(gg)),
    )


def paired(gradient: Gradient, reference: Gradient) -> list[tuple[Tensor, Tensor]]:
    """The tensors of both sides by name, zeros for a missing one."""
    names = dict.fromkeys([*reference, *gradient])
    sides = [(gradient.get(name), reference.get(name)) for name in names]
    return [(_or_zeros(g, r), _or_zeros(r, g)) for g, r in sides]


def _or_zeros(tensor: Tensor | None, other: Tensor | None) -> Tensor:
    if tensor is not None:
        return tensor
    assert other is not None
    return torch.zeros_like(other)


def _sums(pairs: Sequence[tuple[Tensor, Tensor]], terms: Terms, number: int) -> list[float]:
    total = torch.zeros(number, dtype=torch.float64)
    for pair in pairs:
        for g, r in chunks(*pair):
            total += torch.stack([term.sum() for term in terms(g.double(), r.double())]).cpu()
    return [float(value) for value in total]


@dataclass(frozen=True, kw_only=True)
class Members:
    """``weights`` (k,): the least-squares coefficients of g on the micro-batches' own gradients; ``residual`` = |g - fit| / |g|.

    ``condition`` is the condition number of the micro-batches' gradients, each scaled to length 1: where it times the gradients' rounding
    is not small, the weights say nothing.
    """

    weights: NDArray[np.float64]
    residual: float
    condition: float


def member_regression(gradient: Gradient, members: Sequence[Gradient]) -> Members:
    """Which micro-batches ``gradient`` is made of, and with what weights.

    For the correct gradient of a mean over N terms, ``members`` being the gradients of the *summed* losses, every weight is 1/N: one
    that is 0 was lost, one of 2/N counted twice. By the singular values of the members, not their inner products, which would lose half
    the digits. Raises ValueError without a member, or with more of them than elements.
    """
    if not members:
        raise ValueError("no micro-batch to look for")
    names = list(dict.fromkeys(name for each in (gradient, *members) for name in each))
    shapes = {name: tensor for each in (gradient, *members) for name, tensor in each.items()}

    def flat(each: Gradient) -> NDArray[np.float64]:
        parts = [each.get(name, torch.zeros_like(shapes[name])).detach().double().cpu().flatten() for name in names]
        return torch.cat(parts).numpy()

    columns, whole = np.stack([flat(member) for member in members], axis=1), flat(gradient)
    if columns.shape[0] < columns.shape[1]:
        raise ValueError(f"{columns.shape[1]} micro-batches cannot be told apart by {columns.shape[0]} elements")
    norms = np.linalg.norm(columns, axis=0)
    norms[norms == 0] = 1.0
    scaled, _, _, singular = np.linalg.lstsq(columns / norms, whole, rcond=None)
    left = whole - (columns / norms) @ scaled
    condition = float(singular[0] / singular[-1]) if singular[-1] > 0 else math.inf
    return Members(weights=scaled / norms, residual=ratio(float(np.linalg.norm(left)), float(np.linalg.norm(whole))), condition=condition)
