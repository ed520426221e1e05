"""The sign-flip test of paired differences: exact whatever their distribution, if it is symmetric about 0 under the null."""

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike, NDArray

from accum_sweeps.analysis.paired import Floats
from accum_sweeps.plan.errors import UserError
from accum_sweeps.plan.words import counted

EXACT_UP_TO = 16  # pairs: 2^15 sums
DRAWS = 9_999


def sign_flip_p(
    differences: ArrayLike, *, family: int = 1, alpha: float = 0.05, generator: Generator | None = None, draws: int = DRAWS
) -> float:
    """Two-sided p value of |sum of differences| among all 2^S assignments of signs; ``differences`` (S,), NaN = no pair.

    Up to EXACT_UP_TO pairs every assignment is looked at and no generator is used. Beyond, ``draws`` assignments are drawn from
    ``generator`` and p = (1 + as extreme) / (1 + draws), which keeps the test's size. ``family`` is the number of tests that
    Holm's procedure corrects for. Raises UserError where the smallest possible p value, 2^(1-S) or 1 / (1 + draws), is above
    ``alpha / family``, so that no data could reject; ValueError if a generator is needed and not given.
    Fisher, R. A. (1935), The Design of Experiments, section 21; Phipson, B., Smyth, G. K. (2010), Statistical Applications in
    Genetics and Molecular Biology 9, article 39.
    """
    values = np.asarray(differences, dtype=np.float64)
    values = values[~np.isnan(values)]
    pairs = len(values)
    is_exact = pairs <= EXACT_UP_TO
    _refuse_if_powerless(pairs, 2.0 ** (1 - pairs) if is_exact else 1 / (1 + draws), alpha / family)
    if is_exact:
        return float(np.mean(_as_extreme(_all_signs(pairs), values)))
    if generator is None:
        raise ValueError(f"{counted(pairs, 'pair')}: a generator is needed beyond {EXACT_UP_TO}")
    drawn = _signs(generator.integers(0, 2, size=(draws, pairs)))
    return float((1 + np.sum(_as_extreme(drawn, values))) / (1 + draws))


def _refuse_if_powerless(pairs: int, smallest: float, allowed: float) -> None:
    if smallest > allowed:
        needed = int(np.ceil(1 - np.log2(allowed)))
        raise UserError(
            f"sign-flip test of {counted(pairs, 'pair')}: its smallest p value {smallest:.2g} is above alpha / family = {allowed:.2g}, "
            f"so it can never reject; use the paired t test, or at least {needed} seeds"
        )


def _all_signs(pairs: int) -> Floats:
    """Half of the assignments, (2^(S-1), S), the last sign always +: the other half gives the same absolute sums."""
    return _signs((np.arange(2 ** (pairs - 1))[:, np.newaxis] >> np.arange(pairs)) & 1)


def _signs(bits: NDArray[np.int64]) -> Floats:
    return np.asarray(1 - 2 * bits, dtype=np.float64)


def _as_extreme(signs: Floats, values: Floats) -> NDArray[np.bool_]:
    # Sums that are equal on paper differ by rounding: a tie counts as extreme.
    tie = 4 * len(values) * np.finfo(np.float64).eps * np.abs(values).sum()
    return np.asarray(np.abs(signs @ values) >= abs(values.sum()) - tie)
