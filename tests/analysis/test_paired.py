"""Paired differences: by hand, against scipy, against base R, and what must not change them."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from accum_sweeps.analysis.paired import holm, mean_of, paired_differences, paired_shift, sd_of, total_sd

REFERENCE = Path(__file__).parents[1] / "reference"
Y = np.array([[1.0, 2.0, 1.5], [2.0, 2.5, 2.0], [4.0, 6.5, 4.0]])


def cell_means(name: str) -> np.ndarray:
    frame = pd.read_csv(REFERENCE / "sim" / f"{name}.csv")
    return frame.pivot_table(index="seed", columns="k", values="y", dropna=False).to_numpy()


def test_differences_by_hand() -> None:
    assert paired_differences(Y, 0).tolist() == [[0, 1, 0.5], [0, 0.5, 0], [0, 2.5, 0]]
    assert paired_differences(Y, 2).tolist() == [[-0.5, 0.5, 0], [0, 0.5, 0], [0, 2.5, 0]]


def test_shift_by_hand() -> None:
    # mean 4/3, deviations -1/3, -5/6, 7/6: variance 13/12; t quantile of 2 degrees of freedom 4.302653
    shift = paired_shift([1.0, 0.5, 2.5])
    assert shift.pairs == 3
    assert shift.mean == pytest.approx(4 / 3, rel=1e-15)
    assert shift.sd == pytest.approx(np.sqrt(13 / 12), rel=1e-15)
    half = 4.302652729749462 * np.sqrt(13 / 12 / 3)
    assert [shift.low, shift.high] == pytest.approx([4 / 3 - half, 4 / 3 + half], rel=1e-12)


@pytest.mark.parametrize("name", ["sim1_null_balanced", "sim2_10pct_balanced", "sim4_10pct_unbalanced"])
def test_shift_is_scipys_paired_t_test(name: str) -> None:
    means = cell_means(name)
    differences = paired_differences(means, 0)
    for column in range(1, means.shape[1]):
        ours = paired_shift(differences[:, column])
        theirs = stats.ttest_rel(means[:, column], means[:, 0], nan_policy="omit")
        limits = theirs.confidence_interval(0.95)
        assert ours.p == pytest.approx(theirs.pvalue, rel=1e-9)
        assert [ours.low, ours.high] == pytest.approx([limits.low, limits.high], rel=1e-9)


@pytest.mark.parametrize("name", ["sim1_null_balanced", "sim2_10pct_balanced"])
def test_all_pairs_together_are_the_mean_squares_of_base_r(name: str) -> None:
    """Over all pairs of arms, variances of differences average to 2 MS_seed:k / R, squared means sum to K (K-1) MS_k / (S R)."""
    exact = json.loads((REFERENCE / "balanced_exact.json").read_text())[name]
    means = cell_means(name)
    pairs = [paired_shift(paired_differences(means, a)[:, b]) for a in range(exact["K"]) for b in range(a)]
    assert np.mean([pair.sd**2 for pair in pairs]) == pytest.approx(2 * exact["MS_seed_k"] / exact["R"], rel=1e-7)
    expected = exact["K"] * (exact["K"] - 1) * exact["MS_k"] / (exact["S"] * exact["R"])
    assert sum(pair.mean**2 for pair in pairs) == pytest.approx(expected, rel=1e-7)


def test_missing_and_non_finite_values_make_no_pair() -> None:
    y = np.array([[1.0, 2.0], [np.nan, 2.0], [1.0, np.inf], [1.0, 3.0]])
    differences = paired_differences(y, 0)
    assert differences[[0, 3], 1].tolist() == [1, 2] and np.isnan(differences[[1, 2], 1]).all()
    assert paired_shift(differences[:, 1]).pairs == 2


def test_one_pair_has_a_mean_and_no_interval() -> None:
    shift = paired_shift([0.25, np.nan])
    assert (shift.pairs, shift.mean) == (1, 0.25)
    assert np.isnan([shift.sd, shift.low, shift.high, shift.p]).all()
    assert paired_shift([]).pairs == 0 and np.isnan(paired_shift([]).mean)


def test_identical_arms_stay_exactly_zero_in_every_unit() -> None:
    shift = paired_shift([0.0, 0.0, 0.0])
    assert (shift.mean, shift.sd, shift.low, shift.high, shift.p) == (0, 0, 0, 0, 1)
    assert shift.is_exactly_zero
    for sigma in (0.3, 0.0, np.nan):
        assert shift.scaled(sigma) == (0, 0, 0)


def test_a_constant_shift_has_no_width_and_p_zero() -> None:
    shift = paired_shift([0.1, 0.1, 0.1, 0.1])
    assert (shift.mean, shift.sd, shift.low, shift.high, shift.p) == (0.1, 0, 0.1, 0.1, 0)
    assert not shift.is_exactly_zero


def test_opposite_differences_are_no_exact_zero() -> None:
    assert not paired_shift([0.5, -0.5]).is_exactly_zero


def test_scaling_divides_by_sigma() -> None:
    shift = paired_shift([1.0, 0.5, 2.5])
    assert shift.scaled(0.5) == (shift.mean / 0.5, shift.low / 0.5, shift.high / 0.5)
    assert np.isnan(shift.scaled(0.0)).all() and np.isnan(shift.scaled(np.nan)).all()


def test_total_sd_counts_finite_values_of_the_reference_arm() -> None:
    assert total_sd([1.0, 2.0, 4.0]) == pytest.approx(np.sqrt(7 / 3), rel=1e-15)
    assert total_sd([1.0, np.nan, 2.0, np.inf, 4.0]) == total_sd([1.0, 2.0, 4.0])
    assert np.isnan(total_sd([1.0])) and np.isnan(total_sd([]))


@given(st.floats(-1e3, 1e3), st.integers(1, 9))
def test_equal_values_have_exactly_that_mean_and_no_spread(value: float, number: int) -> None:
    assert mean_of([value] * number) == value
    assert sd_of([value] * (number + 1)) == 0


@given(
    st.lists(st.tuples(*[st.integers(-(2**20), 2**20)] * 3), min_size=2, max_size=8),
    st.integers(-(2**20), 2**20),
    st.randoms(use_true_random=False),
)
def test_a_constant_and_the_order_of_seeds_change_nothing(rows: list[tuple[int, int, int]], constant: int, random: object) -> None:
    y = np.array(rows) / 2**10  # exact in float64, so sums with the constant are exact too
    before, after = paired_differences(y, 0), paired_differences(y + constant / 2**10, 0)
    assert before.tolist() == after.tolist()
    forward, backward = paired_shift(before[:, 1]), paired_shift(before[::-1, 1])
    assert forward.mean == pytest.approx(backward.mean, rel=1e-12, abs=1e-12)
    assert forward.sd == pytest.approx(backward.sd, rel=1e-12, abs=1e-12)


def test_swapping_arms_turns_the_sign() -> None:
    there, back = paired_shift(paired_differences(Y, 0)[:, 1]), paired_shift(paired_differences(Y, 1)[:, 0])
    assert (back.mean, back.low, back.high) == (-there.mean, -there.high, -there.low)
    assert back.p == there.p


def test_holm_by_hand() -> None:
    # sorted .01 x4, .02 x3, .03 x2, .04 x1 = .04, .06, .06, .04 -> never falling: .04, .06, .06, .06
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06], rel=1e-15)
    assert holm([0.5, 0.6]).tolist() == [1.0, 1.0]
    assert holm([]).tolist() == []


def test_a_test_that_was_impossible_stays_in_the_family() -> None:
    assert holm([0.02, np.nan]).tolist() == [0.04, 1.0]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_holm_never_lowers_a_p_value_and_keeps_their_order(p: list[float]) -> None:
    adjusted = holm(p)
    assert (adjusted >= np.array(p)).all() and (adjusted <= 1).all()
    order = np.argsort(p, kind="stable")
    assert (np.diff(adjusted[order]) >= 0).all()
