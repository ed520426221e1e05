"""A gauge study: how much of the spread of measurements is the measurement's own. A known problem to check components against."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from accum_sweeps.analysis.components import Component, crossed_components
from accum_sweeps.analysis.mean_squares import FTest, f_test, two_way


@dataclass(frozen=True, kw_only=True)
class GaugeStudy:
    """Components of parts, operators and, if kept, part by operator, with shares of the total variance and of the total SD.

    ``variances`` (never negative), ``contribution`` and ``study_variation`` (proportions) have the keys gauge, repeatability,
    reproducibility, part and total. ``distinct_categories`` is floor(sqrt(2) part SD / gauge SD).
    """

    components: dict[str, Component]
    interaction_test: FTest
    has_interaction: bool
    variances: dict[str, float]
    contribution: dict[str, float]
    study_variation: dict[str, float]
    distinct_categories: int


def gauge_study(y: ArrayLike, alpha: float = 0.05) -> GaugeStudy:
    """Gauge study of ``y`` (parts, operators, trials), trials >= 2: crossed, both factors random; ValueError for another shape.

    The interaction is pooled into repeatability where its exact F test has p > ``alpha``. Reproducibility is operator plus, if
    kept, interaction. Automotive Industry Action Group (2010), Measurement Systems Analysis, 4th edition, appendix A.
    """
    layout = two_way(y)
    if layout.within is None:
        raise ValueError(f"y has shape {layout.shape}: a gauge study measures every part at least twice per operator")
    test = f_test(layout.interaction, layout.within)
    has_interaction = not test.p > alpha
    found = crossed_components(y, interaction=has_interaction)
    reproducibility = found["columns"].estimate + (found["interaction"].estimate if has_interaction else 0.0)
    repeatability, part = found["residual"].estimate, found["rows"].estimate
    gauge = repeatability + reproducibility
    variances = {"gauge": gauge, "repeatability": repeatability, "reproducibility": reproducibility, "part": part, "total": gauge + part}
    contribution = {name: variance / (gauge + part) for name, variance in variances.items()}
    return GaugeStudy(
        components=found,
        interaction_test=test,
        has_interaction=has_interaction,
        variances=variances,
        contribution=contribution,
        study_variation={name: float(np.sqrt(share)) for name, share in contribution.items()},
        distinct_categories=int(np.sqrt(2 * part / gauge)),
    )
