"""The mean paired shift tau_k with its interval against the margin: of one setup by arm, and of many setups at a glance."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from accum_sweeps.analysis.comparison import Arm
from accum_sweeps.analysis.figures.scale import ShiftScale, both_ways, finite_largest, is_far, shade_margin, shift_scale, spread_log
from accum_sweeps.analysis.figures.style import MUTED, ZONE, Look, figure, legend, looks, short, styled
from accum_sweeps.analysis.verdict import Verdict

ROWS_A_PICTURE = 40


@styled
def shift_intervals(verdict: Verdict) -> Figure:
    """One row an arm: mean and 95 % interval of the shift, the margin as a zone about 0. The verdict must have a comparison."""
    assert verdict.compared is not None
    arms, margin = verdict.compared.arms, verdict.margin.value
    largest = finite_largest(value for arm in arms for value in (arm.shift.mean, arm.shift.low, arm.shift.high))
    scale = shift_scale(verdict.compared.sigma_tot, verdict.unit, max(largest, margin or 0.0))
    drawn = figure(1.25 + 0.27 * len(arms))
    panel = drawn.subplots()
    shade_margin(panel, scale.margin(margin), horizontal=False)
    styles = looks([arm.accum for arm in arms])
    for row, arm in enumerate(arms):
        _interval(panel, row, arm, scale.divisor, styles[arm.accum])
    _rows(panel, [f"k={arm.accum}" for arm in arms])
    panel.set_title(f"Mean shift against k={verdict.compared.reference}, 95 % intervals")
    _shift_axis(panel, scale, largest, scale.margin(margin))
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
    if far and near is not None:
        spread_log(panel.set_xscale, panel.xaxis, near)
    reach = reach * (1.6 if far else 1.12) or 1.0
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
    accum = sorted({arm.accum for each in verdicts if each.compared for arm in each.compared.arms})
    styles = looks(accum)
    most = max([len(each.compared.arms) for each in verdicts if each.compared] or [1])
    drawn = figure(1.0 + len(verdicts) * (0.18 + 0.11 * min(most, 8)))
    panel = drawn.subplots()
    named: set[str] = set()
    near, largest = [], 0.0
    for row, each in enumerate(verdicts):
        if each.compared is None or not each.compared.sigma_tot > 0:
            words = "no interval in sigma_tot"
            panel.annotate(words, (0.01, row), xycoords=("axes fraction", "data"), va="center", color=MUTED, fontsize=8)
            continue
        sigma = each.compared.sigma_tot
        if each.margin.value is not None:
            near.append(each.margin.value / sigma)
            panel.barh(row, 2 * near[-1], left=-near[-1], height=0.86, color=ZONE, linewidth=0, zorder=0, label=_once("margin", named))
        places = np.linspace(-0.32, 0.32, len(each.compared.arms)) if len(each.compared.arms) > 1 else [0.0]
        for place, arm in zip(places, each.compared.arms, strict=True):
            _small_interval(panel, row + place, arm, sigma, styles[arm.accum], _once(f"k={arm.accum}", named))
            largest = max(largest, finite_largest(arm.in_sigma))
    panel.axvline(0, color=MUTED, linewidth=1.0, zorder=1)
    _rows(panel, [short(name, 44) for name in names])
    scale = ShiftScale(divisor=1.0, unit="sigma_tot of the setup's reference arm")
    _shift_axis(panel, scale, max([largest, *near]), min(near, default=None))
    panel.set_title("Mean shifts against the reference arm, 95 % intervals")
    legend(drawn, panel)
    return drawn


def _once(label: str, named: set[str]) -> str:
    """``label`` the first time, afterwards one that a legend leaves out."""
    if label in named:
        return "_"
    named.add(label)
    return label


def _small_interval(panel: Axes, row: float, arm: Arm, sigma: float, look: Look, label: str) -> None:
    mean, low, high = (value / sigma for value in (arm.shift.mean, arm.shift.low, arm.shift.high))
    if np.isfinite([low, high]).all():
        panel.plot([low, high], [row, row], color=look.colour, linewidth=1.3)
    if np.isfinite(mean):
        panel.plot([mean], [row], color=look.colour, marker=look.marker, linestyle="none", markersize=4, label=label)
