"""Components of variance as bars with their intervals, each as a standard deviation."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from accum_sweeps.analysis.component_tables import SetupComponents
from accum_sweeps.analysis.figures.style import BAND, INK, MUTED, Margins, figure, plain_log, styled, unit_scale
from accum_sweeps.analysis.words import percent

DECADES = 20.0  # ratio of the largest to the smallest SD beyond which the axis is logarithmic


@styled
def component_bars(components: SetupComponents) -> Figure:
    """One bar a component: the square root of the estimate and of its limits, in the response's unit. There must be components.

    The axis is logarithmic where bars span decades; an estimate of exactly 0 has no bar and says so, an interval without upper limit
    ends in an arrow.
    """
    table = components.to_frame()
    table = table[table["unit"] != "1"].reset_index(drop=True)
    ends = np.sqrt(np.maximum(table[["low", "high"]].to_numpy(dtype=np.float64), 0.0))
    sds = table["sd"].to_numpy(dtype=np.float64)
    shares = table["share"].to_numpy(dtype=np.float64)
    positive = sds[sds > 0].tolist()
    largest = max([*ends[np.isfinite(ends)].tolist(), *positive, 0.0])
    factor, unit = unit_scale(largest, components.unit)
    is_log = bool(positive) and max(positive) > DECADES * min(positive)
    left = min(positive) / factor / 6 if is_log else 0.0
    drawn, [panel] = figure(0.34 * len(table) + 0.1, Margins(left=1.5 if table["component"].str.len().max() > 8 else 0.85))
    if is_log:
        panel.set_xscale("log")
        plain_log(panel.xaxis)
    panel.set_xlim(left, largest / factor * (1.6 if is_log else 1.12) or 1.0)
    for row, (sd, (low, high)) in enumerate(zip(sds, ends, strict=True)):
        _bar(panel, row, sd / factor, low / factor, high / factor, BAND if table["component"][row] == "total" else MUTED)
        words = _words(sd, shares[row], bool(np.isinf(high)))
        panel.annotate(words, (1.02, row), xycoords=("axes fraction", "data"), va="center", fontsize=8.5, annotation_clip=False)
    panel.set_yticks(range(len(table)), table["component"].tolist())
    panel.set_ylim(len(table) - 0.4, -0.6)
    panel.grid(axis="y", visible=False)
    panel.tick_params(axis="y", length=0)
    panel.set_title("Components of variance, as standard deviations with 95 % intervals")
    panel.set_xlabel(f"standard deviation ({unit})" + (", logarithmic" if is_log else ""))
    return drawn


def _bar(panel: Axes, row: int, sd: float, low: float, high: float, colour: str) -> None:
    left, right = panel.get_xlim()
    panel.barh(row, max(sd - left, 0.0), left=left, height=0.5, color=colour, linewidth=0)
    if np.isnan(low) or np.isnan(high) or high <= left:
        return
    panel.plot([min(max(low, left), right), min(max(high, left), right)], [row, row], color=INK, linewidth=1.4)
    for end in (low, high):
        if left < end < right:
            panel.plot([end], [row], color=INK, marker="|", markersize=9, linestyle="none")
    if high >= right:
        panel.plot([right], [row], color=INK, marker=">", markersize=6, clip_on=False)


def _words(sd: float, share: float, is_unbounded: bool) -> str:
    """The share of the sum, and what a bar cannot show."""
    words = ["0 (at the boundary)"] if sd == 0 else [] if np.isnan(share) else [percent(share, 1.0)]
    words += ["unbounded"] if is_unbounded else []
    return ", ".join(words)
