"""Simulated type I error of the tests that a verdict rests on, from fixed generators.

The sizes to expect, from 400,000 sweeps a case: paired t .050 and lambda .046 (S = 3) to .049 (S = 8) under equal noise, .029-.035 and the
same .046-.049 where the noise scale differs tenfold between seeds. In 5000 sweeps a rate has a standard error of .0031, so that
.05 +- .015 is missed beyond 3.4 of them and .065 beyond 5.
"""

import numpy as np
import pytest
from scipy import stats

from accum_sweeps.analysis.components import balanced
from accum_sweeps.analysis.dispersion import lambda_test
from accum_sweeps.analysis.divergence import divergence_tests
from accum_sweeps.analysis.paired import paired_shift
from accum_sweeps.analysis.sign_flip import sign_flip_p

SWEEPS = 5000
ARMS = 4


def rejections(seeds: int, scale_spread: float) -> tuple[float, float]:
    """Rates at which the paired t test of one arm and the lambda test of all reject at .05 where nothing but rounding is there."""
    generator = np.random.default_rng(seeds)
    scale = np.exp(np.log(scale_spread) * (generator.random((SWEEPS, seeds, 1)) - 0.5))
    level = generator.standard_normal((SWEEPS, seeds, 1))
    runs, controls = (level + scale * generator.standard_normal((SWEEPS, seeds, ARMS)) for _ in range(2))
    shift_p = [paired_shift(y[:, 1] - y[:, 0]).p for y in runs]
    lambda_p = [lambda_test(y[:, 1:], c[:, 1:]).p for y, c in zip(runs, controls, strict=True)]
    return float(np.mean(np.array(shift_p) <= 0.05)), float(np.mean(np.array(lambda_p) <= 0.05))


@pytest.mark.parametrize("seeds", [3, 5, 8])
def test_paired_t_and_lambda_have_their_size(seeds: int) -> None:
    assert rejections(seeds, 1.0) == pytest.approx((0.05, 0.05), abs=0.015)


@pytest.mark.parametrize("seeds", [3, 5, 8])
def test_paired_t_and_lambda_bear_noise_that_differs_between_seeds(seeds: int) -> None:
    assert max(rejections(seeds, 10.0)) <= 0.065


def gated_rejections(seeds: int, growth: float, sweeps: int = 2000) -> tuple[float, float]:
    """Rate at which the gate lets the F test of seed:k be made, and at which that then rejects; rerun SD grows ``growth``-fold over k."""
    generator = np.random.default_rng(seeds)
    scale = np.geomspace(1, growth, ARMS)[:, np.newaxis]
    tables = generator.standard_normal((sweeps, seeds, 1, 1)) + scale * generator.standard_normal((sweeps, seeds, ARMS, 3))
    made = [test for test in (balanced(y).seed_k_test for y in tables) if test is not None]
    return len(made) / sweeps, sum(test.p <= 0.05 for test in made) / max(1, len(made))


@pytest.mark.parametrize("seeds", [3, 5, 8])
def test_the_exact_f_test_has_its_size_where_the_gate_lets_it_be_made(seeds: int) -> None:
    made, rejected = gated_rejections(seeds, 1.0)
    assert made >= 0.93 and rejected == pytest.approx(0.05, abs=0.015)


def test_the_gate_stops_the_f_test_where_rerun_noise_grows_with_k() -> None:
    assert gated_rejections(8, 3.0, 400)[0] <= 0.45 and gated_rejections(8, 6.0, 400)[0] <= 0.05


def test_a_pooled_ratio_of_variances_would_not() -> None:
    """Unequal noise once more, by the F ratio of variances pooled over seeds, which the lambda test stands in for."""
    generator, seeds, sweeps = np.random.default_rng(0), 5, 2000
    scale = np.exp(np.log(10) * (generator.random((sweeps, seeds, 1)) - 0.5))
    above, below = ((scale * generator.standard_normal((sweeps, seeds, ARMS - 1))).var(axis=2, ddof=1).sum(axis=1) for _ in range(2))
    degrees = seeds * (ARMS - 2)
    assert (above / below > stats.f.ppf(0.95, degrees, degrees)).mean() >= 0.08


@pytest.mark.parametrize("probability", [0.1, 0.5])
@pytest.mark.parametrize("seeds", [8, 20])
def test_mcnemar_keeps_below_its_size(probability: float, seeds: int) -> None:
    generator = np.random.default_rng(seeds)
    p = []
    for _ in range(SWEEPS):
        diverged = generator.random((seeds, 2)) < probability
        p.append(divergence_tests(diverged, ~diverged, 0)[0].p)
    assert np.mean(np.array(p) <= 0.05) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / SWEEPS)


@pytest.mark.parametrize("family", [1, 7])
def test_sign_flip_keeps_below_its_size(family: int) -> None:
    generator, alpha = np.random.default_rng(family), 0.05 / family
    p = [sign_flip_p(generator.standard_normal(9) * generator.exponential(1, 9), family=family) for _ in range(SWEEPS)]
    assert np.mean(np.array(p) <= alpha) <= alpha + 3 * np.sqrt(alpha * (1 - alpha) / SWEEPS)


def test_sign_flip_with_drawn_assignments_keeps_below_its_size() -> None:
    generator, sweeps = np.random.default_rng(0), 1000
    p = [sign_flip_p(generator.standard_normal(18), generator=generator, draws=199) for _ in range(sweeps)]
    assert np.mean(np.array(p) <= 0.05) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / sweeps)


def test_tests_see_what_is_there() -> None:
    generator = np.random.default_rng(0)
    level = generator.standard_normal((300, 8, 1))
    runs, controls = generator.standard_normal((2, 300, 8, ARMS - 1))
    lambda_p = [lambda_test(level[i] + 4 * runs[i], level[i] + controls[i]).p for i in range(300)]
    shift_p = [paired_shift(2 + differences[:, 0]).p for differences in runs]
    for p in (lambda_p, shift_p):
        assert np.mean(np.array(p) <= 0.05) >= 0.9
