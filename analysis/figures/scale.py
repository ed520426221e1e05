"""Axes of shifts: in units of sigma_tot with the response's unit opposite, linear or, for shifts far beyond the margin, symmetric-log."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from numpy.typing import ArrayLike

from accum_sweeps.analysis.figures.style import ZONE, unit_scale

Convert = Callable[[ArrayLike], ArrayLike]
FAR = 30.0  # times the margin (or the median size): then a linear axis would hide what is near 0


@dataclass(frozen=True, kw_only=True)
class ShiftScale:
    """``divisor`` takes a shift to the axis's unit; ``opposite`` and ``opposite_unit`` say what the second axis shows (0: none)."""

    divisor: float
    unit: str
    opposite: float = 0.0
    opposite_unit: str = ""

    def margin(self, margin: float | None) -> float | None:
        """The margin in the axis's unit."""
        return None if margin is None else margin / self.divisor


def shift_scale(sigma_tot: float, unit: str, largest: float) -> ShiftScale:
    """sigma_tot with ``unit`` opposite; where there is no sigma_tot, ``unit`` alone. ``largest``: the largest value that is shown."""
    factor, words = unit_scale(largest, unit)
    if not (np.isfinite(sigma_tot) and sigma_tot > 0):
        return ShiftScale(divisor=factor, unit=words)
    sigma_factor, sigma_words = unit_scale(largest / sigma_tot, "sigma_tot")
    divisor = sigma_tot * sigma_factor
    return ShiftScale(divisor=divisor, unit=sigma_words, opposite=divisor / factor, opposite_unit=words)


def both_ways(factor: float) -> tuple[Convert, Convert]:
    """From one axis to the one opposite, and back."""
    return lambda values: np.asarray(values) * factor, lambda values: np.asarray(values) / factor


def finite_largest(values: Iterable[float]) -> float:
    """The largest finite absolute value, 0 where there is none."""
    array = np.abs(np.fromiter(values, dtype=np.float64))
    array = array[np.isfinite(array)]
    return float(array.max()) if len(array) else 0.0


def shade_margin(panel: Axes, margin: float | None, *, horizontal: bool) -> None:
    """The zone of shifts that do not matter, and the line of none."""
    line, span = (panel.axhline, panel.axhspan) if horizontal else (panel.axvline, panel.axvspan)
    if margin is not None:
        span(-margin, margin, color=ZONE, linewidth=0, zorder=0, label="within the margin")
    line(0, color="#5d6670", linewidth=1.0, zorder=1)


def is_far(largest: float, near: float | None) -> bool:
    """Whether the axis must be symmetric-log: linear up to ``near``."""
    return near is not None and near > 0 and largest > FAR * near


def spread_log(set_scale: Callable[..., None], axis: Axis, near: float, reach: float) -> None:
    """A symmetric-log axis that is linear up to ``near``, with ticks at 0 and at the powers of ten from ``near`` to ``reach``."""
    set_scale("symlog", linthresh=near, linscale=1.0)
    powers = [10.0**n for n in range(int(np.ceil(np.log10(near))), int(np.floor(np.log10(reach))) + 1)]
    axis.set_major_locator(FixedLocator([*(-power for power in reversed(powers)), 0.0, *powers]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
