"""Mean squares and components: against certified and published values, base R and the likelihood, and what must not change them."""

import sys
import time
from collections.abc import Iterator
from dataclasses import fields

import numpy as np
import pytest
from scipy import stats

from accum_sweeps.analysis.components import (
    Component,
    Ratio,
    SeedComponents,
    balanced,
    crossed_components,
    one_way_component,
    seed_components,
    unbalanced,
)
from accum_sweeps.analysis.gauge import gauge_study
from accum_sweeps.analysis.mean_squares import (
    MeanSquare,
    brown_forsythe,
    crossed,
    equal_rerun_variance,
    f_test,
    one_way,
    two_way,
)
from accum_sweeps.analysis.mls import Interval, linear_interval, quotient_interval, ratio_interval, variance_interval
from accum_sweeps.analysis.reml import RESIDUAL, fit
from tests.analysis.references import SIMULATED, answers, cells, study, table
from tests.pace import slowness

CERTIFIED = answers("nist/certified.json")
EXACT = answers("balanced_exact.json")
BALANCED = [name for name in SIMULATED if name in EXACT]


def correct_digits(ours: float, certified: float) -> float:
    """NIST's log relative error, at most the 15 digits that are certified."""
    return 15.0 if ours == certified else min(15.0, -np.log10(abs(ours - certified) / abs(certified)))


def numbers(found: SeedComponents) -> dict[str, list[float]]:
    """Every component and ratio as estimate, raw estimate (0 where there is none) and limits."""
    result = {}
    for field in fields(found):
        value = getattr(found, field.name)
        if isinstance(value, Component):
            result[field.name] = [value.estimate, np.nan_to_num(value.raw), *value.interval]
        if isinstance(value, Ratio):
            result[field.name] = [value.estimate, *value.interval]
    return result


@pytest.mark.parametrize("name", CERTIFIED)
def test_one_way_keeps_the_digits_that_float64_allows(name: str) -> None:
    frame, certified = table(f"nist/{name}.csv"), CERTIFIED[name]
    found = one_way(frame["y"], frame["group"])
    least = certified["achievable_LRE"]["numpy_shifted_by_first"] - 0.5
    assert (found.between.df, found.within.df) == (certified["df_between"], certified["df_within"])
    assert correct_digits(found.test.statistic, certified["F"]) >= least
    assert correct_digits(found.between.value, certified["ms_between"]) >= least
    assert correct_digits(found.within.value, certified["ms_within"]) >= least
    assert correct_digits(found.r2, certified["r2"]) >= least
    assert correct_digits(np.sqrt(found.within.value), certified["resid_sd"]) >= least


@pytest.mark.parametrize("name", [*BALANCED, "aiag"])
def test_balanced_closed_forms_are_those_of_base_r(name: str) -> None:
    exact, y = EXACT[name], cells(name)
    layout, found = two_way(y), balanced(y)
    assert layout.shape == (exact["S"], exact["K"], exact["R"]) and layout.within is not None
    squares = [layout.rows.value, layout.columns.value, layout.interaction.value, layout.within.value]
    assert squares == pytest.approx([exact[key] for key in ("MS_seed", "MS_k", "MS_seed_k", "MS_rep")], rel=1e-11)
    assert found.k_test is not None and found.rerun_gate is not None
    interaction = f_test(layout.interaction, layout.within)
    assert found.seed_k_test == (interaction if found.rerun_gate.p > 0.05 else None)
    tests = [interaction.statistic, interaction.p, found.k_test.statistic, found.k_test.p]
    assert tests == pytest.approx([exact[key] for key in ("F_seed_k", "p_seed_k", "F_k_over_interaction", "p_k")], rel=1e-10)
    for ours, key in ((found.seed_k, "mls_seed_k"), (found.seed, "mls_seed")):
        theirs = exact[key]
        assert [ours.raw, ours.estimate] == pytest.approx([theirs["est_raw"], theirs["est"]], rel=1e-10, abs=0)
        assert ours.interval == pytest.approx((theirs["lower"], theirs["upper"]), rel=1e-9, abs=0)
    assert found.rerun is not None
    assert [found.rerun.estimate, *found.rerun.interval] == pytest.approx(list(exact["chisq_rep"].values()), rel=1e-10)
    assert found.seed_k_over_rerun is not None and found.seed_over_cell_noise is not None
    for ratio, key in (
        (found.seed_k_over_rerun, "exact_ratio_seedk_over_rep"),
        (found.seed_over_cell_noise, "exact_ratio_seed_over_cellmean_noise"),
    ):
        theirs = exact[key]
        assert [ratio.estimate, *ratio.interval] == pytest.approx([theirs["est"], theirs["lower"], theirs["upper"]], rel=1e-9, abs=0)


