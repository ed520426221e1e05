"""What a step's gradient is made of: how much of each micro-batch's part of the right gradient is in it. Pure functions.

The right gradient of a mean over N terms is r = (g_1 + ... + g_k) / N, with g_i the gradient of the loss summed over the n_i terms of
micro-batch i. A gradient g under test is written as (s_1 g_1 + ... + s_k g_k) / N + rest: the shares s_i are 1 in correct code, whatever
the network, and read off what became of each micro-batch. The micro-batches have the shapes that the code under test gave them, so that
kernels which round differently at other shapes play no part.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from accum_sweeps.ladder.geometry import Geometry, geometry, member_regression
from accum_sweeps.ladder.observation import Member, Tensors

TOLD = 10.0  # times what a share is uncertain by: from there on one share can be set against another


@dataclass(frozen=True, kw_only=True, eq=False)
class Shares:
    """``values`` (k,): the s_i, NaN for a micro-batch without a gradient, or with one that others make up; ``terms`` (k,): the n_i.

    ``of_alike``: for each of the latter, such as two equal samples, the share of all of them, if they had the same.
    ``residual`` is the length of the rest over that of g, ``error`` the largest standard error of the s_i, were the rest noise.
    ``is_told``: some s_i are known. ``sums`` and ``means`` are the geometry of g to r and to the mean of the micro-batches' own means.
    """

    values: NDArray[np.float64]
    of_alike: NDArray[np.float64]
    terms: NDArray[np.float64]
    residual: float
    error: float
    is_told: bool
    sums: Geometry
    means: Geometry

    @property
    def off(self) -> float:
        """The largest distance of a share from 1; that of the whole where shares cannot be told apart."""
        seen = np.concatenate([self.values[np.isfinite(self.values)], self.of_alike])
        return float(np.abs(seen - 1).max()) if self.is_told else abs(self.sums.bias)

    @property
    def rest(self) -> float:
        """The part of g that is not of the micro-batches, over g; where they cannot be told apart, not of their sum or their means."""
        return self.residual if self.is_told else min(self.sums.eta, self.means.eta)


def shares(gradient: Tensors, members: Sequence[Member]) -> Shares:
    """The shares of ``members`` in ``gradient``."""
    terms = np.array([member.terms for member in members], dtype=np.float64)
    total, named = float(terms.sum()), [member.gradient for member in members]
    is_finite = all(bool(part.isfinite().all()) for each in (gradient, *named) for part in each.values())
    has_gradient = np.array([any(bool(part.any()) for part in each.values()) for each in named])
    sums = geometry(gradient, combined(members, [1 / total] * len(members)))
    means = geometry(gradient, combined(members, [1 / (n * len(members)) if n else 0.0 for n in terms]))
    elements = sum(part.numel() for part in {name: part for each in named for name, part in each.items()}.values())
    if not is_finite or len(members) > elements:
        unknown = np.full(len(members), np.nan)
        return Shares(
            values=unknown, of_alike=unknown[:0], terms=terms, residual=math.nan, error=math.nan, is_told=False, sums=sums, means=means
        )
    found = member_regression(gradient, named)
    is_known = has_gradient & ~found.is_alike
    weights = found.weights * total
    return Shares(
        values=np.where(is_known, weights, np.nan),
        of_alike=weights[found.is_alike & np.isfinite(weights)],
        terms=terms,
        residual=found.residual,
        error=float(found.errors[is_known].max(initial=0.0)) * total,
        is_told=bool(is_known.any()),
        sums=sums,
        means=means,
    )


def combined(members: Sequence[Member], weights: Sequence[float]) -> dict[str, torch.Tensor]:
    """The weighted sum of the members' gradients, float64."""
    total: dict[str, torch.Tensor] = {}
    for member, weight in zip(members, weights, strict=True):
        for name, part in member.gradient.items():
            wide = part.double() * weight
            total[name] = total[name].add_(wide) if name in total else wide
    return total


def norm(gradient: Mapping[str, torch.Tensor]) -> float:
    """The whole L2 norm, in float64."""
    return math.sqrt(sum(float(part.double().square().sum()) for part in gradient.values()))


