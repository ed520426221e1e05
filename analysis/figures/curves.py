"""Curves over optimizer steps: losses by arm, and how far the weights are from the reference arm's."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from accum_sweeps.analysis.figures.style import BAND, REFERENCE, ZONE, Look, Margins, figure, legend, looks, plain_log, styled
from accum_sweeps.analysis.paired import Floats
from accum_sweeps.analysis.series import Curve, SetupCurves

LOG_RANGE = 50.0  # beyond it a loss axis is logarithmic
UNITS = "nats per token"
TITLES = {"train_loss": "Training loss", "eval_loss": "Evaluation loss"}


@styled
def loss_curves(losses: Mapping[str, Sequence[Curve]], reference: int) -> Figure:
    """One panel a metric: the mean over seeds of every arm, and the range over seeds of the reference arm."""
    drawn, panels = figure(2.3, Margins(), panels=len(losses))
    for panel, (key, curves) in zip(panels, losses.items(), strict=True):
        _losses(panel, curves, reference)
        panel.set_title(TITLES.get(key, key))
        panel.set_xlabel("optimizer steps")
        panel.set_ylabel(f"{key} ({UNITS})")
    legend(drawn, panels[0])
    return drawn


def _losses(panel: Axes, curves: Sequence[Curve], reference: int) -> None:
    styles = looks([curve.accum for curve in curves if curve.accum != reference])
    for curve in sorted(curves, key=lambda each: each.accum != reference):
        is_reference = curve.accum == reference
        if is_reference:
            panel.fill_between(curve.step, curve.low, curve.high, color=BAND, alpha=0.75, linewidth=0, label=_seeds(curve))
        look = REFERENCE if is_reference else styles[curve.accum]
        label = f"k={curve.accum}" + (" (reference)" if is_reference else "")
        # The reference lies below, wider: where arms lie on it, both are seen.
        place = 0.0 if is_reference else (1 + sorted(styles).index(curve.accum)) / (1 + len(styles))
        _line(panel, curve.step, curve.middle, look, label=label, width=3.0 if is_reference else 1.4, place=place)
    values = np.concatenate([curve.middle for curve in curves] or [np.empty(0)])
    if len(values) and values.min() > 0 and values.max() > LOG_RANGE * values.min():
        panel.set_yscale("log")
        plain_log(panel.yaxis)


def _seeds(curve: Curve) -> str:
    return f"k={curve.accum}, range\nof {curve.runs} seeds" if curve.runs > 1 else f"k={curve.accum}, one seed"


def _line(panel: Axes, x: Floats, y: Floats, look: Look, *, label: str, width: float, place: float = 0.0) -> None:
    """A curve with a few markers, so that arms can be told apart without colour; ``place`` (0 to 1) keeps arms' markers apart."""
    every = max(1, len(x) // 6)
    start = int(every * place)
    (line,) = panel.plot(x, y, color=look.colour, linestyle=look.dashes, linewidth=width, label=label, marker=look.marker, markersize=4.5)
    line.set_markevery((start, every))


@styled
def weight_distances(curves: SetupCurves, reference: int) -> Figure:
    """Relative distance of the weights from the reference arm's run, median over seeds by arm, with the band of the controls.

    The axis is logarithmic; a distance of exactly 0 stands on a line of its own at its foot.
    """
    drawn, [panel] = figure(2.4, Margins())
    bands = [*curves.apart, *([curves.rounding] if curves.rounding else [])]
    positive = np.concatenate([values[values > 0] for curve in bands for values in (curve.low, curve.middle, curve.high)] or [np.empty(0)])
    has_zeros = any((curve.middle == 0).any() or (curve.low == 0).any() for curve in bands)
    foot = positive.min() / (4 if has_zeros else 1) if len(positive) else 1e-16
    if curves.rounding is not None:
        band = curves.rounding
        label = f"{', '.join(curves.controls)}\ncontrols, range"
        panel.fill_between(band.step, _raised(band.low, foot), _raised(band.high, foot), color=BAND, alpha=0.75, linewidth=0, label=label)
    styles = looks([curve.accum for curve in curves.apart])
    for curve in curves.apart:
        _line(panel, curve.step, _raised(curve.middle, foot), styles[curve.accum], label=f"k={curve.accum}", width=1.5)
    panel.set_yscale("log")
    panel.set_ylim(foot / 1.6, (positive.max() if len(positive) else 1.0) * 2)
    plain_log(panel.yaxis)
    if has_zeros:
        _mark_zero(panel, foot)
    panel.set_title(f"Distance of the weights from those of k={reference}, same seed")
    panel.set_xlabel("optimizer steps")
    panel.set_ylabel("L2 distance (in norms of the weights)")
    legend(drawn, panel)
    return drawn


def _raised(values: Floats, foot: float) -> Floats:
    return np.where(values > 0, values, foot)


def _mark_zero(panel: Axes, foot: float) -> None:
    """The line of distances that are exactly 0."""
    panel.axhspan(foot / 1.6, foot * 1.6, color=ZONE, linewidth=0, zorder=0)
    panel.annotate("exactly 0", (1, foot), xycoords=("axes fraction", "data"), ha="right", va="center", fontsize=8)
