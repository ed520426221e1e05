"""Is a shift smaller than a margin? Pure functions on what analysis.paired gives."""

import numpy as np
from scipy.special import chdtri, stdtr

from accum_sweeps.analysis.paired import PairedShift

# The margin is this many standard deviations of the response, wherever it comes from.
MARGIN_IN_SD = 0.5


def tost_p(shift: PairedShift, margin: float) -> float:
    """p value of the two one-sided t tests of |mean| >= ``margin`` (same unit); NaN with fewer than two pairs.

    Schuirmann, D. J. (1987), Journal of Pharmacokinetics and Biopharmaceutics 15, 657-680.
    """
    if shift.pairs < 2:
        return np.nan
    room = margin - abs(shift.mean)
    if shift.sd == 0:
        return 0.0 if room > 0 else 1.0
    return float(stdtr(shift.pairs - 1, -room / (shift.sd / np.sqrt(shift.pairs))))


def sd_upper_limit(shift: PairedShift, level: float = 0.95) -> float:
    """One-sided upper limit of the differences' standard deviation (chi-squared); NaN with fewer than two pairs."""
    if shift.pairs < 2:
        return np.nan
    df = shift.pairs - 1
    return float(shift.sd * np.sqrt(df / chdtri(df, level)))


def is_equivalent(shift: PairedShift, margin: float, alpha: float = 0.05) -> bool:
    """Whether both the mean and the spread of the differences are shown to be small.

    The mean by two one-sided tests at ``alpha``; the spread if the upper limit of its SD is at most sqrt(2) times the margin's
    SD unit, that of the difference of two runs with the full seed variance.
    """
    return bool(tost_p(shift, margin) <= alpha and sd_upper_limit(shift) <= np.sqrt(2) * margin / MARGIN_IN_SD)
