"""The verdict table: from the statistics of one setup and one response to a code, by rules applied in a fixed order.

Shapes: S seeds, K accumulation factors. ``measure`` makes the statistics from arrays, ``decide`` applies the rules; neither knows
tables or words. The error rates of exactly these rules are in analysis.rates.
"""

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike

from accum_sweeps.analysis.dispersion import (
    Dispersion,
    PathVariance,
    excess_test,
    lambda_test,
    path_variance,
    path_variance_without_controls,
)
from accum_sweeps.analysis.divergence import Divergence, divergence_tests
from accum_sweeps.analysis.equivalence import is_equivalent, tost_p
from accum_sweeps.analysis.margin import Margin
from accum_sweeps.analysis.paired import Floats, PairedShift, holm, paired_differences, paired_shift, total_sd
from accum_sweeps.analysis.power import seeds_needed
from accum_sweeps.analysis.sign_flip import sign_flip_p
from accum_sweeps.plan.judging import ALPHA

CODES = ("not_assessable", "effect", "negligible", "indistinguishable", "equivalent", "inconclusive")
MIN_COMPLETE_SEEDS = 3
LAMBDA_LIMIT = 4.0  # "indistinguishable" allows accumulation at most twice the SD that rounding has
EXCESS_LIMIT = 16.0  # ... and differences from the reference arm at most four times as large as those of controls from their twins
PATH_SHARE_LIMIT = 0.2  # above it more seeds do not help: the trajectories are too chaotic for this horizon


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """What the rules look at. Tuples hold one entry for each of the K - 1 arms beside the reference arm, in one order.

    ``complete_seeds`` have a finished or diverged run in every arm; ``unfinished_arms`` is the number of arms, the reference arm
    included, without a finished run. ``shift_p`` are the p values of the shifts: of paired t, or of the sign-flip test where that was
    asked for. ``dispersion`` (lambda) and ``excess`` are None without controls. ``sigma_tot``, ``path`` and ``margin`` are in the unit of
    the shifts.
    """

    complete_seeds: int
    unfinished_arms: int
    shifts: tuple[PairedShift, ...]
    shift_p: tuple[float, ...]
    dispersion: Dispersion | None
    excess: Dispersion | None
    divergences: tuple[Divergence, ...]
    path: PathVariance
    sigma_tot: float
    margin: Margin

    @property
    def is_one_sided(self) -> bool:
        """In some seed one of two arms alone diverged."""
        return any(test.only_arm or test.only_reference for test in self.divergences)


@dataclass(frozen=True, kw_only=True)
class Decision:
    """``code`` is one of CODES. The p values are adjusted by Holm's procedure over all 2K - 1 tests; NaN where nothing is assessable.

    ``tost_p`` is one unadjusted p value an arm, NaN without a margin. If ``code`` is inconclusive, ``more_seeds`` is how many further
    seeds would do if nothing is shifted, None where that is unknown or ``shorten_horizon`` is the advice instead.
    ``rounding_is_assessed`` is False without usable controls, and every verdict must then say so. ``exceeds_rounding``: the excess is
    shown to be above its limit, so that arms differ by more than rounding, however little that is.
    """

    code: str
    shift_p: tuple[float, ...]
    dispersion_p: float
    divergence_p: tuple[float, ...]
    tost_p: tuple[float, ...]
    equivalence_holds: bool
    rounding_is_assessed: bool
    path_share: float
    more_seeds: int | None = None
    shorten_horizon: bool = False
    exceeds_rounding: bool = False

    @property
    def smallest_p(self) -> float:
        """The smallest of the adjusted p values: that of the whole setup and response."""
        return min(*self.shift_p, self.dispersion_p, *self.divergence_p)


def measure(
    y: ArrayLike,
    reference: int,
    margin: Margin,
    *,
    controls: ArrayLike | None = None,
    diverged: ArrayLike | None = None,
    sign_flip: bool = False,
    generator: Generator | None = None,
) -> Statistics:
    """The statistics of ``y`` (S, K), not finite where a cell has no finished value; ``reference`` is the reference arm's column.

    ``controls`` (S, K) holds in column k the control of the run at k, its reference column is not read; all of one kind.
    ``diverged`` is bool (S, K), all False by default. ``sign_flip`` replaces the paired t tests; ``generator`` is for it alone. Raises
    ValueError for shapes that do not fit, UserError where the sign-flip test could never reject.
    """
    values = np.asarray(y, dtype=np.float64)
    has_diverged = np.zeros(values.shape, dtype=np.bool_) if diverged is None else np.asarray(diverged, dtype=np.bool_)
    values = np.where(has_diverged, np.nan, values)
    finished = np.isfinite(values)
    accumulated = np.delete(values, reference, axis=1)
    differences = np.delete(paired_differences(values, reference), reference, axis=1)
    shifts = tuple(paired_shift(column) for column in differences.T)
    matched = None if controls is None else np.delete(np.asarray(controls, dtype=np.float64), reference, axis=1)
    return Statistics(
        complete_seeds=int((finished | has_diverged).all(axis=1).sum()),
        unfinished_arms=int((~finished.any(axis=0)).sum()),
        shifts=shifts,
        shift_p=_sign_flips(differences, generator) if sign_flip else tuple(shift.p for shift in shifts),
        dispersion=None if matched is None else lambda_test(accumulated, matched),
        excess=None if matched is None else excess_test(accumulated, matched, values[:, reference]),
        divergences=divergence_tests(has_diverged, finished, reference),
        path=_path(values, accumulated, matched),
        sigma_tot=total_sd(values[:, reference]),
        margin=margin,
    )


