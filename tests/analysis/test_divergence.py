"""Divergence within seed: by hand, against scipy's binomial test, and which seeds make a pair."""

import numpy as np
import pytest
from scipy import stats

from accum_sweeps.analysis.divergence import divergence_tests, mcnemar_p


@pytest.mark.parametrize(
    ("only_arm", "only_reference", "p"),
    [(0, 0, 1), (1, 0, 1), (5, 0, 2 / 32), (0, 6, 2 / 64), (3, 1, 2 * 5 / 16), (2, 2, 1)],
)
def test_p_values_by_hand(only_arm: int, only_reference: int, p: float) -> None:
    assert mcnemar_p(only_arm, only_reference) == pytest.approx(p, rel=1e-12)


def test_p_values_are_scipys_binomial_test() -> None:
    for b in range(9):
        for c in range(9):
            if b + c:
                assert mcnemar_p(b, c) == pytest.approx(stats.binomtest(b, b + c).pvalue, rel=1e-9)


def test_discordant_seeds_are_counted_against_the_reference_arm() -> None:
    # columns: k=1, k=2, k=4; the reference arm is k=2
    diverged = np.array([[1, 0, 1], [1, 0, 0], [1, 1, 0], [0, 0, 0]], dtype=bool)
    first, last = divergence_tests(diverged, ~diverged, 1)
    assert (first.pairs, first.only_arm, first.only_reference) == (4, 2, 0) and first.p == pytest.approx(0.5)
    assert (last.pairs, last.only_arm, last.only_reference, last.p) == (4, 1, 1, 1)


def test_a_seed_without_an_outcome_in_both_arms_makes_no_pair() -> None:
    diverged = np.array([[0, 1], [0, 1], [0, 1]], dtype=bool)
    finished = np.array([[1, 0], [0, 0], [1, 0]], dtype=bool)
    (test,) = divergence_tests(diverged, finished, 0)
    assert (test.pairs, test.only_arm) == (2, 2) and test.p == pytest.approx(0.5)


def test_nothing_diverged_is_a_test_with_p_one() -> None:
    tests = divergence_tests(np.zeros((3, 4)), np.ones((3, 4)), 0)
    assert [(test.pairs, test.p) for test in tests] == [(3, 1)] * 3


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="1 runs are both"):
        divergence_tests([[True, False]], [[True, True]], 0)
    with pytest.raises(ValueError, match=r"\(1, 2\) and finished \(1, 1\)"):
        divergence_tests([[True, False]], [[True]], 0)
    for column in (-1, 2):
        with pytest.raises(ValueError, match=f"reference={column}: must be a column, 0 to 1"):
            divergence_tests([[True, False]], [[False, True]], column)
