"""Paired differences between an arm and the reference arm: pure functions on arrays.

Shapes: S seeds, K accumulation factors; ``y`` is float64 (S, K), NaN where a cell has no finished value.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtr, stdtrit

Floats = NDArray[np.float64]
LEVEL = 0.95


@dataclass(frozen=True, kw_only=True)
class PairedShift:
    """Mean of ``pairs`` paired differences with its t interval, in the unit of the response.

    ``sd`` is the differences' standard deviation (divisor pairs - 1), ``p`` the two-sided p value of the paired t test. With
    fewer than two pairs sd, low, high and p are NaN; without a pair mean is NaN too.
    """

    pairs: int
    mean: float
    sd: float
    low: float
    high: float
    p: float

    @property
    def is_exactly_zero(self) -> bool:
        """Every difference is 0, to the last bit."""
        return self.pairs > 0 and self.mean == 0 and (self.sd == 0 or self.pairs == 1)

    def scaled(self, sigma: float) -> tuple[float, float, float]:
        """(mean, low, high) in units of ``sigma``, taken as known; an exact 0 stays exactly 0 whatever sigma is."""
        if self.is_exactly_zero:
            return 0.0, 0.0 * self.low, 0.0 * self.high
        if not sigma > 0:
            return np.nan, np.nan, np.nan
        return self.mean / sigma, self.low / sigma, self.high / sigma


def paired_differences(y: ArrayLike, reference: int) -> Floats:
    """``y - y[:, reference]``, float64 (S, K); NaN where either value is missing or not finite."""
    values = np.asarray(y, dtype=np.float64)
    values = np.where(np.isfinite(values), values, np.nan)
    return np.asarray(values - values[:, reference, np.newaxis])


def paired_shift(differences: ArrayLike, level: float = LEVEL) -> PairedShift:
    """The mean of one arm's ``differences`` (S,), NaN = no pair, with its two-sided t interval at ``level``.

    Student's paired t. Where all differences are equal the interval has no width: p is 1 if they are exactly 0, else 0.
    """
    values = np.asarray(differences, dtype=np.float64)
    values = values[~np.isnan(values)]
    pairs = len(values)
    mean = mean_of(values)
    if pairs < 2:
        return PairedShift(pairs=pairs, mean=mean, sd=np.nan, low=np.nan, high=np.nan, p=np.nan)
    sd = sd_of(values)
    error = sd / np.sqrt(pairs)
    half_width = float(stdtrit(pairs - 1, (1 + level) / 2) * error)
    without_spread = 1.0 if mean == 0 else 0.0
    p = float(2 * stdtr(pairs - 1, -abs(mean) / error)) if error > 0 else without_spread
    return PairedShift(pairs=pairs, mean=mean, sd=sd, low=mean - half_width, high=mean + half_width, p=p)


def mean_of(values: ArrayLike) -> float:
    """The mean, summed from the first value on, so that equal values give exactly that value; NaN of nothing."""
    array = np.asarray(values, dtype=np.float64)
    return float(array[0] + np.mean(array - array[0])) if len(array) else np.nan


def sd_of(values: ArrayLike) -> float:
    """Standard deviation with divisor n - 1, exactly 0 for equal values; NaN for fewer than two."""
    array = np.asarray(values, dtype=np.float64)
    return float(np.std(array - array[0], ddof=1)) if len(array) > 1 else np.nan


def total_sd(y: ArrayLike) -> float:
    """sigma_tot: the SD over seeds of one arm's finite values (S,), in the response's unit; NaN for fewer than two."""
    array = np.asarray(y, dtype=np.float64)
    return sd_of(array[np.isfinite(array)])


def holm(p: ArrayLike) -> Floats:
    """Holm's adjusted p values, float64 of the same shape; a NaN (no test possible) stays in the family as p = 1.

    Holm, S. (1979), Scandinavian Journal of Statistics 6, 65-70.
    """
    values = np.asarray(p, dtype=np.float64)
    filled = np.where(np.isnan(values), 1.0, values)
    order = np.argsort(filled, kind="stable")
    steps = filled[order] * np.arange(len(filled), 0, -1)
    adjusted = np.empty_like(filled)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return adjusted


def benjamini_hochberg(p: ArrayLike) -> Floats:
    """Adjusted p values that control the false discovery rate, float64 of the same shape; a NaN (no test possible) stays in as p = 1.

    Benjamini, Y., Hochberg, Y. (1995), Journal of the Royal Statistical Society B 57, 289-300.
    """
    values = np.asarray(p, dtype=np.float64)
    filled = np.where(np.isnan(values), 1.0, values)
    order = np.argsort(filled, kind="stable")[::-1]
    steps = filled[order] * len(filled) / np.arange(len(filled), 0, -1)
    adjusted = np.empty_like(filled)
    adjusted[order] = np.minimum.accumulate(np.minimum(steps, 1.0))
    return adjusted