@pytest.mark.parametrize("name", BALANCED)
def test_closed_forms_are_the_restricted_likelihoods(name: str) -> None:
    y = cells(name)
    seed, k, _ = (labels.ravel() for labels in np.indices(y.shape))
    closed, fitted = balanced(y), unbalanced(y.ravel(), seed, k)
    assert closed.method == "closed forms" and fitted.method == "REML"
    for part in ("seed", "seed_k", "rerun", "total"):
        assert getattr(fitted, part).estimate == pytest.approx(getattr(closed, part).estimate, rel=1e-6)
    assert fitted.effects == pytest.approx(closed.effects, rel=1e-7)
    assert fitted.seed_k_ratio.estimate == pytest.approx(closed.seed_k_ratio.estimate, rel=1e-6)


def test_the_likelihood_tells_components_apart_that_lie_twenty_orders_of_magnitude_apart() -> None:
    rng = np.random.default_rng(5)
    y = rng.standard_normal((6, 1, 1)) + 1e-6 * rng.standard_normal((6, 4, 1)) + 1e-10 * rng.standard_normal((6, 4, 3))
    seed, k, _ = (labels.ravel() for labels in np.indices(y.shape))
    closed, fitted = balanced(y), unbalanced(y.ravel(), seed, k)
    assert closed.rerun is not None and 1e19 < closed.seed.estimate / closed.rerun.estimate < 1e21
    for part in ("seed", "seed_k", "rerun", "total"):
        # a response near 1 carries a spread of 1e-10 to 2e-6 of itself, on 48 degrees of freedom
        assert getattr(fitted, part).estimate == pytest.approx(getattr(closed, part).estimate, rel=1e-5)


def test_a_negative_raw_estimate_stands_beside_an_exact_zero() -> None:
    frame, dyestuff2 = table("lme4/dyestuff2.csv"), answers("published.json")["dyestuff2"]
    layout = one_way(frame["Yield"], frame["Batch"])
    batch = one_way_component(layout.between, layout.within, layout.group_size)
    assert batch.raw == pytest.approx(-1.3219, abs=5e-5) and "-1.3219" in dyestuff2["note"]
    assert batch.estimate == 0.0 and batch.interval.low == 0.0 < batch.interval.high
    published = answers("gage/aiag_msa.json")["anova_method_varcomp_raw"]
    found = crossed_components(cells("aiag"))
    raw = [found[name].raw for name in ("rows", "columns", "interaction", "residual")]
    assert raw == pytest.approx([published[name] for name in ("part", "operator", "part_operator", "repeatability")], rel=1e-10)
    assert found["interaction"].estimate == 0.0 > found["interaction"].raw


def test_gauge_study_is_the_published_one() -> None:
    published, found = answers("published.json")["aiag_msa"], gauge_study(cells("aiag"))
    assert not found.has_interaction and found.interaction_test.p == pytest.approx(published["anova"]["part_operator"][4], abs=5e-4)
    names = {"gage_rr": "gauge", "grr": "gauge"}
    for key, value in published["varcomp_without_interaction"].items():
        assert found.variances[names.get(key, key)] == pytest.approx(value, abs=6e-6)
    for key, percent in published["pct_contribution"].items():
        assert 100 * found.contribution[names.get(key, key)] == pytest.approx(percent, abs=6e-3)
    for key, percent in published["pct_study_var"].items():
        assert 100 * found.study_variation[names.get(key, key)] == pytest.approx(percent, abs=6e-3)
    assert found.distinct_categories == published["ndc"]
    kept = gauge_study(cells("aiag"), alpha=1.0)
    assert kept.has_interaction and kept.variances["reproducibility"] == kept.components["columns"].estimate


