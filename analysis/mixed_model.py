"""The likelihood of a linear mixed model, its gradient by formula: pure functions on arrays.

y = X b + sum_i Z_i u_i + e, u_i ~ N(0, sigma2 gamma_i I), e ~ N(0, sigma2 I). Shapes: n rows, p fixed effects, m random terms,
C cells (rows that share every label and all of X), q levels of all terms that are coarser than a cell.

Replicates in a cell enter only through their mean and their sum of squares, a term with one level per cell only through the
diagonal of the cells' covariance, so that what is factored is q x q (Woodbury; Searle, Casella and McCulloch 1992, appendix M).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dpotrf, dpotri

from accum_sweeps.analysis.mean_squares import Floats, crossed

Codes = NDArray[np.intp]


@dataclass(frozen=True)
class Likelihood:
    """What the likelihood at one gamma (m,) is made of, per unit of sigma2.

    ``logdet`` is log|V| with, where restricted, log|X' V^-1 X| added; ``quadratic`` the residual sum of squares in the metric of
    V^-1; ``traces`` and ``squares`` (m,) are tr(P dV/dgamma) and y' P (dV/dgamma) P y, P being V^-1 where not restricted;
    ``effects`` (p,) and ``covariance`` (p, p) are of b.
    """

    logdet: float
    quadratic: float
    traces: Floats
    squares: Floats
    effects: Floats
    covariance: Floats


@dataclass(frozen=True)
class MixedModel:
    """Data reduced to cells. ``size``, ``mean`` (C,): values per cell and their mean; ``fixed`` (C, p); ``codes`` m of (C,)."""

    size: Floats
    mean: Floats
    within: float
    fixed: Floats
    codes: tuple[Codes, ...]

    @property
    def rows(self) -> int:
        return int(self.size.sum())

    def levels(self, term: int) -> int:
        return int(self.codes[term].max()) + 1

    @cached_property
    def cell_term(self) -> int | None:
        """The term with one level per cell, if there is one."""
        found = [i for i in range(len(self.codes)) if self.levels(i) == len(self.size)]
        return found[0] if found else None

    @cached_property
    def coarse(self) -> list[int]:
        return [i for i in range(len(self.codes)) if i != self.cell_term]

    @cached_property
    def offsets(self) -> Codes:
        """Where each coarse term's levels begin among all q of them; q last."""
        return np.concatenate([[0], np.cumsum([self.levels(i) for i in self.coarse])]).astype(np.intp)

    @cached_property
    def columns(self) -> Codes:
        """(coarse terms, C): each cell's level among all q."""
        rows = [self.codes[i] + self.offsets[j] for j, i in enumerate(self.coarse)]
        return np.array(rows, dtype=np.intp).reshape(len(self.coarse), len(self.size))

    def less(self, values: Floats, column: int) -> "MixedModel":
        """The model with ``values`` (C,) subtracted from the cells' means and one column of X left out."""
        return MixedModel(self.size, self.mean - values, self.within, np.delete(self.fixed, column, axis=1), self.codes)

    def to_levels(self, values: Floats) -> Floats:
        """Z' values: (C, j) summed by level, (q, j)."""
        total = np.zeros((int(self.offsets[-1]), values.shape[1]))
        for levels in self.columns:
            for j in range(values.shape[1]):
                total[:, j] += np.bincount(levels, weights=values[:, j], minlength=len(total))
        return total

    def crossproduct(self, weights: Floats) -> Floats:
        """Z' diag(weights) Z, (q, q)."""
        q = int(self.offsets[-1])
        total = np.zeros(q * q)
        for a in self.columns:
            for b in self.columns:
                total += np.bincount(a * q + b, weights=weights, minlength=q * q)
        return total.reshape(q, q)

    def likelihood(self, gamma: Floats, *, restricted: bool) -> Likelihood:
        """The pieces of the (restricted) likelihood at ``gamma`` (m,), each >= 0."""
        return _Solved(self, gamma).likelihood(restricted)


def reduce_to_cells(y: Floats, fixed: Floats, labels: Sequence[Codes]) -> MixedModel:
    """Cell means and within-cell sum of squares of ``y`` (n,), ``fixed`` (n, p) and ``labels``, m integer arrays (n,)."""
    cell = crossed(*labels, *fixed.T)
    size = np.bincount(cell).astype(np.float64)
    mean = np.bincount(cell, weights=y) / size
    first = np.unique(cell, return_index=True)[1]
    return MixedModel(size, mean, float(np.sum((y - mean[cell]) ** 2)), fixed[first], tuple(label[first] for label in labels))


