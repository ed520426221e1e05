"""The equivalence margin and where it comes from: fixed before the runs, an earlier sweep, or the reference arm itself."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import chdtri

from accum_sweeps.analysis.equivalence import MARGIN_IN_SD
from accum_sweeps.analysis.paired import LEVEL, Floats, sd_of
from accum_sweeps.plan.errors import UserError
from accum_sweeps.plan.words import counted

MIN_SEEDS = 5  # of the sweep's own reference arm


@dataclass(frozen=True, kw_only=True)
class Margin:
    """``value`` in the response's unit, None where there is no margin; ``source`` says in words where it comes from, or why not.

    ``seeds_missing`` is the number of further seeds with which the source would give one. ``is_late``: somebody gave the value, and it
    is not known to have been fixed before all the runs that it judges.
    """

    value: float | None
    source: str
    seeds_missing: int = 0
    is_late: bool = False

    @property
    def sd_unit(self) -> float:
        """The standard deviation that the margin is MARGIN_IN_SD of, in the response's unit; NaN without a margin."""
        return np.nan if self.value is None else self.value / MARGIN_IN_SD


@dataclass(frozen=True, kw_only=True)
class MarginSource:
    """Where a given margin was fixed, in ``words``, and whether that may have been after runs that it judges."""

    words: str
    is_late: bool


def sd_lower_limit(y: ArrayLike, level: float = LEVEL) -> float:
    """One-sided lower limit of the SD of ``y`` (S,), s sqrt((S - 1) / chi2_level(S - 1)), over its finite values; NaN below two."""
    values = _finite(y)
    df = len(values) - 1
    return float(sd_of(values) * np.sqrt(df / chdtri(df, 1 - level))) if df > 0 else np.nan


def absolute_margin(value: float) -> Margin:
    """A margin that somebody gives. Raises UserError unless it is above 0 and finite."""
    if not 0 < value < np.inf:
        raise UserError(f"margin={value!r}: must be above 0 and finite, in the response's unit")
    return Margin(value=float(value), source="given, not known to be fixed before the runs", is_late=True)


def margin_of_earlier_sweep(y: ArrayLike, earlier_seeds: Iterable[object], seeds: Iterable[object]) -> Margin:
    """0.5 times the lower one-sided 95 % limit of the SD of ``y`` (S,), the reference arm of an earlier sweep with other seeds.

    ``earlier_seeds`` are those of ``y``, ``seeds`` those that are judged. Raises UserError if they share a seed: the margin would
    then be estimated from the runs that it judges. No margin with fewer than two finite values.
    """
    shared = sorted(str(seed) for seed in set(earlier_seeds) & set(seeds))
    if shared:
        raise UserError(f"margin from an earlier sweep: seeds {', '.join(shared)} are in both; the earlier sweep must have other seeds")
    return _from_sd(y, "an earlier sweep's reference arm", 2)


def margin_of_reference_arm(y: ArrayLike) -> Margin:
    """0.5 times the lower one-sided 95 % limit of the SD of ``y`` (S,), the reference arm of the sweep that is judged.

    The estimate itself in place of its lower limit would make a margin that is too wide in half of all sweeps: simulated size
    .14-.24 at a nominal .05. No margin with fewer than MIN_SEEDS finite values.
    """
    return _from_sd(y, "the reference arm", MIN_SEEDS)


def _from_sd(y: ArrayLike, arm: str, needed: int) -> Margin:
    seeds = len(_finite(y))
    if seeds < needed:
        source = f"no margin: {counted(seeds, 'finished run')} in {arm}, {needed} are needed"
        return Margin(value=None, source=source, seeds_missing=needed - seeds)
    limit = sd_lower_limit(y)
    if limit == 0:
        return Margin(value=None, source=f"no margin: all runs of {arm} are equal")
    return Margin(value=MARGIN_IN_SD * limit, source=f"{MARGIN_IN_SD:g} x the lower 95 % limit of the SD of {arm} ({seeds} seeds)")


def _finite(y: ArrayLike) -> Floats:
    values = np.asarray(y, dtype=np.float64)
    return values[np.isfinite(values)]