def test_crossed_components_without_replicates_are_the_restricted_likelihoods() -> None:
    y = np.array(table("lme4/penicillin.csv").sort_values(["plate", "sample"])["diameter"], dtype=float).reshape(24, 6, 1)
    theirs, found = study("penicillin").answers["REML"]["varcomp"], crossed_components(y)
    assert list(found) == ["rows", "columns", "residual"]
    ours = [component.estimate for component in found.values()]
    assert ours == pytest.approx([theirs["plate"], theirs["sample"], theirs["Residual"]], rel=1e-5)
    machines = np.array(table("lme4/machines.csv").sort_values(["Worker", "Machine"])["score"], dtype=float).reshape(6, 3, 3)
    theirs, found = study("machines_random").answers["REML"]["varcomp"], crossed_components(machines)
    ours = [found[name].estimate for name in ("rows", "columns", "interaction", "residual")]
    assert ours == pytest.approx([theirs[name] for name in ("Worker", "Machine", "Worker:Machine", "Residual")], rel=1e-5)


@pytest.mark.parametrize("name", SIMULATED)
def test_gate_for_equal_variances_is_that_of_r(name: str) -> None:
    data, frame = answers(f"sim/{name}.json"), table(f"sim/{name}.csv").dropna()
    raw, within = brown_forsythe(frame["y"], frame["k"]), equal_rerun_variance(frame["y"], frame["seed"], frame["k"])
    assert [raw.statistic, raw.p] == pytest.approx([data["brown_forsythe_raw_over_k"][key] for key in ("F", "p")], rel=1e-9)
    assert [within.statistic, within.p] == pytest.approx([data["brown_forsythe_within_cell_over_k"][key] for key in ("F", "p")], rel=1e-9)


def test_a_plain_sum_has_graybill_and_wangs_limits() -> None:
    """By hand: each side's squared distance is the sum of the squared distances of the parts' own exact limits."""
    a, b = MeanSquare(value=2.0, df=5), MeanSquare(value=0.5, df=12)
    found, parts = linear_interval([(0.25, a), (3.0, b)]), [(0.25 * 2.0, variance_interval(a), 0.25), (3 * 0.5, variance_interval(b), 3.0)]
    below = np.sqrt(sum((value - c * limits.low) ** 2 for value, limits, c in parts))
    above = np.sqrt(sum((c * limits.high - value) ** 2 for value, limits, c in parts))
    assert found == pytest.approx((2.0 - below, 2.0 + above), rel=1e-12)
    assert variance_interval(a) == pytest.approx((10 / stats.chi2.ppf(0.975, 5), 10 / stats.chi2.ppf(0.025, 5)), rel=1e-10)


def test_quotient_of_two_mean_squares_has_the_exact_limits_inverted() -> None:
    """With one value per cell sigma2_seed:k / sigma2_seed is 1 / s of the exact ratio, whose F limits MLS meets exactly at 0."""
    rows, noise, k = MeanSquare(value=9.0, df=7), MeanSquare(value=1.5, df=21), 4
    exact = ratio_interval(rows, noise, k)
    found = quotient_interval([(0.0, rows), (1.0, noise)], [(1 / k, rows), (-1 / k, noise)])
    assert found == pytest.approx((1 / exact.high, 1 / exact.low), rel=1e-9)


def drawn_mean_squares(expected: list[float], degrees: tuple[int, ...], size: int) -> Iterator[list[MeanSquare]]:
    rng = np.random.default_rng(0)
    for _ in range(size):
        yield [MeanSquare(value=float(mean * rng.chisquare(df) / df), df=df) for mean, df in zip(expected, degrees, strict=True)]


