"""The verdict table, rule by rule and in its order, on small sweeps made by hand."""

import dataclasses

import numpy as np
import pytest

from accum_sweeps.analysis.dispersion import Dispersion, PathVariance
from accum_sweeps.analysis.divergence import Divergence
from accum_sweeps.analysis.margin import Margin, absolute_margin, margin_of_reference_arm
from accum_sweeps.analysis.paired import Floats
from accum_sweeps.analysis.power import seeds_needed
from accum_sweeps.analysis.rules import CODES, Decision, Statistics, decide, measure, more_seeds
from accum_sweeps.plan.errors import UserError

# S = 6 seeds one apart, K = 3 arms; the arms' paths sum to 0, those of the controls are the same with the other sign.
LEVEL = np.arange(6.0)[:, np.newaxis]
PATHS = np.array([[0, 1, -1], [0, -1, 1], [0, 1, -2], [0, -1, 2], [0, 2, 1], [0, -2, -1]])
TENTH = absolute_margin(0.1)


def sweep(noise: float, shift: float = 0.0, margin: Margin = TENTH, control_noise: float | Floats = 1.0, seeds: int = 6) -> Statistics:
    moved = np.array([0, 0, shift])
    controls = LEVEL + moved - noise * control_noise * PATHS
    return measure((LEVEL + moved + noise * PATHS)[:seeds], 0, margin, controls=controls[:seeds])


def without_controls(statistics: Statistics) -> Statistics:
    return dataclasses.replace(statistics, dispersion=None)


def judged(code: str, statistics: Statistics) -> Decision:
    decision = decide(statistics)
    assert decision.code == code
    return decision


def test_statistics_of_a_sweep_by_hand() -> None:
    statistics = sweep(0.5, shift=0.3)
    assert (statistics.complete_seeds, statistics.unfinished_arms) == (6, 0)
    assert [shift.mean for shift in statistics.shifts] == pytest.approx([0, 0.3], abs=1e-15)
    assert [shift.pairs for shift in statistics.shifts] == [6, 6]
    assert statistics.shift_p == tuple(shift.p for shift in statistics.shifts)
    assert statistics.dispersion is not None and statistics.dispersion.is_assessable
    assert [test.p for test in statistics.divergences] == [1, 1]
    assert statistics.path.value == pytest.approx(np.mean(PATHS[:, 1:] ** 2 * 0.5**2 * 4) / 2, rel=1e-12)  # a twin is twice the path away
    assert statistics.sigma_tot == pytest.approx(np.sqrt(3.5), rel=1e-12)


def test_two_complete_seeds_or_an_arm_without_a_finished_run_are_not_assessable() -> None:
    judged("not_assessable", sweep(0.01, shift=5.0, seeds=2))
    y = LEVEL + 0.01 * PATHS
    judged("not_assessable", measure(y, 0, TENTH, diverged=np.isfinite(y) & [False, False, True]))
    gaps = y.copy()
    gaps[:4, 1] = np.nan
    assert measure(gaps, 0, TENTH).complete_seeds == 2
    judged("not_assessable", measure(gaps, 0, TENTH))


def test_three_complete_seeds_are_assessable() -> None:
    judged("effect", sweep(0.001, shift=5.0, seeds=3))


def test_a_shift_beyond_the_margin_is_an_effect() -> None:
    decision = judged("effect", sweep(0.01, shift=0.2))
    assert decision.shift_p[1] <= 0.05 < decision.shift_p[0] and not decision.equivalence_holds
    assert decision.more_seeds is None and not decision.shorten_horizon


def test_a_shift_well_within_the_margin_is_negligible() -> None:
    decision = judged("negligible", sweep(0.001, shift=0.02))
    assert decision.shift_p[1] <= 0.05 and decision.equivalence_holds


def test_without_a_margin_a_detected_shift_is_an_effect_however_small() -> None:
    decision = judged("effect", sweep(0.001, shift=0.02, margin=Margin(value=None, source="no margin")))
    assert np.isnan(decision.tost_p).all()


def test_more_variance_than_rounding_is_detected_too() -> None:
    decision = judged("negligible", sweep(0.001, control_noise=0.1))
    assert decision.dispersion_p <= 0.05 and min(decision.shift_p) > 0.05
    judged("effect", sweep(0.2, control_noise=0.1))


def test_as_much_variance_as_rounding_within_the_margin_is_indistinguishable() -> None:
    decision = judged("indistinguishable", sweep(0.001))
    assert decision.rounding_is_assessed and max(decision.tost_p) <= 0.05


def test_identical_runs_whose_controls_differ_are_indistinguishable() -> None:
    statistics = measure(LEVEL + np.zeros(3), 0, margin_of_reference_arm(LEVEL[:, 0]), controls=LEVEL + 0.01 * PATHS)
    judged("indistinguishable", statistics)
    assert statistics.dispersion is not None and statistics.dispersion.upper == 0


