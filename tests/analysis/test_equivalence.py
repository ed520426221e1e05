"""Equivalence within a margin: against scipy's one-sided tests, and at its boundaries."""

import numpy as np
import pytest
from scipy import stats

from accum_sweeps.analysis.equivalence import is_equivalent, sd_upper_limit, tost_p
from accum_sweeps.analysis.paired import paired_shift

DIFFERENCES = np.array([0.011, -0.004, 0.006, 0.002, -0.001])


def test_two_one_sided_tests_are_scipys() -> None:
    shift = paired_shift(DIFFERENCES)
    for margin in (0.005, 0.01, 0.02):
        below = stats.ttest_1samp(DIFFERENCES, margin, alternative="less").pvalue
        above = stats.ttest_1samp(DIFFERENCES, -margin, alternative="greater").pvalue
        assert tost_p(shift, margin) == pytest.approx(max(below, above), rel=1e-9)
        assert tost_p(paired_shift(-DIFFERENCES), margin) == pytest.approx(max(below, above), rel=1e-9)


def test_upper_limit_of_the_spread_is_the_chi_squared_one() -> None:
    shift = paired_shift(DIFFERENCES)
    assert sd_upper_limit(shift) == pytest.approx(shift.sd * np.sqrt(4 / stats.chi2.ppf(0.05, 4)), rel=1e-9)


def test_mean_and_spread_must_both_be_small() -> None:
    tight, wide = paired_shift(DIFFERENCES), paired_shift([1.0, -1.0] * 6)
    assert is_equivalent(tight, 0.02)
    assert not is_equivalent(tight, 0.004)
    limit = sd_upper_limit(wide) / np.sqrt(2) / 2
    assert tost_p(wide, 0.99 * limit) <= 0.05
    assert is_equivalent(wide, 1.01 * limit) and not is_equivalent(wide, 0.99 * limit)


def test_without_spread_the_mean_alone_decides() -> None:
    assert is_equivalent(paired_shift([0.0, 0.0, 0.0]), 1e-12)
    assert not is_equivalent(paired_shift([0.1, 0.1, 0.1]), 0.1)


def test_one_pair_shows_no_equivalence() -> None:
    assert np.isnan(tost_p(paired_shift([0.0]), 1.0)) and not is_equivalent(paired_shift([0.0]), 1.0)