def test_intervals_of_sums_and_of_the_seed_k_ratio_cover_the_truth_as_often_as_they_say() -> None:
    """8 seeds, 4 factors, 3 reruns, sigma2 1, .25 and .5; 3000 draws have a standard error of .004.

    The ratio's interval holds the truth where the linear interval of seed:k - .25 seed holds 0.
    """
    expected, degrees, size = [0.5 + 3 * 0.25 + 12.0, 0.5 + 3 * 0.25, 0.5], (7, 21, 64), 3000
    covered = np.zeros(4)
    for i, (rows, cell, within) in enumerate(drawn_mean_squares(expected, degrees, size)):
        above, below = [(0.0, rows), (1 / 3, cell), (-1 / 3, within)], [(1 / 12, rows), (-1 / 12, cell), (0.0, within)]
        total = [(1 / 12, rows), (1 / 4, cell), (2 / 3, within)]
        difference = [(a - 0.25 * b, ms) for (a, ms), (b, _) in zip(above, below, strict=True)]
        holds = [
            limits.low <= truth <= limits.high
            for limits, truth in zip(map(linear_interval, (above, below, total, difference)), (0.25, 1.0, 1.75, 0.0), strict=True)
        ]
        covered += holds
        if i < 50:
            ratio = quotient_interval(above, below)
            assert (ratio.low <= 0.25 <= ratio.high) == holds[3]
    assert (covered / size > 0.935).all() and (covered / size < 0.965).all(), covered / size


def with_seed_spread(ratio: float) -> np.ndarray:
    """(5, 4, 1) values whose MS_seed is ``ratio`` times MS_seed:k."""
    y = np.random.default_rng(0).standard_normal((5, 4))
    noise = y - y.mean(axis=1, keepdims=True) - y.mean(axis=0) + y.mean()
    seeds = y.mean(axis=1, keepdims=True) - y.mean()
    scale = np.sqrt(ratio * (np.sum(noise**2) / 12) / np.sum(seeds**2))
    return np.asarray(noise + seeds * scale)[:, :, np.newaxis]


def test_a_seed_variance_that_may_be_zero_makes_the_ratio_unbounded() -> None:
    bounded, unclear, negative, absent = (balanced(with_seed_spread(ratio)) for ratio in (30.0, 1.5, 0.5, 0.0))
    assert bounded.seed.interval.low > 0 and not bounded.seed_k_ratio.interval.is_unbounded
    assert bounded.seed_k_ratio.estimate == pytest.approx(4 / 29, rel=1e-9)
    assert unclear.seed.interval.low == 0 and unclear.seed_k_ratio.interval.is_unbounded
    assert 0 < unclear.seed_k_ratio.interval.low < unclear.seed_k_ratio.estimate == pytest.approx(8, rel=1e-9)
    assert negative.seed.raw < 0 and negative.seed_k_ratio.estimate == np.inf
    assert 0 < negative.seed_k_ratio.interval.low < negative.seed_k_ratio.interval.high == np.inf
    assert absent.seed_k_ratio.interval == (np.inf, np.inf)


def test_identical_reruns_are_a_component_of_exactly_zero_and_no_test() -> None:
    """A deterministic machine's reruns are no yardstick: the rest is that of one row per cell."""
    single = with_seed_spread(30.0)
    repeated, alone = balanced(np.repeat(single, 3, axis=2)), balanced(single)
    assert repeated.rerun == Component(estimate=0.0, raw=0.0, interval=Interval(0.0, 0.0))
    assert alone.rerun is None and repeated.seed_k_test is None and repeated.rerun_gate is None
    assert repeated.seed == alone.seed and repeated.seed_k == alone.seed_k and repeated.total == alone.total
    assert alone.seed_k.interval == pytest.approx(variance_interval(two_way(single).interaction), rel=1e-12)
    seed, k, _ = (labels.ravel()[1:] for labels in np.indices((5, 4, 3)))
    some = seed_components(np.repeat(single, 3, axis=2).ravel()[1:], seed, k)
    assert some.method == "closed forms" and some.rerun == repeated.rerun and some.seed == alone.seed and some.seed_k == alone.seed_k
    seed, k, _ = (labels.ravel()[3:] for labels in np.indices((5, 4, 3)))
    missing = seed_components(np.repeat(single, 3, axis=2).ravel()[3:], seed, k)
    assert missing.method == "REML" and missing.rerun is not None and missing.rerun.estimate == 0.0
    seed, k = (labels.ravel()[1:] for labels in np.indices((5, 4)))
    lone = seed_components(single.ravel()[1:], seed, k)
    assert missing.seed_k.estimate == pytest.approx(lone.seed_k.estimate, rel=1e-9) and lone.rerun is None