class _Solved:
    """V = diag(d) + Z diag(root^2) Z' over cells at one gamma, through a = Z root v + remainder with v = (root Z' V^-1) a.

    Then a' V^-1 b = v_a' v_b + remainder_a' remainder_b / d: sums without cancellation, however large gamma is.
    """

    def __init__(self, model: MixedModel, gamma: Floats) -> None:
        self.model = model
        cell = 0.0 if model.cell_term is None else gamma[model.cell_term]
        self.d = 1 / model.size + cell
        self.root = np.repeat(np.sqrt(gamma[model.coarse]), np.diff(model.offsets))
        self.cross = model.crossproduct(1 / self.d)
        # where a level's own variance outweighs its noise, differences of large numbers are to be avoided, else quotients of small ones
        self.outweighs = self.root**2 * np.diag(self.cross) > 1
        inner = np.eye(len(self.root)) + self.root[:, np.newaxis] * self.cross * self.root
        factor, self.inverse = _positive_inverse(inner)
        self.logdet = float(np.sum(np.log(self.d * model.size)) + 2 * np.sum(np.log(np.diag(factor))))

    def split(self, values: Floats) -> tuple[Floats, Floats]:
        """v (q, j) and the remainder (C, j) of ``values`` (C, j)."""
        v = self.inverse @ (self.root[:, np.newaxis] * self.model.to_levels(values / self.d[:, np.newaxis]))
        remainder = values.copy()
        for levels in self.model.columns:
            remainder -= (self.root[:, np.newaxis] * v)[levels]
        return v, remainder

    def likelihood(self, restricted: bool) -> Likelihood:
        model = self.model
        v_x, rest_x = self.split(model.fixed)
        information = v_x.T @ v_x + rest_x.T @ (rest_x / self.d[:, np.newaxis])
        covariance = np.asarray(np.linalg.inv(information), dtype=np.float64)
        v_y, rest_y = self.split(model.mean[:, np.newaxis])
        effects = covariance @ (v_x.T @ v_y[:, 0] + rest_x.T @ (rest_y[:, 0] / self.d))
        v, rest = self.split((model.mean - model.fixed @ effects)[:, np.newaxis])
        logdet, traces = self.logdet, self.traces()
        if restricted:
            logdet += float(np.linalg.slogdet(information)[1])
            traces -= self.by_term(lambda summed: float(np.einsum("li,ij,lj->", summed, covariance, summed)), v_x, rest_x)
        squares = self.by_term(lambda summed: float(np.sum(summed**2)), v, rest)
        quadratic = model.within + float(np.sum(v**2) + np.sum(rest[:, 0] ** 2 / self.d))
        return Likelihood(logdet, quadratic, traces, squares, effects, covariance)

    def traces(self) -> Floats:
        """tr(Z_i' V^-1 Z_i) of every term."""
        outer = self.root[:, np.newaxis] * self.inverse * self.root
        diagonal, weak = (1 - np.diag(self.inverse)) / np.where(self.outweighs, self.root, 1.0) ** 2, ~self.outweighs
        rows = self.cross[weak]
        diagonal[weak] = np.diag(self.cross)[weak] - np.sum((rows @ outer) * rows, axis=1)
        traces = np.zeros(len(self.model.codes))
        for j, term in enumerate(self.model.coarse):
            traces[term] = np.sum(diagonal[self.model.offsets[j] : self.model.offsets[j + 1]])
        if self.model.cell_term is not None:
            traces[self.model.cell_term] = np.sum(1 / self.d) - np.sum(outer * self.model.crossproduct(self.d**-2))
        return traces

    def by_term(self, reduce: Callable[[Floats], float], v: Floats, remainder: Floats) -> Floats:
        """reduce(Z_i' V^-1 a) of every term, for the parts of a that ``split`` gives."""
        solved = remainder / self.d[:, np.newaxis]
        root = np.where(self.outweighs, self.root, 1.0)[:, np.newaxis]
        summed = np.where(self.outweighs[:, np.newaxis], v / root, self.model.to_levels(solved))
        result = np.zeros(len(self.model.codes))
        for j, term in enumerate(self.model.coarse):
            result[term] = reduce(summed[self.model.offsets[j] : self.model.offsets[j + 1]])
        if self.model.cell_term is not None:
            result[self.model.cell_term] = reduce(solved)
        return result


def _positive_inverse(matrix: Floats) -> tuple[Floats, Floats]:
    """Cholesky factor and inverse of a positive definite (q, q)."""
    diagonal = np.diag(matrix)
    if np.count_nonzero(matrix) == len(diagonal):  # levels that never meet, as those of one term do not
        return np.diag(np.sqrt(diagonal)), np.diag(1 / diagonal)
    factor, fault = dpotrf(matrix, lower=1)
    if fault:
        raise np.linalg.LinAlgError("the covariance of the random effects is not positive definite to rounding")
    inverse, _ = dpotri(factor, lower=1)
    return factor, np.tril(inverse) + np.tril(inverse, -1).T
