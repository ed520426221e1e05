"""REML and ML: against lme4, against a dense likelihood, at the boundary, and what must not change them."""

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import chdtri

from accum_sweeps.analysis import profiles
from accum_sweeps.analysis.mean_squares import crossed, group_codes
from accum_sweeps.analysis.reml import RESIDUAL, Fit, criterion, fit, treatment_design
from tests.analysis.references import NAMES, Study, answers, study

QUANTILE = float(chdtri(1, 0.05))
# Limits of lme4 that its interpolation puts further than 5e-4 from where its own deviance reaches the quantile.
INTERPOLATED = {
    ("machines_random", "Worker"),
    ("sim4_10pct_unbalanced", "sf:kf"),
    ("sim5_heteroscedastic", "sf:kf"),
    ("sim5_heteroscedastic:random_k", "sf:kf"),
}


def fitted(data: Study, *, restricted: bool) -> Fit:
    random = {name: crossed(*labels) for name, labels in data.random.items()}
    return fit(data.y, random, None if data.fixed is None else treatment_design(data.fixed), restricted=restricted)


def dense_criterion(data: Study, variances: dict[str, float], *, restricted: bool) -> float:
    """-2 log (restricted) likelihood from the n x n covariance, in the response's own units."""
    n = len(data.y)
    covariance = variances[RESIDUAL] * np.eye(n)
    for name, labels in data.random.items():
        codes = crossed(*labels)
        covariance += variances[name] * (codes[:, np.newaxis] == codes)
    x = np.ones((n, 1)) if data.fixed is None else treatment_design(data.fixed)
    information = x.T @ np.linalg.solve(covariance, x)
    residual = data.y - x @ np.linalg.solve(information, x.T @ np.linalg.solve(covariance, data.y))
    value = np.linalg.slogdet(covariance)[1] + residual @ np.linalg.solve(covariance, residual) + n * np.log(2 * np.pi)
    if restricted:
        value += np.linalg.slogdet(information)[1] - x.shape[1] * np.log(2 * np.pi)
    return float(value)


def unbalanced(seed: int = 3) -> Study:
    """Seeds crossed with k, 2 values per cell of which some are missing."""
    rng = np.random.default_rng(seed)
    kept = rng.random(48) > 0.2
    s, k, _ = (labels.ravel()[kept] for labels in np.indices((6, 4, 2)))
    y = 3 + 0.02 * rng.standard_normal(6)[s] + 0.01 * rng.standard_normal((6, 4))[s, k] + 0.005 * rng.standard_normal(len(s))
    return Study(y, {"seed": [s], "seed:k": [s, k]}, k, {})


@pytest.mark.parametrize("restricted", [True, False], ids=["REML", "ML"])
@pytest.mark.parametrize("name", NAMES)
def test_components_effects_and_criterion_are_lme4s(name: str, restricted: bool) -> None:
    data = study(name)
    ours, theirs = fitted(data, restricted=restricted), data.answers["REML" if restricted else "ML"]
    for term, value in theirs["varcomp"].items():
        variance = ours.variances[RESIDUAL if term == "Residual" else term]
        if value < 1e-15:
            assert variance == 0
        else:
            assert variance == pytest.approx(value, rel=1e-5)
    assert ours.criterion == pytest.approx(theirs["criterion"], rel=1e-9)
    assert ours.effects == pytest.approx(list(theirs["fixef"].values()), rel=1e-5)
    assert ours.standard_errors == pytest.approx(list(theirs["se"].values()), rel=1e-5)


def test_components_are_those_of_the_literature() -> None:
    published = answers("published.json")
    for name in ("dyestuff", "dyestuff2", "penicillin"):
        for restricted, key in ((True, "REML"), (False, "ML")):
            ours = fitted(study(name), restricted=restricted)
            for term, value in published[name][key].items():
                if term in ("criterion", "deviance"):
                    assert ours.criterion == pytest.approx(value, abs=6e-5)  # printed with 4 decimals
                elif term != "Intercept":
                    assert ours.variances[RESIDUAL if term == "Residual" else term] == pytest.approx(value, rel=1e-4)
    machines = fitted(study("machines"), restricted=True)
    sds = [np.sqrt(machines.variances[term]) for term in ("Worker", "Worker:Machine", RESIDUAL)]
    assert sds == pytest.approx(list(published["machines"]["REML_sd"].values()), rel=1e-5)  # the closed form of the second is 3.729538


