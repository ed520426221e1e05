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
from accum_sweeps.ladder.roundoff import UNITS

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

    ``errors`` (k,): the standard errors of the weights, were the residual noise, and at least what the solution itself rounds. A
    micro-batch without a gradient has weight 0.
    ``is_alike`` (k,): gradients that others make up, such as those of two equal samples; which of them g holds cannot be told, and their
    weight is the one that all of them would have if they had the same, NaN where there is none.
    """

    weights: NDArray[np.float64]
    errors: NDArray[np.float64]
    residual: float
    is_alike: NDArray[np.bool_]


ALIKE = 1e-6  # of the largest singular value of members of length 1: what differs by less is the same
APART = 1e-9  # of a member that is in no way alike: the part that it has in what is the same
MOST_ELEMENTS = 1 << 16  # of a gradient that weights are solved from; evenly spread, so that every tensor of some size has a say


def member_regression(gradient: Gradient, members: Sequence[Gradient]) -> Members:
    """Which micro-batches ``gradient`` is made of, and with what weights.

    For the correct gradient of a mean over N terms, ``members`` being the gradients of the *summed* losses, every weight is 1/N: one
    that is 0 was lost, one of 2/N counted twice. By the singular values of the members, not their inner products, which would lose half
    the digits; of a large gradient from a part of its elements, the residual from all. Raises ValueError without a member, or with more of
    them than elements.
    """
    if not members:
        raise ValueError("no micro-batch to look for")
    shapes = {name: tensor for each in (gradient, *members) for name, tensor in each.items()}
    stride = max(1, sum(tensor.numel() for tensor in shapes.values()) // MOST_ELEMENTS)
    columns = np.stack([_flat(member, shapes, stride) for member in members], axis=1)
    if columns.shape[0] < columns.shape[1]:
        raise ValueError(f"{columns.shape[1]} micro-batches cannot be told apart by {columns.shape[0]} elements")
    norms = np.linalg.norm(columns, axis=0)
    is_there = norms > 0
    directions, flat = columns[:, is_there] / norms[is_there], _flat(gradient, shapes, stride)
    left, singular, right = np.linalg.svd(directions, full_matrices=False)
    kept = singular > ALIKE * singular.max(initial=0.0)
    alike = np.linalg.norm(right[~kept], axis=0) > APART
    left, singular, right = left[:, kept], singular[kept], right[kept]
    scaled = np.zeros(right.shape[1])
    for _ in range(2):  # of all solutions the one nearest to 0; the second time takes out what the first one rounded
        scaled += right.T @ ((left.T @ (flat - directions @ scaled)) / singular)
    common = right.T @ (right @ norms[is_there])  # what it would be with a weight of 1 for all
    weights, errors, is_alike = np.zeros(len(members)), np.zeros(len(members)), np.zeros(len(members), dtype=bool)
    weights[is_there], is_alike[is_there] = scaled / norms[is_there], alike
    residual = _residual(gradient, members, weights, shapes)
    is_common = np.abs(common) > ALIKE * norms[is_there]
    weights[is_alike] = np.where(is_common, scaled / np.where(is_common, common, 1.0), np.nan)[alike]
    spare = columns.shape[0] - int(kept.sum())
    noise = np.linalg.norm(flat - directions @ scaled) / math.sqrt(spare) if spare else 0.0  # of an element
    solved = UNITS["fp64"] * np.linalg.norm(flat)  # the solution is that of a gradient so far away
    errors[is_there] = max(noise, solved) * np.linalg.norm(right / singular[:, None], axis=0) / norms[is_there]
    return Members(weights=weights, errors=errors, residual=residual, is_alike=is_alike)


def _flat(each: Gradient, shapes: Mapping[str, Tensor], stride: int) -> NDArray[np.float64]:
    """Every ``stride``-th element of all tensors one after the other, float64; zeros for a missing tensor."""
    parts, place = [], 0
    for name, shape in shapes.items():
        skipped = -place % stride
        given = each.get(name)
        size = len(range(skipped, shape.numel(), stride))
        parts.append(torch.zeros(size).double() if given is None else given.detach().flatten()[skipped::stride].double().cpu())
        place += shape.numel()
    return torch.cat(parts).numpy()


def _residual(gradient: Gradient, members: Sequence[Gradient], weights: NDArray[np.float64], shapes: Mapping[str, Tensor]) -> float:
    """The length of what the weighted members leave of ``gradient``, over its own."""
    left = whole = 0.0
    for name, shape in shapes.items():
        zeros = torch.zeros_like(shape, dtype=torch.float64)
        rest = gradient[name].double().clone() if name in gradient else zeros.clone()
        whole += float(rest.square().sum())
        for member, weight in zip(members, weights, strict=True):
            if name in member:
                rest.sub_(member[name].double(), alpha=float(weight))
        left += float(rest.square().sum())
    return ratio(math.sqrt(left), math.sqrt(whole))
