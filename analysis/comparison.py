"""Every arm of a setup against its reference arm."""

from dataclasses import dataclass

import numpy as np

from accum_sweeps.analysis.cells import Cells
from accum_sweeps.analysis.equivalence import is_equivalent, sd_upper_limit, tost_p
from accum_sweeps.analysis.paired import PairedShift, holm, mean_of, paired_differences, paired_shift, total_sd

ALPHA = 0.05


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One accumulation factor against the reference arm, in the response's unit; ``in_sigma`` is (mean, low, high) in sigma_tot.

    ``mean`` is that of the arm's own finished runs; ``p_holm`` is adjusted over the setup's arms. ``sd_upper``, ``tost_p`` and
    ``is_equivalent`` belong to a margin; NaN and False without one.
    """

    accum: int
    mean: float
    finished: int
    diverged: int
    shift: PairedShift
    in_sigma: tuple[float, float, float]
    p_holm: float
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


def compare(cells: Cells, reference: int, margin: float | None) -> Comparison:
    """The paired comparison of all arms of ``cells`` with the arm k = ``reference``; ``margin`` in the response's unit."""
    column = cells.accum.index(reference)
    sigma = total_sd(cells.y[:, column])
    differences = paired_differences(cells.y, column)
    others = [place for place in range(len(cells.accum)) if place != column]
    shifts = {place: paired_shift(differences[:, place]) for place in others}
    adjusted = dict(zip(others, holm([shifts[place].p for place in others]), strict=True))
    finished, diverged = cells.count("finished"), cells.count("diverged")
    return Comparison(
        reference=reference,
        mean=_mean(cells, column),
        sigma_tot=sigma,
        finished=int(finished[column]),
        diverged=int(diverged[column]),
        arms=tuple(
            Arm(
                accum=cells.accum[place],
                mean=_mean(cells, place),
                finished=int(finished[place]),
                diverged=int(diverged[place]),
                shift=shifts[place],
                in_sigma=shifts[place].scaled(sigma),
                p_holm=float(adjusted[place]),
                sd_upper=np.nan if margin is None else sd_upper_limit(shifts[place]),
                tost_p=np.nan if margin is None else tost_p(shifts[place], margin),
                is_equivalent=margin is not None and is_equivalent(shifts[place], margin),
            )
            for place in others
        ),
    )


def _mean(cells: Cells, column: int) -> float:
    values = cells.y[:, column]
    return mean_of(values[np.isfinite(values)])
