"""Mean squares of one-way and two-way layouts, their exact F tests, and the gate for equal variances: pure functions on arrays.

Shapes: S seeds (rows), K accumulation factors (columns), R replicates; n values in G groups. The first value is subtracted before
anything is summed, so that leading digits all values share cost no precision.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import fdtrc

from accum_sweeps.plan.words import counted

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class MeanSquare:
    """A mean square ``value`` (squared unit of the response) on ``df`` degrees of freedom."""

    value: float
    df: int


@dataclass(frozen=True, kw_only=True)
class FTest:
    """An F statistic with its degrees of freedom and upper-tail p value; NaN where both mean squares are 0."""

    statistic: float
    df: tuple[int, int]
    p: float


def f_test(above: MeanSquare, below: MeanSquare) -> FTest:
    """Exact F test of ``above`` against ``below``: independent multiples of chi-squares whose expectations agree under the null.

    Searle, Casella and McCulloch (1992), Variance Components, sections 4.2-4.5.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        statistic = float(np.float64(above.value) / np.float64(below.value))
    return FTest(statistic=statistic, df=(above.df, below.df), p=float(fdtrc(above.df, below.df, statistic)))


@dataclass(frozen=True, kw_only=True)
class OneWay:
    """Analysis of variance of G groups; ``group_size`` is the effective number of values per group, (n - sum n_g^2 / n) / (G - 1)."""

    between: MeanSquare
    within: MeanSquare
    group_size: float

    @property
    def test(self) -> FTest:
        return f_test(self.between, self.within)

    @property
    def r2(self) -> float:
        """Share of the total sum of squares that lies between groups; NaN where all values are equal."""
        between, within = self.between.value * self.between.df, self.within.value * self.within.df
        return between / (between + within) if between + within > 0 else np.nan


def one_way(y: ArrayLike, group: ArrayLike) -> OneWay:
    """One-way analysis of variance of ``y`` (n,) by ``group`` (n,) of any labels, equal group sizes or not.

    Raises ValueError for non-finite values, fewer than two groups, or no group with two values.
    """
    values, codes = shifted(y), group_codes(group)
    sizes = np.bincount(codes)
    if len(sizes) < 2 or len(values) == len(sizes):
        there = f"{counted(len(values), 'value')} in {counted(len(sizes), 'group')}"
        raise ValueError(f"{there}: a one-way layout needs two groups, and one of them with two values")
    ordered = values[np.argsort(codes, kind="stable")]
    parts = np.split(ordered, np.cumsum(sizes)[:-1])
    means = np.array([np.mean(part) for part in parts])
    between = float(np.sum(sizes * (means - np.mean(ordered)) ** 2))
    within = float(np.sum((ordered - np.repeat(means, sizes)) ** 2))
    degrees = len(sizes) - 1
    return OneWay(
        between=MeanSquare(value=between / degrees, df=degrees),
        within=MeanSquare(value=within / (len(values) - len(sizes)), df=len(values) - len(sizes)),
        group_size=float((len(values) - np.sum(sizes**2) / len(values)) / degrees),
    )


@dataclass(frozen=True, kw_only=True)
class TwoWay:
    """Mean squares of a balanced two-way layout of S rows, K columns and R values per cell.

    ``within`` is None with one value per cell: then ``interaction`` holds interaction and rerun noise together.
    """

    shape: tuple[int, int, int]
    rows: MeanSquare
    columns: MeanSquare
    interaction: MeanSquare
    within: MeanSquare | None

    def pooled(self) -> MeanSquare:
        """Interaction and within cells as one mean square: the residual of a layout without interaction."""
        if self.within is None:
            return self.interaction
        df = self.interaction.df + self.within.df
        return MeanSquare(value=(self.interaction.value * self.interaction.df + self.within.value * self.within.df) / df, df=df)


def two_way(y: ArrayLike) -> TwoWay:
    """Mean squares of ``y`` (S, K, R), all finite, S >= 2, K >= 2, R >= 1; ValueError otherwise."""
    values = np.asarray(y, dtype=np.float64)
    if values.ndim != 3 or min(values.shape[:2], default=0) < 2 or values.shape[-1] < 1:
        raise ValueError(f"y has shape {values.shape}; a two-way layout is (rows >= 2, columns >= 2, replicates >= 1)")
    values = shifted(values)
    s, k, r = values.shape
    apart = values - values[:, :, :1]  # exactly 0 where a cell's values are equal, and then so is their spread
    cells, within = values[:, :, 0] + apart.mean(axis=2), np.sum((apart - apart.mean(axis=2, keepdims=True)) ** 2)
    rows, columns, grand = cells.mean(axis=1, keepdims=True), cells.mean(axis=0, keepdims=True), cells.mean()
    return TwoWay(
        shape=(s, k, r),
        rows=_mean_square(k * r * np.sum((rows - grand) ** 2), s - 1),
        columns=_mean_square(s * r * np.sum((columns - grand) ** 2), k - 1),
        interaction=_mean_square(r * np.sum((cells - rows - columns + grand) ** 2), (s - 1) * (k - 1)),
        within=_mean_square(within, s * k * (r - 1)) if r > 1 else None,
    )


def brown_forsythe(y: ArrayLike, group: ArrayLike) -> FTest:
    """Test for equal spread: one-way F on the absolute deviations of ``y`` (n,) from the median of their ``group`` (n,).

    Brown, M. B. and Forsythe, A. B. (1974), Journal of the American Statistical Association 69, 364-367. ValueError as one_way.
    """
    return one_way(np.abs(_from_medians(shifted(y), group_codes(group))), group).test


def equal_rerun_variance(y: ArrayLike, seed: ArrayLike, k: ArrayLike) -> FTest:
    """The gate for the exact F test of seed:k: Brown-Forsythe over ``k`` on deviations of ``y`` from their cell's median; all of one shape.

    The F test keeps its size only while the rerun variance is the same for every k. ValueError as one_way.
    """
    values, seeds, factors = shifted(y).ravel(), np.ravel(seed), np.ravel(k)
    return brown_forsythe(_from_medians(values, crossed(seeds, factors)), factors)


def shifted(y: ArrayLike) -> Floats:
    """``y`` as float64 less its first value; ValueError where empty or not finite."""
    values = np.asarray(y, dtype=np.float64)
    if values.size == 0 or not np.isfinite(values).all():
        raise ValueError(f"{int(np.sum(~np.isfinite(values)))} of {values.size} values are not finite; leave them out first")
    return np.asarray(values - values.flat[0])


def group_codes(labels: ArrayLike) -> NDArray[np.intp]:
    """Labels (n,) as integers 0 .. G-1 in the labels' sorted order."""
    return np.asarray(np.unique(np.asarray(labels), return_inverse=True)[1], dtype=np.intp)


def crossed(*labels: ArrayLike) -> NDArray[np.intp]:
    """One integer label (n,) for each combination of ``labels`` (n,) that occurs, in their sorted order."""
    return group_codes(np.unique(np.column_stack([group_codes(label) for label in labels]), axis=0, return_inverse=True)[1])


def _from_medians(values: Floats, codes: NDArray[np.intp]) -> Floats:
    order = np.argsort(codes, kind="stable")
    parts = np.split(values[order], np.cumsum(np.bincount(codes))[:-1])
    return np.asarray(values - np.array([np.median(part) for part in parts])[codes])


def _mean_square(total: float, df: int) -> MeanSquare:
    return MeanSquare(value=float(total) / df, df=df)
