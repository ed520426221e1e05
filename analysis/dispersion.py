"""Does accumulation vary more than rounding does, and move runs further? Pure functions on arrays; the definitions are this project's own.

Shapes: S seeds, C = K - 1 accumulated arms. ``accumulated`` and ``controls`` are float64 (S, C) in the response's unit, column by
column the same k; NaN or infinite where a run has no finished value.
"""

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import chdtri, stdtr

from accum_sweeps.analysis.paired import LEVEL, Floats, paired_shift
from accum_sweeps.plan.words import counted

MIN_ARMS = 2  # a variance over accumulated arms needs two of them: K >= 3
MIN_SEEDS = 3
STEP = 1 / 16  # of the integral in expected_log_ratio: half of it changes nothing above rounding


@dataclass(frozen=True, kw_only=True)
class Dispersion:
    """``ratio`` estimates a ratio of variances by its logarithm in each seed: of lambda_test or of excess_test.

    ``low`` and ``high`` are two-sided 95 % limits, ``upper`` is the one-sided 95 % limit, ``p`` belongs to the alternative ratio > 1.
    All are NaN where the test cannot be made; ``why_not`` then says why, else it is empty. ``seeds`` counts the seeds with every
    accumulated run and every control.
    """

    seeds: int
    ratio: float
    low: float
    high: float
    upper: float
    p: float
    why_not: str = ""

    @property
    def is_assessable(self) -> bool:
        """The test could be made."""
        return not self.why_not


def lambda_test(accumulated: ArrayLike, controls: ArrayLike) -> Dispersion:
    """One-sided t test on the mean over seeds of L_s = log var(accumulated[s]) - log var(controls[s]).

    lambda = exp(mean L), its limits from the t interval of L. The variances (divisor C - 1) are those of the raw values, not centred
    by k. Every seed counts once whatever its own noise scale is, which a pooled F ratio does not achieve: its size is .10-.17
    where scales differ. Where all accumulated runs of every seed are equal lambda is 0 and p is 1. Raises ValueError if the
    shapes differ: each accumulated arm needs a control of its own.
    """
    runs, twins = _matched(accumulated, controls)
    if runs.shape[1] < MIN_ARMS:
        return _not_assessable(0, f"{counted(runs.shape[1], 'accumulated arm')}, at least {MIN_ARMS} are needed (K >= {MIN_ARMS + 1})")
    complete = np.isfinite(runs).all(axis=1) & np.isfinite(twins).all(axis=1)
    seeds = int(complete.sum())
    if seeds < MIN_SEEDS:
        return _not_assessable(seeds, f"{counted(seeds, 'seed')} with all accumulated runs and controls, at least {MIN_SEEDS} are needed")
    above, below = row_variances(runs[complete]), row_variances(twins[complete])
    if (below == 0).any():
        return _not_assessable(seeds, f"the controls are identical in {int((below == 0).sum())} of {counted(seeds, 'seed')}")
    if (above == 0).all():
        return Dispersion(seeds=seeds, ratio=0.0, low=0.0, high=0.0, upper=0.0, p=1.0)
    if (above == 0).any():
        return _not_assessable(seeds, f"the accumulated runs are identical in {int((above == 0).sum())} of {counted(seeds, 'seed')}")
    return _tested(np.log(above) - np.log(below))


def excess_test(accumulated: ArrayLike, controls: ArrayLike, reference: ArrayLike) -> Dispersion:
    """Squared differences from the reference arm in units of those of the controls from their twins, by seed as in lambda_test.

    E_s = log sum_k (accumulated[s, k] - reference[s])^2 - log sum_k (controls[s, k] - accumulated[s, k])^2 - c; the excess is exp(mean E).
    It is 1 if arms differ by rounding alone. A real dependence on the micro-batch moves a run and its control of the same k alike, so
    that lambda, which compares their variances, stays at 1; the excess does not. c = ``expected_log_ratio`` allows for the arms'
    differences sharing the reference run. Where rounding itself depends on k (one batch in bf16) the excess is not 1 either, so it is
    no test of the verdict, only a limit. ``reference`` is float64 (S,); otherwise as lambda_test.
    """
    runs, twins = _matched(accumulated, controls)
    base = np.asarray(reference, dtype=np.float64)
    complete = np.isfinite(runs).all(axis=1) & np.isfinite(twins).all(axis=1) & np.isfinite(base)
    seeds = int(complete.sum())
    if seeds < MIN_SEEDS:
        return _not_assessable(seeds, f"{counted(seeds, 'seed')} with all runs and controls, at least {MIN_SEEDS} are needed")
    above = ((runs - base[:, np.newaxis])[complete] ** 2).sum(axis=1)
    below = ((twins - runs)[complete] ** 2).sum(axis=1)
    if (above == 0).all():
        return Dispersion(seeds=seeds, ratio=0.0, low=0.0, high=0.0, upper=0.0, p=1.0)
    if (above == 0).any() or (below == 0).any():
        return _not_assessable(seeds, f"runs are identical in {int(((above == 0) | (below == 0)).sum())} of {counted(seeds, 'seed')}")
    return _tested(np.log(above) - np.log(below) - expected_log_ratio(runs.shape[1]))


