"""The part of a report that tells of one setup in full: verdict, pictures with captions, tables."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd
from matplotlib.figure import Figure

from accum_sweeps.analysis import figures
from accum_sweeps.analysis.component_tables import SetupComponents
from accum_sweeps.analysis.judged import Judged
from accum_sweeps.analysis.labels import told_apart
from accum_sweeps.analysis.report_opening import brief_names, setup_names
from accum_sweeps.analysis.report_tables import Table, setup_tables, verdict_words
from accum_sweeps.analysis.series import SetupCurves, points_of, setup_curves
from accum_sweeps.analysis.verdict import Verdict
from accum_sweeps.analysis.words import listed

MOST_DETAILED = 8
FIRST = {"effect": 0, "inconclusive": 1}  # whoever reads only a few setups reads these


@dataclass(frozen=True, kw_only=True)
class Picture:
    """An SVG element and what stands below it."""

    svg: str
    caption: str


@dataclass(frozen=True, kw_only=True)
class Section:
    """One setup in full."""

    anchor: str
    name: str
    brief: str
    code: str
    verdict: str
    sentence: str
    ladder: str
    pictures: tuple[Picture, ...]
    tables: tuple[Table, ...]
    missing: str


def detailed(judged: Judged) -> list[str]:
    """setup_id of the setups that are told of in full: effects first, then what is inconclusive, then in the table's order."""
    order = sorted(judged.opening, key=lambda each: FIRST.get(each.code, len(FIRST)))
    return [each.setup_id for each in order[:MOST_DETAILED]]


def sections(judged: Judged, points: pd.DataFrame | None, apart: pd.DataFrame | None) -> list[Section]:
    """The setups of :func:`detailed`, in that order; ``points`` and ``apart`` as for :func:`accum_sweeps.analysis.series.setup_curves`."""
    names, briefly = setup_names(judged.opening), brief_names(judged.opening)
    components = judged.components[judged.judging.response]
    places = {each.setup_id: place for place, each in enumerate(judged.opening)}
    shown = detailed(judged)
    points = None if points is None else points_of(points, judged.results[judged.results["setup_id"].isin(shown)])
    found = []
    for number, setup_id in enumerate(shown, start=1):
        place = places[setup_id]
        each = judged.opening[place]
        curves = setup_curves(judged.results, setup_id, points, apart)
        pictures = tuple(_pictures(each, components[place], curves, f"s{number}"))
        found.append(
            Section(
                anchor=f"setup-{number}",
                name=names[place],
                brief=briefly[place],
                code=each.code,
                verdict=verdict_words(each),
                sentence=each.sentence.removeprefix(f"{verdict_words(each)}: "),
                ladder=judged.ladders[setup_id].words if setup_id in judged.ladders else "",
                pictures=pictures,
                tables=tuple(setup_tables(each, components[place], judged)),
                missing=_missing(each, components[place], curves),
            )
        )
    return found


def _pictures(each: Verdict, components: SetupComponents, curves: SetupCurves, name: str) -> Iterator[Picture]:
    if each.compared is not None:
        yield _picture(figures.shift_intervals(each), f"{name}i", f"Shifts of {each.response} by k with intervals", _INTERVALS)
        yield _picture(figures.paired_by_seed(each), f"{name}p", f"Differences of {each.response} by seed and k", _PAIRED)
    if components.found is not None:
        yield _picture(figures.component_bars(components), f"{name}c", "Components of variance", _COMPONENTS)
    losses = {key: found for key, found in curves.losses.items() if max(len(curve.step) for curve in found) > 1}
    if losses:
        yield _picture(figures.loss_curves(losses, each.reference), f"{name}l", "Losses over optimizer steps by k", _LOSSES)
    if curves.apart:
        band = _BAND.format(kinds=listed(curves.controls)) if curves.rounding else "There are no controls to compare with."
        drawn = figures.weight_distances(curves, each.reference)
        yield _picture(drawn, f"{name}d", "Distance of the weights over steps by k", f"{_DISTANCES} {band}")


def _picture(drawn: Figure, name: str, label: str, caption: str) -> Picture:
    return Picture(svg=figures.to_svg(drawn, name, label), caption=caption)


_INTERVALS = "Mean paired shift and its 95 % t interval, each by itself. Within the shaded zone a shift is smaller than the margin."
_PAIRED = (
    "Each mark is one seed: the run at k minus the reference arm's run with the same seed. "
    "A mark is missing where one of the two has no finite value."
)
_COMPONENTS = (
    "Square roots of the estimated variances and of their limits; beside the bars each component's share of their sum. "
    "seed: what another seed changes; seed:k: what accumulation changes differently in each seed; rerun: what an equal run changes."
)
_LOSSES = (
    "Lines: mean over the seeds' runs that have a finite value at the step. "
    "Band: smallest to largest value of the reference arm's runs at the step."
)
_DISTANCES = "Lines: median over seeds of the relative distance between a run and the reference arm's run with the same seed."
_BAND = "Band: smallest to largest distance between a run and its {kinds} control, over all seeds and k: what rounding alone does."


def _missing(each: Verdict, components: SetupComponents, curves: SetupCurves) -> str:
    """Which pictures there are not, and why."""
    gaps = []
    if each.compared is None:
        gaps.append("no arm to compare with the reference arm")
    if components.found is None:
        gaps.append(f"no components of variance: {components.why_not}")
    if not curves.losses:
        gaps.append("no curves: the measured points are not here")
    if not curves.apart:
        gaps.append("no distances of weights: no sketches are here")
    return "; ".join(gaps)


def overviews(judged: Judged) -> Sequence[Picture]:
    """All setups at a glance, so many to a picture as can be read; none where there is but one."""
    verdicts = judged.opening
    if len(verdicts) < 2:
        return []
    names = told_apart(setup_names(verdicts), figures.LONGEST_NAME)
    size = figures.ROWS_A_PICTURE
    parts = [(verdicts[start : start + size], names[start : start + size]) for start in range(0, len(verdicts), size)]
    return [
        Picture(
            svg=figures.to_svg(figures.overview(some, labels), f"o{number}", f"Shifts of {some[0].response} in all setups"),
            caption=_OVERVIEW,
        )
        for number, (some, labels) in enumerate(parts)
    ]


_OVERVIEW = (
    "Each row is a setup, each line an accumulation factor: mean paired shift and 95 % interval, in units of the setup's own sigma_tot. "
    "The shaded part of a row is its margin."
)