def share_of_bf16(gradient: Mapping[str, torch.Tensor]) -> float:
    """The share of the nonzero entries that bfloat16 can hold; 0 without one."""
    if not gradient:
        return 0.0
    entries = torch.cat([part.flatten() for part in gradient.values()])
    entries = entries[entries != 0]
    return float((entries == entries.bfloat16().to(entries.dtype)).double().mean()) if len(entries) else 0.0


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """What shares look like.

    ``right``: all 1. ``scaled``: all ``factor``. ``means``: in proportion to 1 / n_i, as if each micro-batch's own mean counted
    ``factor`` / k. ``lost``: some 0, the others as ``rest`` says. ``growing``: each share is ``factor`` times the one before.
    ``none``: all 0. ``other``: none of these. ``lost`` are the places of the micro-batches whose share is 0.
    """

    kind: str
    factor: float = 1.0
    lost: tuple[int, ...] = ()
    rest: str = ""

    @property
    def scale(self) -> float | None:
        """``factor`` where no micro-batch is favoured, else None."""
        return self.factor if self.kind in ("right", "scaled", "means") else None


def pattern(found: Shares, tolerance: float) -> Pattern:
    """The simplest pattern that ``found`` fits within ``tolerance``, an absolute error of a share that is about 1."""
    if not found.is_told:
        return _of_the_whole(found, tolerance)
    is_seen = np.isfinite(found.values)
    values, terms = found.values[is_seen], found.terms[is_seen]
    if (np.abs(values) <= tolerance).all():
        is_none = (np.abs(found.of_alike) <= tolerance).all()
        lost = tuple(int(place) for place in np.flatnonzero(is_seen))
        return Pattern(kind="none", factor=0.0) if is_none else Pattern(kind="lost", lost=lost, rest="other")
    mean = found.terms.sum() / len(found.terms)
    even = _even(values, terms / mean, tolerance)
    if even is None:
        return _uneven(values, np.flatnonzero(is_seen), len(is_seen), terms / mean, tolerance)
    is_one = even.kind == "means" or (np.abs(found.of_alike - even.factor) <= tolerance * max(1.0, abs(even.factor))).all()
    return even if is_one else _of_the_whole(found, tolerance)


def _of_the_whole(found: Shares, tolerance: float) -> Pattern:
    """By the sum and the mean of means alone."""
    if found.sums.rho == 0:
        return Pattern(kind="none", factor=0.0)
    if found.sums.eta <= tolerance:
        factor = found.sums.multiple
        return Pattern(kind="right") if abs(factor - 1) <= tolerance else Pattern(kind="scaled", factor=factor)
    return Pattern(kind="means", factor=found.means.multiple) if found.means.eta <= tolerance else Pattern(kind="other")


def _even(values: NDArray[np.float64], sizes: NDArray[np.float64], tolerance: float) -> Pattern | None:
    """The patterns without a favourite among the micro-batches; ``sizes`` are their terms over the mean number of terms."""
    if (np.abs(values - 1) <= tolerance).all():
        return Pattern(kind="right")
    if _is_constant(values, tolerance):
        return Pattern(kind="scaled", factor=float(values.mean()))
    own = values * sizes
    return Pattern(kind="means", factor=float(own.mean())) if _is_constant(own, tolerance) else None


def _uneven(values: NDArray[np.float64], places: NDArray[np.int_], k: int, sizes: NDArray[np.float64], tolerance: float) -> Pattern:
    """The patterns with favourites among the micro-batches; ``places`` are those of the values among all ``k``."""
    factor = _growth(values, places - (k - 1), tolerance)
    if factor is not None:
        return Pattern(kind="growing", factor=factor)
    lost = np.abs(values) <= tolerance
    if not lost.any():
        return Pattern(kind="other")
    rest = _even(values[~lost], sizes[~lost], tolerance) or Pattern(kind="other")
    missing = tuple(int(place) for place in places[lost])
    return Pattern(kind="lost", lost=missing, rest=rest.kind, factor=rest.factor)


def _growth(values: NDArray[np.float64], places: NDArray[np.int_], tolerance: float) -> float | None:
    """How many times each share is the one before it, that in place 0 being 1; None if it is not always the same.

    Of many micro-batches the first may be too small to be told from 0: they are if what comes before the others would be.
    """
    small = np.flatnonzero(~(values > TOLD * tolerance))
    is_told = np.arange(len(values)) > small.max(initial=-1)
    told = values[is_told]
    if len(told) < 2:
        return None
    ratios = (told[1:] / told[:-1]) ** (1 / np.diff(places[is_told]))
    if not _is_constant(ratios, tolerance * max(1.0, 1 / float(told.min()))):
        return None
    factor = float(np.median(ratios))  # those of small shares are rounded most
    expected = factor ** places.astype(np.float64)
    is_last_one = abs(told[-1] - expected[is_told][-1]) <= tolerance
    return factor if is_last_one and (expected[~is_told] <= 2 * TOLD * tolerance).all() else None


def _is_constant(values: NDArray[np.float64], tolerance: float) -> bool:
    middle = float(values.mean())
    return bool((np.abs(values - middle) <= tolerance * max(1.0, abs(middle))).all())