@functools.cache
def expected_log_ratio(arms: int) -> float:
    """E log sum_k (z_k - z_0)^2 - E log sum_k (u_k - v_k)^2 over ``arms`` terms, all letters independent standard normal.

    The first sum is chi2(arms - 1) + (arms + 1) chi2(1), the second 2 chi2(arms). By Frullani's integral E log Q is the integral over t
    of (exp(-t) - M(t)) / t, M(t) = E exp(-t Q): the difference needs no exp(-t).
    """
    # Over log t the integrand is smooth and vanishes at both ends: there the trapezoidal rule is exact to rounding.
    log_t = np.arange(-40, 80, STEP)
    t = np.exp(log_t)
    integrand = (1 + 4 * t) ** (-arms / 2) - (1 + 2 * t) ** (-(arms - 1) / 2) * (1 + 2 * (arms + 1) * t) ** -0.5
    return float(STEP * integrand.sum())


def _matched(accumulated: ArrayLike, controls: ArrayLike) -> tuple[Floats, Floats]:
    runs, twins = np.asarray(accumulated, dtype=np.float64), np.asarray(controls, dtype=np.float64)
    if runs.ndim != 2 or runs.shape != twins.shape:
        raise ValueError(f"accumulated {runs.shape} and controls {twins.shape}: both must be (seeds, arms), a control for each run")
    return runs, twins


def row_variances(y: Floats) -> Floats:
    """Variance of each row of ``y`` (S, C), divisor C - 1, exactly 0 where a row's values are equal; float64 (S,)."""
    return np.asarray(np.var(y - y[:, :1], axis=1, ddof=1))


def _not_assessable(seeds: int, why_not: str) -> Dispersion:
    return Dispersion(seeds=seeds, ratio=np.nan, low=np.nan, high=np.nan, upper=np.nan, p=np.nan, why_not=why_not)


def _tested(log_ratios: Floats) -> Dispersion:
    both_sides, one_side = paired_shift(log_ratios), paired_shift(log_ratios, 2 * LEVEL - 1)
    seeds, error = both_sides.pairs, both_sides.sd / np.sqrt(both_sides.pairs)
    without_spread = 0.0 if both_sides.mean > 0 else 1.0
    with np.errstate(over="ignore"):  # three seeds of very different ratios have no finite upper limit
        return Dispersion(
            seeds=seeds,
            ratio=float(np.exp(both_sides.mean)),
            low=float(np.exp(both_sides.low)),
            high=float(np.exp(both_sides.high)),
            upper=float(np.exp(one_side.high)),
            p=float(stdtr(seeds - 1, -both_sides.mean / error)) if error > 0 else without_spread,
        )


@dataclass(frozen=True, kw_only=True)
class PathVariance:
    """Variance of one run's response that is not its seed's, in the response's unit squared, on ``df`` degrees of freedom."""

    value: float
    df: int
    from_controls: bool

    def sd_upper_limit(self, level: float = 0.8) -> float:
        """One-sided upper limit of the path SD (chi-squared), in the response's unit; NaN without a degree of freedom."""
        return float(np.sqrt(self.value * self.df / chdtri(self.df, level))) if self.df else np.nan

    def share(self, sigma_tot: float) -> float:
        """The path share: this variance in units of sigma_tot^2, a point estimate; NaN unless sigma_tot is above 0."""
        return self.value / sigma_tot**2 if sigma_tot > 0 else np.nan


def path_variance(accumulated: ArrayLike, controls: ArrayLike) -> PathVariance:
    """Half the mean squared difference between a control and its uncontrolled twin, over all finite pairs.

    Two runs that differ by rounding alone have independent paths: E (c - y)^2 = 2 sigma2_path, whatever seed and k have in common.
    NaN without a pair. Raises ValueError if the shapes differ.
    """
    runs, twins = _matched(accumulated, controls)
    paired = np.isfinite(runs) & np.isfinite(twins)
    squares = (twins[paired] - runs[paired]) ** 2
    return PathVariance(value=float(squares.mean() / 2) if len(squares) else np.nan, df=len(squares), from_controls=True)


def path_variance_without_controls(y: ArrayLike) -> PathVariance:
    """The mean square of seed:k in ``y`` (S, K), one value a cell: sigma2_seed:k + sigma2_rerun.

    Sum of squared residuals of the two-way layout by (S - 1)(K - 1), over the seeds with a finite value in every arm; NaN with fewer
    than two of them or fewer than two arms.
    Searle, S. R., Casella, G., McCulloch, C. E. (1992), Variance Components, Wiley, chapter 4.
    """
    values = np.asarray(y, dtype=np.float64)
    values = values[np.isfinite(values).all(axis=1)]
    df = (values.shape[0] - 1) * (values.shape[1] - 1)
    if df < 1:
        return PathVariance(value=np.nan, df=0, from_controls=False)
    within = values - values[:, :1]  # equal arms leave exact zeros
    residuals = within - within.mean(axis=1, keepdims=True)
    residuals = residuals - residuals[:1]
    residuals = residuals - residuals.mean(axis=0)
    return PathVariance(value=float((residuals**2).sum() / df), df=df, from_controls=False)
