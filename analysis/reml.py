"""Variance components by (restricted) maximum likelihood for unbalanced and crossed designs.

Shapes: n rows, p fixed effects, m random terms. The response is shifted, centred and scaled before anything is computed, so results
follow y -> a + b y. The boundary is exact: a component is 0.0 where the score there says that the likelihood falls inwards.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from accum_sweeps.analysis.bounded import Objective, minimise
from accum_sweeps.analysis.mean_squares import Floats, group_codes, shifted
from accum_sweeps.analysis.mixed_model import MixedModel, reduce_to_cells

RESIDUAL = "residual"
# log(1 + gamma n / levels) beyond which the residual is rounding only.
LARGEST = 60.0
# A score at 0 whose component would be smaller than this, relative to what the data could resolve, is the rounding of a score of 0.
SCORE_ROUNDING = 1e-11


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A fitted mixed model in the response's units.

    ``variances`` holds each random term's component and, last, ``residual``; ``effects``, ``standard_errors`` (p,) belong to the
    columns of the fixed design. ``criterion`` is -2 log likelihood, restricted or not, as lme4's REMLcrit and deviance.
    """

    restricted: bool
    variances: dict[str, float]
    effects: Floats
    standard_errors: Floats
    criterion: float
    model: MixedModel
    scale: float
    shift: Floats  # (p,): what centring took from the effects

    @property
    def terms(self) -> list[str]:
        return [name for name in self.variances if name != RESIDUAL]

    @property
    def gamma(self) -> Floats:
        """Each term's variance relative to the residual's, (m,)."""
        return np.array([self.variances[name] / self.variances[RESIDUAL] for name in self.terms])


def fit(y: ArrayLike, random: Mapping[str, ArrayLike], fixed: ArrayLike | None = None, *, restricted: bool = True) -> Fit:
    """Fit y = X b + sum_i Z_i u_i + e to ``y`` (n,).

    ``random``: by name the labels (n,) whose levels draw one effect each; an interaction's are mean_squares.crossed(a, b).
    ``fixed``: X (n, p), its columns spanning the constant; a column of ones if None. REML by default, ML with restricted=False.

    ValueError: values not finite or all equal, shapes that disagree, X of deficient rank or without the constant, a term that
    cannot be told from the residual (a level for every row), from another term or from X, or no residual variation at all.
    Patterson, H. D. and Thompson, R. (1971), Biometrika 58, 545-554; criterion as in Bates, Maechler, Bolker and Walker (2015),
    Journal of Statistical Software 67(1), equations 34 and 41.
    """
    centred = shifted(y)
    design = np.ones((len(centred), 1)) if fixed is None else np.asarray(fixed, dtype=np.float64)
    constant = _constant(design, len(centred))
    first, mean = float(np.asarray(y, dtype=np.float64).flat[0]), float(np.mean(centred))
    centred = centred - mean
    scale = float(np.sqrt(np.mean(centred**2)))
    if scale == 0:
        raise ValueError("all values are equal: there is no variance to divide")
    labels = _labels(random, len(centred))
    model = reduce_to_cells(centred / scale, design, list(labels.values()))
    _check_terms(model, list(labels))
    best = _best(model, restricted)
    if np.max(best) >= LARGEST - 1:
        raise ValueError("the random terms leave no residual variation: fit one row per cell, without the finest term")
    gamma = np.expm1(best) / rows_per_level(model)
    found = model.likelihood(gamma, restricted=restricted)
    degrees = _degrees(model, restricted)
    residual = found.quadratic / degrees
    variances = {name: float(g * residual * scale**2) for name, g in zip([*labels, RESIDUAL], [*gamma, 1.0], strict=True)}
    return Fit(
        restricted=restricted,
        variances=variances,
        effects=found.effects * scale + (first + mean) * constant,
        standard_errors=np.sqrt(np.diag(found.covariance) * residual) * scale,
        criterion=criterion(model, restricted, gamma)[0] + degrees * 2 * np.log(scale),
        model=model,
        scale=scale,
        shift=(first + mean) * constant,
    )


def treatment_design(labels: ArrayLike) -> Floats:
    """X (n, K) of an intercept for the first of K sorted ``labels`` (n,) and each other label's difference to it, as R codes it."""
    codes = group_codes(labels)
    design = np.asarray(codes[:, np.newaxis] == np.arange(codes.max() + 1), dtype=np.float64)
    design[:, 0] = 1.0
    return design


