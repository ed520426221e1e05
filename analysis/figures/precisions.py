"""How far a gradient is from that of one batch, precision by precision: rounding falls with the unit roundoff, a fault does not."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from accum_sweeps.analysis.figures.style import BAND, INK, MUTED, Margins, figure, legend, looks, plain_log, styled

FOOT = 1e-17  # stands for exactly 0: below what any precision here can tell


@styled
def gradient_by_precision(precisions: Sequence[Mapping[str, Any]], accum: int) -> Figure:
    """Relative L2 difference of the gradient over unit roundoff, both logarithmic: k=``accum``, and the band of the rounding controls.

    ``precisions`` are those of an audit: dtype, unit, arm, low, high.
    """
    drawn, [panel] = figure(2.6, Margins())
    units = np.array([each["unit"] for each in precisions])
    arm, low, high = (np.maximum([each[key] for each in precisions], FOOT) for key in ("arm", "low", "high"))
    _band(panel, units, low, high)
    look = looks([accum])[accum]
    panel.plot(units, arm, color=look.colour, marker=look.marker, markersize=7, linestyle=look.dashes, label=f"k={accum}, code under test")
    _slope(panel, units)
    for unit, value, each in zip(units, arm, precisions, strict=True):
        panel.annotate(each["dtype"], (unit, value), xytext=(0, 8), textcoords="offset points", ha="center", color=INK, fontsize=8)
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_xlim(units.min() / 30, units.max() * 30)
    panel.set_ylim(min(low.min(), arm.min()) / 8, max(high.max(), arm.max()) * 60)
    for axis in (panel.xaxis, panel.yaxis):
        plain_log(axis)
    panel.set_title("Gradient against one batch, by precision")
    panel.set_xlabel("unit roundoff")
    panel.set_ylabel("relative L2 difference")
    legend(drawn, panel)
    return drawn


def _band(panel: Axes, units: Any, low: Any, high: Any) -> None:
    """The controls' range; with one precision a bar, else a band."""
    if len(units) > 1:
        panel.fill_between(
            units, low / 1.5, high * 1.5, color=BAND, alpha=0.75, linewidth=0, label="right code,\nchanged in\nrounding only"
        )
    else:
        panel.vlines(units, low / 1.5, high * 1.5, color=BAND, linewidth=14, label="right code,\nchanged in\nrounding only")


def _slope(panel: Axes, units: Any) -> None:
    """What falls with the unit roundoff."""
    ends = np.array([units.min() / 30, units.max() * 30])
    panel.plot(ends, ends, color=MUTED, linestyle=(0, (1, 2)), linewidth=1.0, label="one unit roundoff", zorder=1)
