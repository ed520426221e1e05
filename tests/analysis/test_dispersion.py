"""The lambda test and the path variance: by hand, against base R's mean square, and where nothing can be said."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad

from accum_sweeps.analysis.dispersion import (
    excess_test,
    expected_log_ratio,
    lambda_test,
    path_variance,
    path_variance_without_controls,
)
from accum_sweeps.analysis.paired import Floats

REFERENCE = Path(__file__).parents[1] / "reference"
RUNS = np.array([[0.0, 2.0], [0.0, 4.0], [0.0, 1.0]])  # variances 2, 8, 1/2
CONTROLS = np.array([[0.0, 1.0], [1.0, 0.0], [5.0, 6.0]])  # variances 1/2


def test_lambda_by_hand() -> None:
    # L = log 4, log 16, log 1: mean log 4, SD log 4, t = sqrt(3). With 2 degrees of freedom P(T > t) = 1/2 - t / (2 sqrt(2 + t^2)).
    test = lambda_test(RUNS, CONTROLS)
    assert test.is_assessable and test.seeds == 3
    assert test.ratio == pytest.approx(4, rel=1e-12)
    assert test.p == pytest.approx(0.5 - np.sqrt(3) / (2 * np.sqrt(5)), rel=1e-12)
    error = np.log(4) / np.sqrt(3)
    assert [test.low, test.high] == pytest.approx(4 * np.exp([-4.302652729749462 * error, 4.302652729749462 * error]), rel=1e-10)
    assert test.upper == pytest.approx(4 * np.exp(2.9199855803537251 * error), rel=1e-10)


def test_less_variance_than_rounding_has_a_large_p_value() -> None:
    there, back = lambda_test(RUNS, CONTROLS), lambda_test(CONTROLS, RUNS)
    assert back.ratio == pytest.approx(1 / there.ratio, rel=1e-12)
    assert back.p == pytest.approx(1 - there.p, rel=1e-12)


def test_equal_ratios_leave_no_width() -> None:
    larger, equal = lambda_test(2 * CONTROLS, CONTROLS), lambda_test(CONTROLS, CONTROLS)
    assert (larger.low, larger.high, larger.p) == (larger.ratio, larger.ratio, 0) and larger.ratio == pytest.approx(4, rel=1e-12)
    assert (equal.ratio, equal.low, equal.upper, equal.p) == (1, 1, 1, 1)


def test_each_seed_has_its_own_level_and_scale() -> None:
    scale, level = np.array([[1.0], [1e-3], [50.0]]), np.array([[3.0], [-1.0], [0.0]])
    moved = lambda_test(level + scale * RUNS, level + scale * CONTROLS)
    assert moved.ratio == pytest.approx(4, rel=1e-9) and moved.p == pytest.approx(lambda_test(RUNS, CONTROLS).p, rel=1e-9)


def test_a_shift_of_one_arm_counts_as_variance_unless_its_control_has_it_too() -> None:
    shift = np.array([0, 10])
    alone = lambda_test(CONTROLS + shift, CONTROLS)
    assert alone.ratio == pytest.approx((11 * 9 * 11) ** (2 / 3), rel=1e-12)  # differences 11, 9, 11 in place of 1, -1, 1
    assert lambda_test(CONTROLS + shift, CONTROLS + shift).ratio == 1


def test_seeds_with_a_missing_run_or_control_are_left_out() -> None:
    runs = np.vstack([RUNS, [[np.nan, 100.0], [7.0, 9.0]]])
    controls = np.vstack([CONTROLS, [[0.0, 1.0], [np.inf, 1.0]]])
    assert lambda_test(runs, controls) == lambda_test(RUNS, CONTROLS)


@pytest.mark.parametrize(
    ("runs", "controls", "why_not"),
    [
        (RUNS[:2], CONTROLS[:2], "2 seeds"),
        (RUNS[:, :1], CONTROLS[:, :1], "1 accumulated arm, at least"),
        (RUNS, [[1.0, 1.0], [0, 1], [0, 1]], "controls are identical in 1 of 3"),
        ([[1.0, 1.0], [0, 1], [0, 1]], CONTROLS, "accumulated runs are identical in 1 of 3"),
        (np.zeros((3, 2)), np.zeros((3, 2)), "controls are identical in 3 of 3"),
    ],
)
def test_what_cannot_be_tested_says_why(runs: np.ndarray, controls: np.ndarray, why_not: str) -> None:
    test = lambda_test(runs, controls)
    assert not test.is_assessable and why_not in test.why_not
    assert np.isnan([test.ratio, test.low, test.high, test.upper, test.p]).all()


def test_accumulated_runs_that_never_differ_have_lambda_zero() -> None:
    test = lambda_test(np.full((3, 2), 0.1), CONTROLS)
    assert (test.ratio, test.low, test.high, test.upper, test.p, test.is_assessable) == (0, 0, 0, 0, 1, True)


def test_limits_beyond_floating_point_are_infinite() -> None:
    test = lambda_test([[0.0, 1e-150], [0.0, 1e150], [0.0, 1.0]], CONTROLS)
    assert (test.low, test.upper) == (0, np.inf)


def test_every_run_needs_a_control_of_its_own() -> None:
    with pytest.raises(ValueError, match=r"accumulated \(3, 2\) and controls \(3, 1\)"):
        lambda_test(RUNS, CONTROLS[:, :1])
    with pytest.raises(ValueError, match="a control for each run"):
        path_variance(RUNS, CONTROLS[:2])


def test_path_variance_is_half_the_mean_squared_difference() -> None:
    # differences 1, 0, 0, 2 and one missing: 5/4 / 2; the .2 quantile of chi-squared with 4 degrees of freedom is 1.648777
    path = path_variance([[0.0, 1.0], [2.0, 3.0], [np.nan, 1.0]], [[1.0, 1.0], [2.0, 5.0], [0.0, np.inf]])
    assert (path.value, path.df, path.from_controls) == (0.625, 4, True)
    assert path.sd_upper_limit() == pytest.approx(np.sqrt(0.625 * 4 / 1.648776618065969), rel=1e-8)
    assert path.share(2.5) == pytest.approx(0.1, rel=1e-15)
    assert np.isnan(path.share(0.0)) and np.isnan(path.share(np.nan))


def test_path_variance_of_nothing_is_unknown() -> None:
    for path in (path_variance([[np.nan]], [[1.0]]), path_variance_without_controls([[1.0, 2.0]])):
        assert np.isnan(path.value) and path.df == 0 and np.isnan(path.sd_upper_limit())


def test_without_controls_the_path_is_half_the_variance_of_differences_of_two_arms() -> None:
    path = path_variance_without_controls([[0.0, 1.0], [5.0, 8.0], [np.nan, 9.0]])  # differences 1 and 3: variance 2
    assert (path.value, path.df, path.from_controls) == (1.0, 1, False)


def test_additive_seeds_and_arms_leave_a_path_of_exactly_zero() -> None:
    assert path_variance_without_controls(np.array([[0.1], [0.7], [0.3]]) + np.zeros(4)).value == 0
    assert path_variance_without_controls([[1.0, 2.0], [4.0, 5.0]]).value == 0


@pytest.mark.parametrize("name", ["sim1_null_balanced", "sim2_10pct_balanced"])
def test_without_controls_the_path_is_the_mean_square_of_base_r(name: str) -> None:
    exact = json.loads((REFERENCE / "balanced_exact.json").read_text())[name]
    frame = pd.read_csv(REFERENCE / "sim" / f"{name}.csv")
    means = frame.pivot_table(index="seed", columns="k", values="y").to_numpy()
    path = path_variance_without_controls(means)
    assert path.value == pytest.approx(exact["MS_seed_k"] / exact["R"], rel=1e-7)
    assert path.df == (exact["S"] - 1) * (exact["K"] - 1)


@given(st.integers(-(2**20), 2**20), st.integers(1, 64), st.permutations(range(3)))
def test_level_scale_and_order_of_seeds_change_nothing(level: int, scale: int, order: list[int]) -> None:
    moved = lambda_test((level + scale * RUNS)[order], (level + scale * CONTROLS)[order])
    assert moved.ratio == pytest.approx(4, rel=1e-9) and moved.p == pytest.approx(lambda_test(RUNS, CONTROLS).p, rel=1e-9)
    path = path_variance(level + scale * RUNS, level + scale * CONTROLS).value
    assert path == pytest.approx(scale**2 * path_variance(RUNS, CONTROLS).value, rel=1e-12)


def test_the_constant_is_that_of_a_simulation() -> None:
    drawn = np.random.default_rng(0)
    for arms in (1, 2, 3, 7):
        z, u = drawn.standard_normal((2, 200_000, arms + 1))
        logs = np.log(((z[:, 1:] - z[:, :1]) ** 2).sum(axis=1)) - np.log(2 * (u[:, 1:] ** 2).sum(axis=1))
        error = logs.std() / np.sqrt(len(logs))
        assert abs(logs.mean() - expected_log_ratio(arms)) < 4 * error < 0.03
    for arms in (2, 3, 15, 500):  # the same integral by another rule

        def integrand(log_t: float, arms: int = arms) -> float:
            t = np.exp(log_t)
            return float((1 + 4 * t) ** (-arms / 2) - (1 + 2 * t) ** (-(arms - 1) / 2) * (1 + 2 * (arms + 1) * t) ** -0.5)

        assert expected_log_ratio(arms) == pytest.approx(quad(integrand, -40, 80, limit=200)[0], rel=1e-9)
    assert expected_log_ratio(1) == pytest.approx(0, abs=1e-9), "one difference of two runs against one of two runs"


def rounding(drawn: np.random.Generator, seeds: int, arms: int = 3) -> tuple[Floats, Floats, Floats]:
    """Accumulated runs, controls and reference of one sweep in which all differ by rounding alone, of another scale in every seed."""
    seed = 5 * drawn.standard_normal((seeds, 1))
    scale = np.exp(drawn.uniform(-1, 1, (seeds, 1)))
    runs, controls = seed + scale * drawn.standard_normal((2, seeds, arms))
    return runs, controls, (seed + scale * drawn.standard_normal((seeds, 1)))[:, 0]


@pytest.mark.parametrize("seeds", [3, 5, 8])
def test_limits_of_the_excess_hold_one_where_all_is_rounding(seeds: int) -> None:
    drawn = np.random.default_rng(seeds)
    found = [excess_test(*rounding(drawn, seeds)) for _ in range(1500)]
    beyond = np.mean([each.low > 1 or each.high < 1 for each in found])
    assert abs(beyond - 0.05) < 3 * np.sqrt(0.05 * 0.95 / 1500) + 0.01
    assert abs(np.mean([each.upper < 1 for each in found]) - 0.05) < 3 * np.sqrt(0.05 * 0.95 / 1500) + 0.015


def test_what_a_run_shares_with_its_control_shows_in_the_excess_and_not_in_lambda() -> None:
    runs, controls, reference = rounding(np.random.default_rng(2), 8)
    shared = 1e3 * np.random.default_rng(3).standard_normal(runs.shape)
    assert excess_test(runs + shared, controls + shared, reference).low > 1e4
    assert lambda_test(runs + shared, controls + shared).upper < 1.1


def test_the_excess_by_hand_and_where_there_is_none() -> None:
    reference, runs = np.zeros(3), np.array([[1.0], [2.0], [4.0]])
    found = excess_test(runs, runs + 0.5, reference)
    assert found.ratio == pytest.approx(4 * (1 * 2 * 4) ** (2 / 3)) and found.seeds == 3
    assert excess_test(np.zeros((3, 2)), np.ones((3, 2)), reference).upper == 0
    assert "identical in 1 of 3 seeds" in excess_test(runs * [[0.0], [1.0], [1.0]], runs + 0.5, reference).why_not
    assert "2 seeds with all runs" in excess_test(runs, [[1.0], [2.0], [np.nan]], reference).why_not