def criterion(model: MixedModel, restricted: bool, gamma: Floats, sigma2: float | None = None) -> tuple[float, Floats, float]:
    """-2 log (restricted) likelihood and its derivatives by gamma (m,) and by log sigma2; at the best sigma2 if that is None."""
    found, degrees = model.likelihood(gamma, restricted=restricted), _degrees(model, restricted)
    variance = found.quadratic / degrees if sigma2 is None else sigma2
    value = found.logdet + degrees * np.log(2 * np.pi * variance) + found.quadratic / variance
    return float(value), found.traces - found.squares / variance, degrees - found.quadratic / variance


def profiled(model: MixedModel, restricted: bool) -> Objective:
    """The criterion at the best sigma2 as a function of u (m,), log(1 + gamma n / levels): linear near 0, logarithmic far away."""
    sizes = rows_per_level(model)

    def objective(u: Floats) -> tuple[float, Floats]:
        value, by_gamma, _ = criterion(model, restricted, np.expm1(u) / sizes)
        return value, by_gamma * np.exp(u) / sizes

    return objective


def rows_per_level(model: MixedModel) -> Floats:
    """Mean number of rows of each term's levels, (m,)."""
    return np.array([model.rows / model.levels(i) for i in range(len(model.codes))])


def _degrees(model: MixedModel, restricted: bool) -> int:
    return model.rows - (model.fixed.shape[1] if restricted else 0)


def _best(model: MixedModel, restricted: bool) -> Floats:
    """The best u from several starts, with every component that the score holds at 0 set to exactly 0."""
    objective = profiled(model, restricted)
    terms, rounding = len(model.codes), SCORE_ROUNDING * model.rows
    found = [minimise(objective, np.full(terms, u), 0.0, LARGEST) for u in (0.0, 1.0, 5.0)]
    x, value = min(found, key=lambda pair: pair[1])
    for i in np.argsort(x):
        if x[i] == 0:
            continue
        upper = np.where((np.arange(terms) == i) | (x == 0), 0.0, LARGEST)
        face, face_value = minimise(objective, np.minimum(x, upper), 0.0, upper)
        if objective(face)[1][i] >= -rounding and face_value <= value + rounding:
            x, value = face, face_value
    return x


def _labels(random: Mapping[str, ArrayLike], rows: int) -> dict[str, "np.ndarray[tuple[int], np.dtype[np.intp]]"]:
    if not random or RESIDUAL in random:
        raise ValueError(f"random terms are {sorted(random)}: give at least one, none of them called {RESIDUAL!r}")
    codes = {name: group_codes(labels) for name, labels in random.items()}
    wrong = {name: len(code) for name, code in codes.items() if len(code) != rows}
    if wrong:
        raise ValueError(f"y has {rows} values, the labels have {wrong}")
    return codes


def _constant(design: Floats, rows: int) -> Floats:
    """The coefficients (p,) that make X the constant 1."""
    if design.ndim != 2 or len(design) != rows:
        raise ValueError(f"y has {rows} values, the fixed design has shape {design.shape}")
    if np.linalg.matrix_rank(design) < design.shape[1]:
        raise ValueError("the columns of the fixed design depend on each other: leave out what the others say, or an arm without a value")
    coefficients = np.linalg.lstsq(design, np.ones(rows), rcond=None)[0]
    if not np.allclose(design @ coefficients, 1.0, atol=1e-9):
        raise ValueError("the fixed design does not span the constant: add a column of ones")
    return np.asarray(coefficients)


def _check_terms(model: MixedModel, names: Sequence[str]) -> None:
    """Every term must differ from the residual, from the other terms and from the fixed effects."""
    for i, name in enumerate(names):
        if model.levels(i) == model.rows:
            raise ValueError(f"{name} has a level for every row, as the residual has: leave it out, the residual holds both")
        for j in range(i):
            if np.array_equal(model.codes[i], model.codes[j]):
                raise ValueError(f"{names[j]} and {name} group the rows alike: leave one out")
    traces = model.likelihood(np.zeros(len(names)), restricted=True).traces
    for name, trace in zip(names, traces, strict=True):
        if trace < 1e-9 * model.rows:
            raise ValueError(f"the fixed effects say all that {name} could: leave {name} out")
