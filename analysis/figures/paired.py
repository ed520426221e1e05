"""Every paired difference by itself: one mark a seed and accumulation factor, and beside them the means with their intervals."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from accum_sweeps.analysis.figures.scale import ShiftScale, both_ways, finite_largest, is_far, shade_margin, shift_scale, spread_log
from accum_sweeps.analysis.figures.style import LEGEND_IN, Look, Margins, figure, legend, looks, styled
from accum_sweeps.analysis.labels import short
from accum_sweeps.analysis.paired import paired_differences
from accum_sweeps.analysis.verdict import Verdict

MOST_TICKS = 20
LONG_SEED = 6  # characters; longer labels are turned
IN_VIEW = 4.0  # a margin of more than so many times the largest difference would leave nothing to see


@styled
def paired_by_seed(verdict: Verdict) -> Figure:
    """One column a seed, then one for the means: differences from the reference arm. The verdict must have a comparison."""
    assert verdict.compared is not None
    cells, compared = verdict.cells, verdict.compared
    differences = paired_differences(cells.y, cells.accum.index(compared.reference))
    ends = [value for arm in compared.arms for value in (arm.shift.low, arm.shift.high)]
    largest = finite_largest([*differences.ravel().tolist(), *ends])
    margin = verdict.margin.value
    is_in_view = margin is not None and margin < IN_VIEW * largest
    scale = shift_scale(compared.sigma_tot, verdict.unit, largest)
    near = scale.margin(margin) if is_in_view else None
    has_long = any(len(seed) > LONG_SEED for seed in cells.seeds)
    drawn, [panel] = figure(2.4, Margins(right=LEGEND_IN + 0.75, bottom=1.0 if has_long else 0.5))
    shade_margin(panel, near, horizontal=True)
    if margin is not None and not is_in_view:
        panel.plot([], [], linestyle="none", label=f"margin (off axis):\n{margin:.2g} {short(verdict.unit, 12)}")
    styles = looks([arm.accum for arm in compared.arms])
    room = max(1.2, 0.3 * len(compared.arms))
    offsets = np.linspace(-0.3, 0.3, len(compared.arms)) if len(compared.arms) > 1 else [0.0]
    for offset, arm in zip(offsets, compared.arms, strict=True):
        look = styles[arm.accum]
        y = differences[:, cells.accum.index(arm.accum)] / scale.divisor
        x = np.arange(len(y)) + offset
        panel.plot(x, y, color=look.colour, marker=look.marker, linestyle="none", markersize=_size(len(y)), label=f"k={arm.accum}")
        values = (arm.shift.mean, arm.shift.low, arm.shift.high)
        _mean(panel, len(y) + room / 2 - 0.3 + room * offset / 0.8, tuple(value / scale.divisor for value in values), look)
    _seed_axis(panel, [short(seed, 18) for seed in cells.seeds], room)
    _shift_axis(panel, scale, largest, near)
    panel.set_title(f"Differences from k={compared.reference}, same seed; right: means, 95 % intervals")
    legend(drawn, panel)
    return drawn


def _size(seeds: int) -> float:
    return 5.0 if seeds <= 20 else 3.5


def _mean(panel: Axes, x: float, values: tuple[float, ...], look: Look) -> None:
    mean, low, high = values
    if np.isfinite([low, high]).all():
        panel.plot([x, x], [low, high], color=look.colour, linewidth=2.0, marker="_", markersize=6)
    if np.isfinite(mean):
        panel.plot([x], [mean], color=look.colour, marker=look.marker, linestyle="none", markersize=6)


def _seed_axis(panel: Axes, seeds: list[str], room: float) -> None:
    """One place a seed, then ``room`` (in seeds) for the means."""
    step = -(-len(seeds) // MOST_TICKS)
    places = list(range(0, len(seeds), step))
    has_long = any(len(seed) > LONG_SEED for seed in seeds)
    labels = [seeds[place] for place in places]
    panel.set_xticks(
        [*places, len(seeds) + room / 2 - 0.3], [*labels, "mean"], rotation=30 if has_long else 0, ha="right" if has_long else "center"
    )
    panel.set_xlim(-0.6, len(seeds) + room)
    panel.axvline(len(seeds) - 0.4, color="#dfe3e8", linewidth=0.8)
    panel.grid(axis="x", visible=False)
    panel.set_xlabel("seed")


def _shift_axis(panel: Axes, scale: ShiftScale, largest: float, near: float | None) -> None:
    reach = max(largest / scale.divisor, near or 0.0)
    far = is_far(largest / scale.divisor, near)
    reach = reach * (1.6 if far else 1.12) or 1.0
    if far and near is not None:
        spread_log(panel.set_yscale, panel.yaxis, near, reach)
    panel.set_ylim(-reach, reach)
    panel.set_ylabel(f"difference ({scale.unit})" + (",\nlogarithmic outside the margin" if far else ""))
    if scale.opposite and not far:
        second = panel.secondary_yaxis("right", functions=both_ways(scale.opposite))
        second.set_ylabel(f"({scale.opposite_unit})")
        second.spines["right"].set_visible(True)
