"""The mean paired shift tau_k with its interval against the margin: of one setup by arm, and of many setups at a glance."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from accum_sweeps.analysis.comparison import Arm
from accum_sweeps.analysis.figures.scale import ShiftScale, both_ways, finite_largest, is_far, shade_margin, shift_scale, spread_log
from accum_sweeps.analysis.figures.style import MUTED, ZONE, Look, Margins, figure, legend, looks, styled
from accum_sweeps.analysis.labels import short
from accum_sweeps.analysis.verdict import Verdict

ROWS_A_PICTURE = 40
LONGEST_NAME = 40


@styled
def shift_intervals(verdict: Verdict) -> Figure:
    """One row an arm: mean and 95 % interval of the shift, the margin as a zone about 0. The verdict must have a comparison."""
    assert verdict.compared is not None
    arms, margin = verdict.compared.arms, verdict.margin.value
    largest = finite_largest(value for arm in arms for value in (arm.shift.mean, arm.shift.low, arm.shift.high))
    scale = shift_scale(verdict.compared.sigma_tot, verdict.unit, max(largest, margin or 0.0))
    has_opposite = bool(scale.opposite) and not is_far(largest / scale.divisor, scale.margin(margin))
    drawn, [panel] = figure(0.27 * len(arms) + 0.15, Margins(top=0.8 if has_opposite else 0.32))
    shade_margin(panel, scale.margin(margin), horizontal=False)
    styles = looks([arm.accum for arm in arms])
    for row, arm in enumerate(arms):
        _interval(panel, row, arm, scale.divisor, styles[arm.accum])
    _rows(panel, [f"k={arm.accum}" for arm in arms])
    _shift_axis(panel, scale, largest, scale.margin(margin))
    panel.set_title(f"Mean shift against k={verdict.compared.reference}, 95 % intervals", pad=36 if panel.child_axes else 6)
    legend(drawn, panel)
    return drawn


def _interval(panel: Axes, row: float, arm: Arm, divisor: float, look: Look) -> None:
    mean, low, high = (value / divisor for value in (arm.shift.mean, arm.shift.low, arm.shift.high))
    if np.isfinite([low, high]).all():
        panel.plot([low, high], [row, row], color=look.colour, linewidth=2.0, solid_capstyle="butt", marker="|", markersize=8)
    if np.isfinite(mean):
        panel.plot([mean], [row], color=look.colour, marker=look.marker, linestyle="none", markersize=6)
    else:
        panel.annotate("no pair of finished runs", (0.01, row), xycoords=("axes fraction", "data"), va="center", color=MUTED, fontsize=8)


def _rows(panel: Axes, labels: Sequence[str]) -> None:
    panel.set_yticks(range(len(labels)), labels)
    panel.set_ylim(len(labels) - 0.4, -0.6)
    panel.grid(axis="y", visible=False)
    panel.tick_params(axis="y", length=0)


def _shift_axis(panel: Axes, scale: ShiftScale, largest: float, near: float | None) -> None:
    """Label, spread, and the unit opposite."""
    reach = max(largest / scale.divisor, near or 0.0)
    far = is_far(largest / scale.divisor, near)
    reach = reach * (1.6 if far else 1.12) or 1.0
    if far and near is not None:
        spread_log(panel.set_xscale, panel.xaxis, near, reach)
    panel.set_xlim(-reach, reach)
    panel.set_xlabel(f"shift ({scale.unit})" + (", logarithmic outside the margin" if far else ""))
    if scale.opposite and not far:
        second = panel.secondary_xaxis("top", functions=both_ways(scale.opposite))
        second.set_xlabel(f"({scale.opposite_unit})")
        second.spines["top"].set_visible(True)


@styled
def overview(verdicts: Sequence[Verdict], names: Sequence[str]) -> Figure:
    """One row a setup, within it one interval an arm, all in units of the setup's own sigma_tot; each margin as a zone in its row.

    At most ROWS_A_PICTURE setups make a picture that can be read.
    """
    intervals, margins = _placed(verdicts)
    most = max(len(each.compared.arms) if each.compared else 1 for each in verdicts)
    longest = max(len(short(name, LONGEST_NAME)) for name in names)
    drawn, [panel] = figure(len(verdicts) * (0.18 + 0.11 * min(most, 8)) + 0.1, Margins(left=0.3 + 0.075 * max(longest, 6)))
    for row, each in enumerate(verdicts):
        if _sigma(each) is None:
            words = "no interval in sigma_tot"
            panel.annotate(words, (0.01, row), xycoords=("axes fraction", "data"), va="center", color=MUTED, fontsize=8)
    if margins:
        rows, widths = np.array(list(margins)), np.array(list(margins.values()))
        panel.barh(rows, 2 * widths, left=-widths, height=0.86, color=ZONE, linewidth=0, zorder=0, label="margin")
    panel.axvline(0, color=MUTED, linewidth=1.0, zorder=1)
    for k, look in looks(sorted(intervals)).items():
        rows, means, lows, highs = np.array(intervals[k]).T
        panel.hlines(rows, lows, highs, color=look.colour, linewidth=1.3)
        panel.plot(means, rows, color=look.colour, marker=look.marker, linestyle="none", markersize=4, label=f"k={k}")
    _rows(panel, [short(name, LONGEST_NAME) for name in names])
    scale = ShiftScale(divisor=1.0, unit="sigma_tot of the setup's reference arm")
    largest = finite_largest(value for placed in intervals.values() for row in placed for value in row[1:])
    _shift_axis(panel, scale, max([largest, *margins.values()]), min(margins.values(), default=None))
    panel.set_title("Mean shifts by setup, 95 % intervals")
    legend(drawn, panel)
    return drawn


def _sigma(each: Verdict) -> float | None:
    return each.compared.sigma_tot if each.compared and each.compared.sigma_tot > 0 else None


def _placed(verdicts: Sequence[Verdict]) -> tuple[dict[int, list[tuple[float, float, float, float]]], dict[int, float]]:
    """By k the place and the interval (mean, low, high) of each arm in sigma_tot, and by row the margin."""
    intervals: dict[int, list[tuple[float, float, float, float]]] = {}
    margins: dict[int, float] = {}
    for row, each in enumerate(verdicts):
        sigma = _sigma(each)
        if sigma is None or each.compared is None:
            continue
        if each.margin.value is not None:
            margins[row] = each.margin.value / sigma
        arms = each.compared.arms
        for place, arm in zip(np.linspace(-0.32, 0.32, len(arms)) if len(arms) > 1 else [0.0], arms, strict=True):
            intervals.setdefault(arm.accum, []).append((row + float(place), *arm.in_sigma))
    return intervals, margins