def _path(values: Floats, accumulated: Floats, controls: Floats | None) -> PathVariance:
    """From the controls, or from the residuals over seeds and arms where no control has a finished twin."""
    paired = None if controls is None else path_variance(accumulated, controls)
    return paired if paired is not None and paired.df else path_variance_without_controls(values)


def _sign_flips(differences: Floats, generator: Generator | None) -> tuple[float, ...]:
    family = 2 * differences.shape[1] + 1
    return tuple(sign_flip_p(column, family=family, alpha=ALPHA, generator=generator) for column in differences.T)


def decide(statistics: Statistics) -> Decision:
    """The first of these rules that applies gives the code, at alpha .05.

    1. not_assessable: fewer than 3 complete seeds, or an arm without a finished run;
    2. effect: Holm's procedure over K - 1 shifts, one lambda test and K - 1 McNemar tests rejects, and equivalence does not hold,
       or a test of divergence is among those that reject;
    3. negligible: it rejects, and equivalence holds;
    4. indistinguishable: every arm's TOST passes (no correction), the upper limit of lambda is at most 4 and that of the excess, the
       squared differences from the reference arm in units of those of the controls from their twins, at most 16;
    5. equivalent: equivalence holds;
    6. inconclusive.

    Equivalence holds if for every arm TOST passes and the upper limit of the paired SD is at most sqrt(2) x the margin's SD unit.
    Rules 3 to 5 need that in no seed one arm alone diverged: that is a difference which no margin covers, and which few seeds cannot
    test. Tests that cannot be made (no controls, too few pairs) stay in the family with p = 1. Without a margin only rules 1, 2 and 6
    can apply, without controls all but rule 4.
    """
    shift_p, dispersion_p, divergence_p = _adjusted(statistics)
    margin, dispersion = statistics.margin.value, statistics.dispersion
    equivalence = tuple(np.nan if margin is None else tost_p(shift, margin) for shift in statistics.shifts)
    holds = not statistics.is_one_sided and margin is not None and all(is_equivalent(shift, margin, ALPHA) for shift in statistics.shifts)
    code = _code(statistics, min(*shift_p, dispersion_p), min(divergence_p), equivalence, holds)
    share = statistics.path.share(statistics.sigma_tot)
    is_open = code == "inconclusive"
    shorten = is_open and statistics.path.from_controls and share > PATH_SHARE_LIMIT
    return Decision(
        code=code,
        shift_p=shift_p,
        dispersion_p=dispersion_p,
        divergence_p=divergence_p,
        tost_p=equivalence,
        equivalence_holds=holds,
        rounding_is_assessed=_is_assessable(dispersion) and _is_assessable(statistics.excess),
        path_share=share,
        more_seeds=more_seeds(statistics) if is_open and not shorten else None,
        shorten_horizon=shorten,
        exceeds_rounding=_is_above(statistics.excess, EXCESS_LIMIT),
    )


def _adjusted(statistics: Statistics) -> tuple[tuple[float, ...], float, tuple[float, ...]]:
    """Holm's adjusted p values of the shifts, of lambda and of the divergences."""
    arms = len(statistics.shifts)
    lambda_p = np.nan if statistics.dispersion is None else statistics.dispersion.p
    adjusted = holm([*statistics.shift_p, lambda_p, *(test.p for test in statistics.divergences)]).tolist()
    return tuple(adjusted[:arms]), adjusted[arms], tuple(adjusted[arms + 1 :])


def _code(statistics: Statistics, best_p: float, best_divergence_p: float, equivalence: tuple[float, ...], holds: bool) -> str:
    if statistics.complete_seeds < MIN_COMPLETE_SEEDS or statistics.unfinished_arms:
        return "not_assessable"
    if best_divergence_p <= ALPHA:
        return "effect"
    if best_p <= ALPHA:
        return "negligible" if holds else "effect"
    is_within_rounding = _is_below(statistics.dispersion, LAMBDA_LIMIT) and _is_below(statistics.excess, EXCESS_LIMIT)
    if is_within_rounding and not statistics.is_one_sided and all(p <= ALPHA for p in equivalence):
        return "indistinguishable"
    return "equivalent" if holds else "inconclusive"


def _is_assessable(ratio: Dispersion | None) -> bool:
    return ratio is not None and ratio.is_assessable


def _is_below(ratio: Dispersion | None, limit: float) -> bool:
    return ratio is not None and ratio.is_assessable and ratio.upper <= limit


def _is_above(ratio: Dispersion | None, limit: float) -> bool:
    return ratio is not None and ratio.is_assessable and ratio.low > limit


def more_seeds(statistics: Statistics) -> int | None:
    """Further seeds until every arm would pass TOST with power .8, from the one-sided upper 80 % limit of the path SD; at least 1.

    Where runs diverge so many more that enough of them finish; where one arm alone does, so many that McNemar's test would find it at
    the rate seen so far. Without a margin: the seeds that its source still needs, None if more would not give one. None too without an
    estimate of the path SD.
    """
    alone = max((max(test.only_arm, test.only_reference) for test in statistics.divergences), default=0)
    if alone:
        family = 2 * len(statistics.shifts) + 1
        discordant = int(np.ceil(1 + np.log2(family / ALPHA)))  # 2 x 2^-d <= alpha / family, all to one side
        return max(1, int(np.ceil(discordant * statistics.complete_seeds / alone)) - statistics.complete_seeds)
    margin, path_sd = statistics.margin, statistics.path.sd_upper_limit()
    if margin.value is None:
        return margin.seeds_missing or None
    if np.isnan(path_sd):
        return None
    pairs = min(shift.pairs for shift in statistics.shifts)
    missing = seeds_needed(margin.value, path_sd, len(statistics.shifts), alpha=ALPHA) - pairs
    return max(1, int(np.ceil(missing * statistics.complete_seeds / pairs))) if pairs else None
