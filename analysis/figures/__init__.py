"""The pictures of a report: pure functions from what the analysis found to a matplotlib Figure. They compute nothing but geometry."""

from accum_sweeps.analysis.figures.components import component_bars
from accum_sweeps.analysis.figures.curves import loss_curves, weight_distances
from accum_sweeps.analysis.figures.intervals import LONGEST_NAME, ROWS_A_PICTURE, overview, shift_intervals
from accum_sweeps.analysis.figures.paired import paired_by_seed
from accum_sweeps.analysis.figures.precisions import gradient_by_precision
from accum_sweeps.analysis.figures.style import css_colours, to_svg

__all__ = [
    "LONGEST_NAME",
    "ROWS_A_PICTURE",
    "component_bars",
    "css_colours",
    "gradient_by_precision",
    "loss_curves",
    "overview",
    "paired_by_seed",
    "shift_intervals",
    "to_svg",
    "weight_distances",
]