@pytest.mark.parametrize(("upper", "code"), [(4.0, "indistinguishable"), (4.01, "equivalent")])
def test_the_upper_limit_of_lambda_decides_at_four(upper: float, code: str) -> None:
    dispersion = Dispersion(seeds=6, ratio=1.0, low=0.1, high=9.0, upper=upper, p=0.5)
    judged(code, dataclasses.replace(sweep(0.001), dispersion=dispersion))


def test_without_controls_or_with_identical_ones_it_is_equivalent_and_rounding_not_assessed() -> None:
    assert not judged("equivalent", without_controls(sweep(0.001))).rounding_is_assessed
    assert not judged("equivalent", sweep(0.001, control_noise=0.0)).rounding_is_assessed


def test_indistinguishable_needs_no_limit_of_the_spread_but_equivalent_does() -> None:
    # 24 seeds, differences of mean 0 and SD .2 sqrt(48/23) = .2889. TOST needs a margin of .2889 x 1.7139 / sqrt(24) = .1011, the limit
    # of the spread one of .2889 x sqrt(23 / 13.09) / sqrt(8) = .1354.
    level, paths = np.arange(24.0)[:, np.newaxis], 0.2 * np.tile(PATHS, (4, 1))
    for margin, with_controls, without in (
        (0.101, "inconclusive", "inconclusive"),
        (0.102, "indistinguishable", "inconclusive"),
        (0.135, "indistinguishable", "inconclusive"),
        (0.136, "indistinguishable", "equivalent"),
    ):
        statistics = measure(level + paths, 0, absolute_margin(margin), controls=level - paths)
        judged(with_controls, statistics)
        judged(without, without_controls(statistics))


def test_one_arm_that_is_not_shown_to_be_equivalent_leaves_the_setup_open() -> None:
    paths = PATHS * [1, 1, 100]
    statistics = measure(LEVEL + 0.001 * paths, 0, TENTH, controls=LEVEL - 0.001 * paths)
    first, last = judged("inconclusive", statistics).tost_p
    assert first <= 0.05 < last


def test_noise_beyond_the_margin_is_inconclusive_with_the_seeds_that_would_do() -> None:
    statistics = sweep(0.2)
    decision = judged("inconclusive", statistics)
    # path variance: mean of (2 x .2 x PATHS)^2 / 2 = .16 x 24 / 12 / 2 on 12 degrees of freedom; .2 quantile of chi-squared 7.807328
    assert statistics.path.value == pytest.approx(0.16, rel=1e-12)
    assert decision.path_share == pytest.approx(0.16 / 3.5, rel=1e-12) and not decision.shorten_horizon
    needed = seeds_needed(0.1, np.sqrt(0.16 * 12 / 7.807327629777267), arms=2)
    assert needed > 100 and decision.more_seeds == needed - 6


def test_a_chaotic_path_asks_for_a_shorter_horizon_instead() -> None:
    decision = judged("inconclusive", sweep(0.6))
    assert decision.path_share > 0.2 and decision.shorten_horizon and decision.more_seeds is None


@pytest.mark.parametrize(("share", "shorten"), [(0.2, False), (0.2001, True)])
def test_the_horizon_is_too_long_above_a_path_share_of_a_fifth(share: float, shorten: bool) -> None:
    path = PathVariance(value=share, df=12, from_controls=True)
    decision = judged("inconclusive", dataclasses.replace(sweep(0.2), path=path, sigma_tot=1.0))
    assert decision.shorten_horizon == shorten and (decision.more_seeds is None) == shorten


def test_without_a_margin_the_seeds_that_its_source_needs_are_named() -> None:
    assert judged("inconclusive", sweep(0.01, margin=margin_of_reference_arm(LEVEL[:3, 0]))).more_seeds == 2
    assert judged("inconclusive", sweep(0.01, margin=Margin(value=None, source="no margin"))).more_seeds is None


def test_at_least_one_more_seed_is_asked_for_and_none_where_nothing_is_known() -> None:
    assert more_seeds(sweep(0.001)) == 1
    unknown = PathVariance(value=np.nan, df=0, from_controls=False)
    assert more_seeds(dataclasses.replace(sweep(0.2), path=unknown)) is None


def test_divergence_is_an_effect_and_never_negligible() -> None:
    rejected = (Divergence(pairs=12, only_arm=10, only_reference=0, p=2 / 2**10), Divergence(pairs=12, only_arm=0, only_reference=0, p=1.0))
    statistics = sweep(0.001, shift=0.02)
    assert decide(statistics).code == "negligible"
    assert not judged("effect", dataclasses.replace(statistics, divergences=rejected)).equivalence_holds