@pytest.mark.parametrize("name", [name for name in NAMES if name != "dyestuff2"])
def test_profile_limits_of_ml_are_lme4s_and_lie_where_the_deviance_is_the_quantile(name: str) -> None:
    data = study(name)
    ours = fitted(data, restricted=False)
    for key, theirs in data.answers["profile_ci95_sd_scale"].items():
        term = RESIDUAL if key == "sigma" else key.partition("|")[2]
        if not term:
            continue
        limits, deviance = profiles.variance_interval(ours, term), profiles.variance_deviance(ours, term)
        if (name, term) not in INTERPOLATED:
            assert np.sqrt(limits.low) == pytest.approx(theirs[0], rel=5e-4, abs=0)
        assert np.sqrt(limits.high) == pytest.approx(theirs[1], rel=5e-4)
        assert (limits.low == 0.0 and deviance(0.0) < QUANTILE) or deviance(limits.low) == pytest.approx(QUANTILE, abs=1e-8)
        assert deviance(limits.high) == pytest.approx(QUANTILE, abs=1e-8)


@pytest.mark.parametrize("name", ["dyestuff", "machines", "sim4_10pct_unbalanced"])
def test_profile_limits_of_effects_are_lme4s(name: str) -> None:
    data = study(name)
    ours = fitted(data, restricted=False)
    for column, key in enumerate(data.answers["ML"]["fixef"]):
        limits, deviance = profiles.effect_interval(ours, column), profiles.effect_deviance(ours, column)
        assert limits == pytest.approx(data.answers["profile_ci95_sd_scale"][key], rel=5e-4)
        assert [deviance(limit) for limit in limits] == pytest.approx([QUANTILE] * 2, abs=1e-8)


@pytest.mark.parametrize(("name", "term"), sorted(INTERPOLATED))
def test_where_lme4_interpolated_a_dense_likelihood_decides_for_ours(name: str, term: str) -> None:
    """The deviance at the lower limit, all else refitted by a general minimiser on the n x n covariance."""
    data = study(name)
    ours = fitted(data, restricted=False)
    low = profiles.variance_interval(ours, term).low
    others = [other for other in ours.variances if other != term]

    def at(variance: float) -> float:
        def value(logs: np.ndarray) -> float:
            return dense_criterion(data, {term: variance, **dict(zip(others, np.exp(logs), strict=True))}, restricted=False)

        start = np.log([ours.variances[other] for other in others])
        found = minimize(value, start, method="Nelder-Mead", options={"xatol": 1e-6, "fatol": 1e-9, "maxiter": 2000})
        return float(found.fun) - ours.criterion

    assert at(low) == pytest.approx(QUANTILE, abs=1e-6)
    theirs = data.answers["profile_ci95_sd_scale"][f"sd_(Intercept)|{term}"][0]
    assert abs(at(theirs**2) - QUANTILE) > 1e-4


@pytest.mark.parametrize("restricted", [True, False])
@pytest.mark.parametrize("name", ["penicillin", "machines_random", "sim4_10pct_unbalanced"])
def test_criterion_is_that_of_the_dense_covariance(name: str, restricted: bool) -> None:
    data = study(name)
    ours = fitted(data, restricted=restricted)
    assert ours.criterion == pytest.approx(dense_criterion(data, ours.variances, restricted=restricted), rel=1e-10)


