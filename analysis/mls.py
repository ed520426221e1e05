"""Confidence intervals for sums, differences and ratios of mean squares: pure functions.

All intervals are two-sided at ``level``; with a = (1 - level) / 2, F(p; m, n) is the upper p point of F and F(p; m, inf) = chi2 / m.
"""

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import chdtri, fdtri

from accum_sweeps.analysis.mean_squares import MeanSquare

LEVEL = 0.95


class Interval(NamedTuple):
    """Confidence limits; ``high`` is infinity where the data set no upper limit ("unbounded")."""

    low: float
    high: float

    @property
    def is_unbounded(self) -> bool:
        return bool(np.isposinf(self.high))

    def truncated(self) -> "Interval":
        """The part that a variance can have: limits below 0 become 0."""
        return Interval(max(self.low, 0.0), max(self.high, 0.0))


Terms = Sequence[tuple[float, MeanSquare]]


def variance_interval(ms: MeanSquare, level: float = LEVEL) -> Interval:
    """Exact interval of the expectation of one mean square: df MS / chi-square quantiles; [0, 0] where it is exactly 0."""
    tail = (1 - level) / 2
    return Interval(ms.value / _chi(tail, ms.df), ms.value / _chi(1 - tail, ms.df))


def linear_interval(terms: Terms, level: float = LEVEL) -> Interval:
    """Interval of sum c_i E[MS_i] for ``terms`` of (c_i, MS_i), not truncated: modified large-sample limits.

    Graybill and Wang (1980), Journal of the American Statistical Association 75, 869-873, where every c_i is positive; Ting,
    Burdick, Graybill, Jeyaratnam and Lu (1990), Journal of Statistical Computation and Simulation 35, 135-143, where signs differ.
    """
    used = [(c, ms) for c, ms in terms if c != 0]
    estimate = sum(c * ms.value for c, ms in used)
    reversed_signs = [(-c, ms) for c, ms in used]
    return Interval(estimate - _room_below(used, level), estimate + _room_below(reversed_signs, level))


def ratio_interval(above: MeanSquare, below: MeanSquare, size: float, level: float = LEVEL) -> Interval:
    """Exact interval of s where E[above] = (1 + size s) E[below]: (F / F quantile - 1) / size, not truncated.

    Searle, Casella and McCulloch (1992), Variance Components, section 3.6d. [inf, inf] where ``below`` is exactly 0.
    """
    if below.value == 0:
        return Interval(np.inf, np.inf)
    tail, f = (1 - level) / 2, above.value / below.value
    return Interval((f / _f(tail, above.df, below.df) - 1) / size, (f / _f(1 - tail, above.df, below.df) - 1) / size)


def quotient_interval(above: Terms, below: Terms, level: float = LEVEL) -> Interval:
    """Interval of q = sum a_i E[MS_i] / sum b_i E[MS_i], both >= 0: every q that the linear interval of above - q below allows.

    Inverts linear_interval, as Fieller does for means. The upper limit is infinity where the denominator's own lower limit is not
    above 0; [inf, inf] says that even its upper limit is not, and [0, inf] stands where every mean square is exactly 0. Both
    ``terms`` name the same mean squares in the same order.
    """

    def limits(q: float) -> Interval:
        return linear_interval([(a - q * b, ms) for (a, ms), (b, _) in zip(above, below, strict=True)], level)

    denominator = linear_interval(below, level)
    if all(ms.value == 0 for _, ms in above):
        return Interval(0.0, np.inf)
    if denominator.high <= 0:
        return Interval(np.inf, np.inf)
    start = sum(abs(c) * ms.value for c, ms in above) / sum(abs(c) * ms.value for c, ms in below)
    high = _crossing(lambda q: limits(q).high, start) if denominator.low > 0 else np.inf
    return Interval(_crossing(lambda q: limits(q).low, start), high)


def _crossing(limit: Callable[[float], float], start: float) -> float:
    """Where ``limit`` falls through 0 on q >= 0; 0 where it is not above 0 even at q = 0."""
    if limit(0.0) <= 0:
        return 0.0
    while limit(start) > 0:
        start *= 2
    return float(brentq(limit, 0.0, start, xtol=1e-300, rtol=1e-13))


def _room_below(terms: Terms, level: float) -> float:
    """The distance from the estimate down to its lower limit, sqrt(V_L) of Ting et al.; the upper one by turning all signs."""
    positive = [(c * ms.value, ms.df) for c, ms in terms if c > 0]
    negative = [(-c * ms.value, ms.df) for c, ms in terms if c < 0]
    tail = (1 - level) / 2
    room = sum((_g(tail, m) * x) ** 2 for x, m in positive) + sum((_h(tail, n) * z) ** 2 for z, n in negative)
    if positive and negative:  # a plain sum has no cross terms (Graybill and Wang)
        room += sum(_cross(tail, m, n) * x * z for x, m in positive for z, n in negative)
        pairs = list(combinations(positive, 2))
        room += sum(_pair(tail, m, n) * x * z for (x, m), (z, n) in pairs) / max(len(positive) - 1, 1)
    return float(np.sqrt(max(room, 0.0)))


def _g(tail: float, df: int) -> float:
    return 1 - 1 / _chi(tail, df)


def _h(tail: float, df: int) -> float:
    return 1 / _chi(1 - tail, df) - 1


def _cross(tail: float, m: int, n: int) -> float:
    """G_qr: makes the limit of a difference of two mean squares exact where it is 0."""
    f = _f(tail, m, n)
    return ((f - 1) ** 2 - (_g(tail, m) * f) ** 2 - _h(tail, n) ** 2) / f


def _pair(tail: float, m: int, n: int) -> float:
    """G*_tu, for two mean squares on the same side."""
    return float(_g(tail, m + n) ** 2 * (m + n) ** 2 / (m * n) - _g(tail, m) ** 2 * m / n - _g(tail, n) ** 2 * n / m)


def _chi(tail: float, df: int) -> float:
    return float(chdtri(df, tail)) / df


def _f(tail: float, m: int, n: int) -> float:
    return float(fdtri(m, n, 1 - tail))
