"""Every arm of a setup against its reference arm, with what the rules made of it: one row of a table each."""

from dataclasses import dataclass

import numpy as np

from accum_sweeps.analysis.cells import Cells
from accum_sweeps.analysis.divergence import Divergence
from accum_sweeps.analysis.equivalence import is_equivalent, sd_upper_limit
from accum_sweeps.analysis.paired import PairedShift, mean_of
from accum_sweeps.analysis.rules import Decision, Statistics
from accum_sweeps.plan.judging import ALPHA


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One accumulation factor against the reference arm, in the response's unit; ``in_sigma`` is (mean, low, high) in sigma_tot.

    ``mean`` is that of the arm's own finished runs; ``p`` that of its shift (paired t, or sign-flip where asked for). ``p_holm`` and
    ``divergence_p_holm`` are adjusted over all tests of the setup and response. ``sd_upper``, ``tost_p`` and ``is_equivalent`` belong
    to a margin; NaN and False without one.
    """

    accum: int
    mean: float
    finished: int
    diverged: int
    shift: PairedShift
    in_sigma: tuple[float, float, float]
    p: float
    p_holm: float
    divergence: Divergence
    divergence_p_holm: float
    sd_upper: float
    tost_p: float
    is_equivalent: bool

    @property
    def is_detected(self) -> bool:
        """Holm's procedure rejects a shift of 0."""
        return self.p_holm <= ALPHA


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The reference arm (its ``mean`` and sigma_tot over seeds are estimates) and the other ``arms``, ascending by k."""

    reference: int
    mean: float
    sigma_tot: float
    finished: int
    diverged: int
    arms: tuple[Arm, ...]


def compare(cells: Cells, reference: int, statistics: Statistics, decision: Decision) -> Comparison:
    """All arms of ``cells`` beside the arm k = ``reference``, from what analysis.rules measured and decided on them."""
    column = cells.accum.index(reference)
    others = [place for place in range(len(cells.accum)) if place != column]
    finished, diverged = cells.count("finished"), cells.count("diverged")
    margin = statistics.margin.value
    arms = []
    for number, place in enumerate(others):
        shift = statistics.shifts[number]
        arms.append(
            Arm(
                accum=cells.accum[place],
                mean=_mean(cells, place),
                finished=int(finished[place]),
                diverged=int(diverged[place]),
                shift=shift,
                in_sigma=shift.scaled(statistics.sigma_tot),
                p=statistics.shift_p[number],
                p_holm=np.nan if np.isnan(statistics.shift_p[number]) else decision.shift_p[number],
                divergence=statistics.divergences[number],
                divergence_p_holm=decision.divergence_p[number],
                sd_upper=np.nan if margin is None else sd_upper_limit(shift),
                tost_p=decision.tost_p[number],
                is_equivalent=margin is not None and is_equivalent(shift, margin),
            )
        )
    return Comparison(
        reference=reference,
        mean=_mean(cells, column),
        sigma_tot=statistics.sigma_tot,
        finished=int(finished[column]),
        diverged=int(diverged[column]),
        arms=tuple(arms),
    )


def _mean(cells: Cells, column: int) -> float:
    values = cells.y[:, column]
    return mean_of(values[np.isfinite(values)])