def test_equal_responses_have_components_of_exactly_zero() -> None:
    found = balanced(np.full((3, 2, 2), 3.14))
    for component in (found.seed, found.seed_k, found.rerun, found.total):
        assert component == Component(estimate=0.0, raw=0.0, interval=Interval(0.0, 0.0))
    assert np.isnan(found.seed_k_ratio.estimate) and found.seed_k_ratio.interval == (0.0, np.inf)


def test_balanced_tables_take_closed_forms_and_others_the_likelihood() -> None:
    frame = table("sim/sim2_10pct_balanced.csv").sample(frac=1, random_state=1)
    found = seed_components(frame["y"], frame["seed"], frame["k"].astype(str))
    assert numbers(found) == {
        name: pytest.approx(value, rel=1e-9) for name, value in numbers(balanced(cells("sim2_10pct_balanced"))).items()
    }
    frame = table("sim/sim4_10pct_unbalanced.csv")
    found = seed_components(frame["y"], frame["seed"], frame["k"])
    theirs = answers("sim/sim4_10pct_unbalanced.json")["REML"]
    assert (found.method, found.rows, found.seeds, found.factors) == ("REML", 78, 8, 4) and found.rerun is not None
    ours = [found.seed_k.estimate, found.seed.estimate, found.rerun.estimate]
    assert ours == pytest.approx(list(theirs["varcomp"].values()), rel=1e-5)
    assert found.effects == pytest.approx(list(theirs["fixef"].values()), rel=1e-5)
    ratio = theirs["varcomp"]["sf:kf"] / theirs["varcomp"]["sf"]
    assert found.seed_k_ratio.estimate == pytest.approx(ratio, rel=1e-5)
    assert found.seed_k_ratio.interval.low < ratio < found.seed_k_ratio.interval.high


@pytest.mark.parametrize(("a", "b"), [(5.0, 1.0), (0.0, 1e-5), (-1e3, -20.0)])
@pytest.mark.parametrize("name", ["sim2_10pct_balanced", "sim4_10pct_unbalanced"])
def test_shifting_scaling_and_reordering_move_results_along(name: str, a: float, b: float) -> None:
    frame = table(f"sim/{name}.csv")
    moved = frame.sample(frac=1, random_state=3)
    before = seed_components(frame["y"], frame["seed"], frame["k"])
    after = seed_components(a + b * moved["y"], moved["seed"], moved["k"])
    for part, value in numbers(before).items():
        unit = 1.0 if part.startswith("seed_k_") or part == "seed_over_cell_noise" else b * b
        # the response has 1e-8 of its own size as last digit; a shift by 1e3 costs 1e-13 / 5e-3 of the spread, limits are found to 1e-10
        assert numbers(after)[part] == pytest.approx([unit * number for number in value], rel=1e-7)


def test_100_seeds_by_4_factors_by_3_reruns_take_less_than_50_ms() -> None:
    y = np.random.default_rng(0).standard_normal((100, 4, 3))
    seed, k, _ = (labels.ravel() for labels in np.indices(y.shape))
    seed_components(y.ravel(), seed, k)
    taken = []
    for _ in range(3):
        start = time.process_time()
        found = seed_components(y.ravel(), seed, k)
        taken.append(time.process_time() - start)
    limit = 0.12 if "coverage" in sys.modules else 0.05
    assert min(taken) < limit * slowness() and found.method == "closed forms"  # traced lines take longer


