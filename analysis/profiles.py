"""Profile-likelihood intervals for what analysis.reml fits: variances, their total and ratios, fixed effects.

A deviance here is how far the criterion rises when one quantity is set to a value and all else is fitted anew. An interval holds
the values whose deviance is at most the chi-square quantile with one degree of freedom: Venzon, D. J. and Moolgavkar, S. H. (1988),
Applied Statistics 37, 87-94. Of an ML fit they are lme4's intervals, on the variance scale.
"""

from collections.abc import Callable
from functools import cache

import numpy as np
from scipy.optimize import brentq
from scipy.special import chdtri

from accum_sweeps.analysis.bounded import Objective, minimise
from accum_sweeps.analysis.mean_squares import Floats
from accum_sweeps.analysis.mls import LEVEL, Interval
from accum_sweeps.analysis.reml import LARGEST, RESIDUAL, Fit, criterion, profiled, rows_per_level

# A minimum's value is off by the square of what is left of the gradient, over twice the curvature: 1e-10 where that is .005.
GRADIENT = 1e-6

Deviance = Callable[[float], float]

RESIDUAL_ROOM = 40.0  # log of how far below its estimate the residual variance may fall when another one is set
LEVEL_RISE, LEVEL_STEPS = 1e-8, 4  # a deviance that rises less than this over so many steps has reached its asymptote


def variance_deviance(fit: Fit, name: str) -> Deviance:
    """Of one variance >= 0 (> 0 for the residual) in squared units of the response; KeyError if ``name`` is not in fit.variances."""
    if name == RESIDUAL:
        return _over_gamma(fit, lambda value, gamma: (value, np.zeros(len(gamma))))
    return _held_variance(fit, _position(fit, name))


def total_deviance(fit: Fit) -> Deviance:
    """Of the sum of all variances, the residual's included."""
    return _over_gamma(fit, lambda value, gamma: (value / (1 + np.sum(gamma)), np.full(len(gamma), -1 / (1 + np.sum(gamma)))))


def ratio_deviance(fit: Fit, above: str, below: str) -> Deviance:
    """Of the ratio >= 0 of a variance, the residual's too, to a random term's; infinity sets the one ``below`` to 0.

    KeyError for an unknown name.
    """
    j, i = _position(fit, below), None if above == RESIDUAL else _position(fit, above)
    sizes, others = rows_per_level(fit.model), [t for t in range(len(fit.terms)) if t not in (i, j)]
    solve = _Solver(fit)

    def deviance(ratio: float) -> float:
        held, loading, scales = np.zeros(len(sizes)), np.zeros((len(sizes), len(others))), others
        loading[others, np.arange(len(others))] = 1.0
        if i is None and ratio == 0:
            return np.inf
        if i is None:
            held[j] = 1 / ratio
        else:  # one parameter for both: the larger variance is it, the smaller its fraction
            pair = np.zeros((len(sizes), 1))
            pair[i, 0], pair[j, 0] = (1.0, 1 / ratio) if ratio > 1 else (ratio, 1.0)
            loading, scales = np.hstack([pair, loading]), [i if ratio > 1 else j, *others]

        def objective(u: Floats) -> tuple[float, Floats]:
            value, by_gamma, _ = criterion(fit.model, fit.restricted, held + loading @ (np.expm1(u) / sizes[scales]))
            return value, (loading.T @ by_gamma) * np.exp(u) / sizes[scales]

        return solve(objective, np.log1p(fit.gamma[scales] * sizes[scales]), 0.0)

    return deviance


def effect_deviance(fit: Fit, column: int) -> Deviance:
    """Of one fixed effect in units of the response; ValueError for a REML fit, whose likelihood knows no fixed effects."""
    if fit.restricted:
        raise ValueError("the restricted likelihood knows no fixed effects; fit with restricted=False")
    solve, start = _Solver(fit), np.log1p(fit.gamma * rows_per_level(fit.model))

    def deviance(value: float) -> float:
        scaled = (value - fit.shift[column]) / fit.scale
        return solve(profiled(fit.model.less(scaled * fit.model.fixed[:, column], column), False), start, 0.0)

    return deviance


def variance_interval(fit: Fit, name: str, level: float = LEVEL) -> Interval:
    """Of one variance; low is exactly 0.0 where 0 is inside. KeyError for an unknown name."""
    deviance, estimate = variance_deviance(fit, name), fit.variances[name]
    return _interval(deviance, estimate, fit.variances[RESIDUAL], level, has_zero=name != RESIDUAL)


def total_interval(fit: Fit, level: float = LEVEL) -> Interval:
    """Of the sum of all variances."""
    total = sum(fit.variances.values())
    return _interval(total_deviance(fit), total, total, level, has_zero=False)


def ratio_interval(fit: Fit, above: str, below: str, level: float = LEVEL) -> Interval:
    """Of the ratio of a variance, the residual's too, to a random term's; high is infinity where the one ``below`` may be 0.

    [0, infinity] where both are estimated as 0, for then any ratio fits as well. KeyError for an unknown name.
    """
    deviance, quantile = ratio_deviance(fit, above, below), _quantile(level)
    numerator, denominator = fit.variances[above], fit.variances[below]
    if numerator == 0 and denominator == 0:
        return Interval(0.0, np.inf)
    start = numerator / denominator if numerator > 0 and denominator > 0 else 1.0
    low = 0.0 if deviance(0.0) <= quantile else _limit(deviance, quantile, start, 0.5, inwards=2.0)
    high = np.inf if deviance(np.inf) <= quantile else _limit(deviance, quantile, start, 2.0, inwards=0.5)
    return Interval(low, high)