def test_one_seed_in_which_one_arm_alone_diverged_is_no_equivalence_and_asks_for_seeds() -> None:
    """At five seeds McNemar's test can never reject: the outcome must not be called alike for that."""
    one = (Divergence(pairs=5, only_arm=1, only_reference=0, p=1.0), Divergence(pairs=5, only_arm=0, only_reference=0, p=1.0))
    statistics = sweep(0.001)
    assert decide(statistics).code == "indistinguishable"
    decision = judged("inconclusive", dataclasses.replace(statistics, divergences=one))
    # 2 x 2^-d <= .05 / 5 from d = 8 one-sided seeds on; one in so many seeds was.
    assert decision.more_seeds == 7 * statistics.complete_seeds
    assert judged("effect", dataclasses.replace(sweep(0.001, shift=0.02), divergences=one))


def test_diverged_runs_count_as_outcomes_and_make_no_difference() -> None:
    level = np.arange(11.0)[:, np.newaxis]
    y = level + 0.01 * np.resize(PATHS, (11, 3))
    diverged = np.zeros((11, 3), dtype=bool)
    diverged[:10, 2] = True
    statistics = measure(y, 0, TENTH, diverged=diverged)
    assert statistics.complete_seeds == 11 and statistics.shifts[1].pairs == 1
    decision = judged("effect", statistics)
    assert decision.divergence_p[1] == pytest.approx(5 * 2 / 2**10, rel=1e-12)


def test_the_family_has_2k_minus_1_tests_with_or_without_controls() -> None:
    for statistics in (sweep(0.001), without_controls(sweep(0.001))):
        for p, code in ((0.0099, "negligible"), (0.0101, "equivalent" if statistics.dispersion is None else "indistinguishable")):
            decision = judged(code, dataclasses.replace(statistics, shift_p=(1.0, p)))
            assert decision.shift_p[1] == pytest.approx(5 * p, rel=1e-12)


def test_sign_flip_replaces_t_on_request_and_is_refused_where_it_could_never_reject() -> None:
    y = np.arange(8.0)[:, np.newaxis] + [0, 0.01, 1] + 0.001 * np.resize(PATHS, (8, 3))
    assert measure(y, 0, TENTH, sign_flip=True).shift_p == (2 / 2**8, 2 / 2**8)
    with pytest.raises(UserError, match="at least 8 seeds"):
        measure(y[:7], 0, TENTH, sign_flip=True)
    with pytest.raises(UserError, match="at least 9 seeds"):  # four arms: seven tests
        measure(np.column_stack([y, y[:, 1] + y[:, 2]]), 0, TENTH, sign_flip=True)


def test_every_arm_is_compared_with_the_chosen_reference_arm() -> None:
    y = LEVEL + [0, 0.1, 0.3] + 0.001 * PATHS
    assert [shift.mean for shift in measure(y, 2, TENTH).shifts] == pytest.approx([-0.3, -0.2], abs=1e-12)
    controls = y - 0.002 * PATHS
    controls[:, 2] = np.nan
    assert measure(y, 2, TENTH, controls=controls).path.from_controls


def test_controls_without_a_finished_twin_leave_the_path_to_the_residuals() -> None:
    statistics = measure(LEVEL + 0.1 * PATHS, 0, TENTH, controls=np.full((6, 3), np.nan))
    assert not statistics.path.from_controls and statistics.path.df == 10
    assert not judged("inconclusive", statistics).rounding_is_assessed


def test_two_arms_have_no_lambda_and_the_other_rules_still_apply() -> None:
    y = LEVEL + 0.001 * PATHS[:, :2]
    decision = judged("equivalent", measure(y, 0, TENTH, controls=y + 0.001))
    assert not decision.rounding_is_assessed and len(decision.shift_p) == 1


@pytest.mark.parametrize("scale", [2.0**-20, 2.0**10])
def test_level_and_scale_of_the_response_change_no_verdict(scale: float) -> None:
    for noise, shift in ((0.001, 0.0), (0.001, 0.02), (0.01, 0.2), (0.2, 0.0), (0.6, 0.0)):
        moved = np.array([0, 0, shift])
        y, controls = LEVEL + moved + noise * PATHS, LEVEL + moved - noise * PATHS
        there = decide(measure(y, 0, TENTH, controls=controls))
        back = decide(measure(scale * y, 0, absolute_margin(scale * 0.1), controls=scale * controls))
        assert (back.code, back.more_seeds) == (there.code, there.more_seeds)


def test_every_code_is_reached_above() -> None:
    reached = {
        decide(each).code
        for each in (sweep(0.01, seeds=2), sweep(0.01, 0.2), sweep(0.001, 0.02), sweep(0.001), without_controls(sweep(0.001)), sweep(0.2))
    }
    assert reached == set(CODES)