@pytest.mark.parametrize("restricted", [True, False])
@pytest.mark.parametrize("gamma", [[0.0, 0.0], [0.3, 0.0], [0.0, 2.0], [5.0, 0.7]])
def test_gradient_is_the_slope_of_the_criterion(gamma: list[float], restricted: bool) -> None:
    model = fitted(unbalanced(), restricted=True).model
    at, sigma2 = np.array(gamma), 0.4
    _, by_gamma, by_log_sigma2 = criterion(model, restricted, at, sigma2)
    slopes = [
        (criterion(model, restricted, at + step, sigma2)[0] - criterion(model, restricted, at, sigma2)[0]) / 1e-6
        for step in 1e-6 * np.eye(2)
    ]
    # one-sided differences over 1e-6: off by half the curvature times that, which is below 1e-3 here
    assert by_gamma == pytest.approx(slopes, rel=1e-3, abs=1e-3)
    above = criterion(model, restricted, at, sigma2 * float(np.exp(1e-6)))[0]
    slope = (above - criterion(model, restricted, at, sigma2)[0]) / 1e-6
    assert by_log_sigma2 == pytest.approx(slope, rel=1e-3, abs=1e-3)


def groups(ratio: float) -> tuple[np.ndarray, np.ndarray]:
    """Five groups of four whose mean squares between and within have that ratio."""
    rng = np.random.default_rng(1)
    group = np.repeat(np.arange(5), 4)
    noise, means = rng.standard_normal(20), rng.standard_normal(5)
    noise -= (np.bincount(group, noise) / 4)[group]
    means -= means.mean()
    within, between = np.sum(noise**2) / 15, 4 * np.sum(means**2) / 4
    return noise + (means * np.sqrt(ratio * within / between))[group], group


def test_the_boundary_is_where_the_score_turns_and_not_where_a_number_is_small() -> None:
    for ratio in (0.2, 0.99, 1 - 1e-6):
        y, group = groups(ratio)
        assert fit(y, {"group": group}).variances["group"] == 0.0
    for excess in (1e-6, 1e-3, 0.5):
        y, group = groups(1 + excess)
        found = fit(y, {"group": group}).variances
        # REML of a balanced layout is (MS_between - MS_within) / 4; the ratio itself is known to 1e-15 / excess
        assert found["group"] == pytest.approx(excess * found[RESIDUAL] / 4, rel=1e-7 + 1e-14 / excess)


@pytest.mark.parametrize(("name", "term"), [("dyestuff2", "Batch"), ("aiag", "part:operator")])
@pytest.mark.parametrize("restricted", [True, False])
def test_a_component_at_the_boundary_is_exactly_zero_and_its_score_points_outwards(name: str, term: str, restricted: bool) -> None:
    ours = fitted(study(name), restricted=restricted)
    assert ours.variances[term] == 0.0
    assert criterion(ours.model, restricted, ours.gamma)[1][ours.terms.index(term)] > 0
    assert profiles.variance_interval(ours, term).low == 0.0


@pytest.mark.parametrize(("a", "b"), [(0.0, 1e-6), (1e4, -3.0), (-2.0, 1e5)])
def test_shifting_and_scaling_the_response_moves_results_along(a: float, b: float) -> None:
    data = unbalanced()
    before, after = fitted(data, restricted=True), fitted(Study(a + b * data.y, data.random, data.fixed, {}), restricted=True)
    # a response of 1e4 +- 0.06 has lost 1e-11 of its digits, and the components' relative precision is that of the differences
    for name, variance in before.variances.items():
        assert after.variances[name] == pytest.approx(b * b * variance, rel=1e-7)
    assert after.effects == pytest.approx([a + b * before.effects[0], *(b * before.effects[1:])], rel=1e-7)
    degrees = len(data.y) - len(before.effects)
    assert after.criterion == pytest.approx(before.criterion + 2 * degrees * np.log(abs(b)), rel=1e-8)


def test_order_of_rows_and_names_of_labels_change_nothing() -> None:
    data = unbalanced()
    order = np.random.default_rng(0).permutation(len(data.y))
    s, k = data.random["seed:k"]
    names = np.array([f"seed {label}" for label in s])[order]
    before = fitted(data, restricted=True)
    after = fit(data.y[order], {"seed": names, "seed:k": crossed(names, k[order])}, treatment_design(k[order]))
    assert list(after.variances.values()) == pytest.approx(list(before.variances.values()), rel=1e-9)
    assert after.effects == pytest.approx(before.effects, rel=1e-12)