def effect_interval(fit: Fit, column: int, level: float = LEVEL) -> Interval:
    """Of one fixed effect; ValueError for a REML fit."""
    deviance, error, center = effect_deviance(fit, column), float(fit.standard_errors[column]), float(fit.effects[column])
    below = _limit(lambda distance: deviance(center - distance), _quantile(level), error, 2.0, inwards=0.5)
    above = _limit(lambda distance: deviance(center + distance), _quantile(level), error, 2.0, inwards=0.5)
    return Interval(center - below, center + above)


class _Solver:
    """Minimises over all that is not set, each time from where it last ended; what it gives is the rise above the fit's criterion."""

    def __init__(self, fit: Fit) -> None:
        self.lowest = criterion(fit.model, fit.restricted, fit.gamma)[0]
        self.last: Floats | None = None

    def __call__(self, objective: Objective, start: Floats, lower: Floats | float) -> float:
        known = start if self.last is None or len(self.last) != len(start) else self.last
        self.last, value = minimise(objective, known, lower, LARGEST, GRADIENT)
        return value - self.lowest


def _held_variance(fit: Fit, term: int) -> Deviance:
    """One term's variance set: over log sigma2 and u of the other terms."""
    sizes, residual = rows_per_level(fit.model), fit.variances[RESIDUAL] / fit.scale**2
    free = [i for i in range(len(sizes)) if i != term]
    start = np.concatenate([[np.log(residual)], np.log1p(fit.gamma * sizes)[free]])
    # Far below its estimate the residual variance is no candidate any more, and a step of the search down there would end at 0.
    solve, lower = _Solver(fit), np.concatenate([[start[0] - RESIDUAL_ROOM], np.zeros(len(free))])

    def deviance(variance: float) -> float:
        def objective(x: Floats) -> tuple[float, Floats]:
            gamma = np.zeros(len(sizes))
            gamma[free] = np.expm1(x[1:]) / sizes[free]
            gamma[term] = variance / fit.scale**2 / np.exp(x[0])
            value, by_gamma, by_log_sigma2 = criterion(fit.model, fit.restricted, gamma, float(np.exp(x[0])))
            by_u = by_gamma[free] * np.exp(x[1:]) / sizes[free]
            return value, np.concatenate([[by_log_sigma2 - gamma[term] * by_gamma[term]], by_u])

        return solve(objective, start, lower)

    return deviance


def _over_gamma(fit: Fit, sigma2: Callable[[float, Floats], tuple[float, Floats]]) -> Deviance:
    """Over u of all terms, where ``sigma2`` (value, gamma) gives the residual variance and d log sigma2 / d gamma."""
    sizes, solve = rows_per_level(fit.model), _Solver(fit)
    start = np.log1p(fit.gamma * sizes)

    def deviance(value: float) -> float:
        def objective(u: Floats) -> tuple[float, Floats]:
            gamma = np.expm1(u) / sizes
            variance, slope = sigma2(value / fit.scale**2, gamma)
            result, by_gamma, by_log_sigma2 = criterion(fit.model, fit.restricted, gamma, float(variance))
            return result, (by_gamma + by_log_sigma2 * slope) * np.exp(u) / sizes

        return solve(objective, start, 0.0)

    return deviance


def _interval(deviance: Deviance, estimate: float, unit: float, level: float, *, has_zero: bool) -> Interval:
    quantile, start = _quantile(level), estimate if estimate > 0 else unit
    reaches_zero = has_zero and (estimate == 0 or deviance(0.0) <= quantile)
    low = 0.0 if reaches_zero else _limit(deviance, quantile, start, 0.5, inwards=2.0)
    return Interval(low, _limit(deviance, quantile, start, 2.0, inwards=0.5))


def _limit(deviance: Deviance, quantile: float, start: float, factor: float, *, inwards: float) -> float:
    """Where ``deviance`` reaches ``quantile``, from ``start`` in steps of ``factor``; infinity (up) or 0 (down) where it does not.

    Solved for the root of the deviance over the logarithm, which is nearly a straight line. A start that is outside already,
    because the estimate itself is 0 or infinite, first moves ``inwards``.
    """

    @cache
    def excess(log_value: float) -> float:
        return float(np.sqrt(max(deviance(float(np.exp(log_value))), 0.0)) - np.sqrt(quantile))

    inside, step = float(np.log(start)), float(np.log(factor))
    while excess(inside) > 0:
        inside += float(np.log(inwards))
    level = 0
    for _ in range(100):
        if excess(inside + step) > 0:
            return float(np.exp(brentq(excess, inside, inside + step, xtol=1e-10, rtol=1e-12)))
        level = level + 1 if abs(excess(inside + step) - excess(inside)) < LEVEL_RISE else 0
        if level == LEVEL_STEPS:  # where the data say nothing the deviance stays as it is
            break
        inside += step
    return np.inf if factor > 1 else 0.0


def _quantile(level: float) -> float:
    return float(chdtri(1, 1 - level))


def _position(fit: Fit, name: str) -> int:
    if name not in fit.terms:
        raise KeyError(name)
    return fit.terms.index(name)