def test_an_unbalanced_table_of_that_size_takes_less_than_a_second_with_its_intervals() -> None:
    rng = np.random.default_rng(1)
    kept = rng.random(1200) > 0.1
    seed, k, _ = (labels.ravel()[kept] for labels in np.indices((100, 4, 3)))
    y = 0.02 * rng.standard_normal(100)[seed] + 0.01 * rng.standard_normal((100, 4))[seed, k] + 0.01 * rng.standard_normal(len(seed))
    taken = []
    for _ in range(3):
        start = time.process_time()
        found = seed_components(y, seed, k)
        taken.append(time.process_time() - start)
    # Where lines are traced, and a neighbour takes its part of the caches, the same work takes more than twice as long.
    limit = 2.5 if "coverage" in sys.modules else 1.0
    assert min(taken) < limit * slowness() and found.method == "REML"


def test_too_little_data_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="1 seed and 2 factors have a finite value"):
        seed_components([1.0, 2.0, np.nan, np.inf], [1, 1, 2, 2], [1, 2, 1, 2])
    with pytest.raises(ValueError, match="0 seeds"):
        seed_components([np.nan], [1], [1])
    with pytest.raises(ValueError, match="shape"):
        balanced(np.ones((1, 2, 3)))
    with pytest.raises(ValueError, match="not finite"):
        balanced(np.full((2, 2, 2), np.nan))
    with pytest.raises(ValueError, match="two groups"):
        one_way([1.0, 2.0], ["a", "b"])
    with pytest.raises(ValueError, match="at least twice"):
        gauge_study(np.ones((3, 2, 1)))


def test_unbalanced_one_way_has_the_effective_group_size() -> None:
    # sizes 2, 3: (5 - 13 / 5) / 1 = 2.4
    found = one_way([1.0, 2.0, 4.0, 5.0, 7.0], ["b", "b", "a", "a", "a"])
    assert found.group_size == pytest.approx(2.4, rel=1e-15)
    assert found.test.statistic == pytest.approx(stats.f_oneway([1, 2], [4, 5, 7]).statistic, rel=1e-12)


def test_random_k_components_agree_with_the_likelihood() -> None:
    y = cells("sim2_10pct_balanced")
    seed, k, _ = (labels.ravel() for labels in np.indices(y.shape))
    fitted = fit(y.ravel(), {"seed": seed, "k": k, "seed:k": crossed(seed, k)}).variances
    found = crossed_components(y)
    ours = [found[name].estimate for name in ("rows", "columns", "interaction", "residual")]
    assert ours == pytest.approx([fitted[name] for name in ("seed", "k", "seed:k", RESIDUAL)], rel=1e-6)


@pytest.mark.parametrize("size", [1e-5, 1e-8])
def test_an_unbalanced_table_of_arms_that_differ_by_rounding_alone_keeps_its_digits(size: float) -> None:
    """A sweep in float32 with one run missing: seeds vary 1e10 times as much as arms, or more; a search must not fall off the scale."""
    drawn = np.random.default_rng(0)
    seed, k = (labels.ravel()[1:] for labels in np.indices((8, 4)))
    seeds, noise = drawn.standard_normal((8, 1)), drawn.standard_normal((8, 4))

    def found(scale: float) -> SeedComponents:
        return seed_components((seeds + scale * (noise - noise[:, :1])).ravel()[1:], seed, k)

    coarse, fine = found(1e-3), found(size)
    factor = (size / 1e-3) ** 2
    assert fine.method == "REML" and tuple(fine.seed.interval) == pytest.approx(tuple(coarse.seed.interval), rel=1e-2)
    assert fine.seed_k.estimate == pytest.approx(factor * coarse.seed_k.estimate, rel=1e-5)
    assert tuple(fine.seed_k.interval) == pytest.approx([factor * limit for limit in coarse.seed_k.interval], rel=1e-5)
    assert tuple(fine.seed_k_ratio.interval) == pytest.approx([factor * limit for limit in coarse.seed_k_ratio.interval], rel=1e-2)