def test_total_and_ratio_profiles_agree_with_the_variances_own() -> None:
    """At the fit the deviance is 0; at a limit of the ratio, and at a ratio of 0 or infinity, it is that of the constrained fit."""
    ours = fitted(unbalanced(), restricted=False)
    total, ratio = sum(ours.variances.values()), ours.variances["seed:k"] / ours.variances["seed"]
    assert profiles.total_deviance(ours)(total) == pytest.approx(0, abs=1e-9)
    of_ratio = profiles.ratio_deviance(ours, "seed:k", "seed")
    assert of_ratio(ratio) == pytest.approx(0, abs=1e-9)
    assert of_ratio(0.0) == pytest.approx(profiles.variance_deviance(ours, "seed:k")(0.0), abs=1e-8)
    assert of_ratio(np.inf) == pytest.approx(profiles.variance_deviance(ours, "seed")(0.0), abs=1e-8)
    for limits, deviance in (
        (profiles.total_interval(ours), profiles.total_deviance(ours)),
        (profiles.ratio_interval(ours, "seed:k", "seed"), profiles.ratio_deviance(ours, "seed:k", "seed")),
    ):
        assert [deviance(limit) for limit in limits] == pytest.approx([QUANTILE] * 2, abs=1e-8)


def test_a_ratio_whose_lower_variance_may_be_zero_is_unbounded() -> None:
    rng = np.random.default_rng(2)
    seed, k, _ = (labels.ravel() for labels in np.indices((5, 4, 2)))
    y = rng.standard_normal((5, 4))[seed, k] + 0.1 * rng.standard_normal(40)
    limits = profiles.ratio_interval(fit(y, {"seed": seed, "seed:k": crossed(seed, k)}), "seed:k", "seed")
    assert limits.is_unbounded and limits.low > 0


def test_what_cannot_be_fitted_is_refused_by_name() -> None:
    group, y = np.repeat(np.arange(4), 3), np.arange(12.0) ** 2
    with pytest.raises(ValueError, match="1 of 12 values are not finite"):
        fit(np.append(y[:-1], np.nan), {"group": group})
    with pytest.raises(ValueError, match="all values are equal"):
        fit(np.ones(12), {"group": group})
    with pytest.raises(ValueError, match="a level for every row"):
        fit(y, {"row": np.arange(12)})
    with pytest.raises(ValueError, match="a and b group the rows alike"):
        fit(y, {"a": group, "b": group + 7})
    with pytest.raises(ValueError, match="leave group out"):
        fit(y, {"group": group}, treatment_design(group))
    with pytest.raises(ValueError, match="does not span the constant"):
        fit(y, {"group": group}, np.arange(12.0)[:, np.newaxis])
    with pytest.raises(ValueError, match="depend on each other"):
        fit(y, {"group": group}, np.ones((12, 2)))
    with pytest.raises(ValueError, match="no residual variation"):
        fit(group**2.0, {"group": group})
    with pytest.raises(ValueError, match="y has 12 values"):
        fit(y, {"group": group[:-1]})
    with pytest.raises(ValueError, match="give at least one"):
        fit(y, {})
    with pytest.raises(ValueError, match="no fixed effects"):
        profiles.effect_interval(fit(y, {"group": group}), 0)
    with pytest.raises(KeyError, match="seed"):
        profiles.variance_interval(fit(y, {"group": group}), "seed")


def test_treatment_design_has_an_intercept_and_differences_to_the_first_label() -> None:
    assert treatment_design(["b", "a", "c", "b"]).tolist() == [[1, 1, 0], [1, 0, 0], [1, 0, 1], [1, 1, 0]]
    assert group_codes([8, 2, 4, 2]).tolist() == [2, 0, 1, 0]
