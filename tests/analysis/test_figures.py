"""The pictures: what they show is where it belongs, whatever the data; one look; inline SVG that a page can hold."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from dataclasses import replace

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from accum_sweeps.analysis import figures
from accum_sweeps.analysis.component_tables import SetupComponents
from accum_sweeps.analysis.figures import style
from accum_sweeps.analysis.judged import Judged
from accum_sweeps.analysis.mls import Interval
from accum_sweeps.analysis.series import Curve, SetupCurves
from accum_sweeps.analysis.verdict import Verdict
from tests.analysis.judgings import ARMS, AWKWARD, drawn, judged, several, with_controls
from tests.analysis.roots import table


def curve(accum: int, middle: list[float], spread: float = 0.1, runs: int = 3) -> Curve:
    y = np.array(middle)
    return Curve(accum=accum, runs=runs, step=np.arange(1.0, len(y) + 1), middle=y, low=y * (1 - spread), high=y * (1 + spread))


CURVES = SetupCurves(
    losses={"train_loss": (curve(1, [5, 4, 3]), curve(2, [5, 4, 3.1])), "eval_loss": (curve(1, [4, 3]), curve(2, [4, 3.1]))},
    apart=(curve(2, [0.0, 1e-7, 1e-6]), curve(4, [1e-8, 1e-7, 2e-6])),
    rounding=curve(0, [0.0, 2e-7, 1e-6], 0.5),
    controls=("regroup",),
)


def pictures(found: Judged) -> Iterator[Figure]:
    """Every picture that there can be of a judged table."""
    for each, components in zip(found.opening, found.components[found.judging.response], strict=True):
        if each.compared is not None:
            yield figures.shift_intervals(each)
            yield figures.paired_by_seed(each)
        if components.found is not None:
            yield figures.component_bars(components)
    if found.opening:
        yield figures.overview(found.opening, [each.setup for each in found.opening])


def opening(**options: float) -> Verdict:
    return judged(with_controls(table(drawn(8, **options)))).opening[0]  # type: ignore[arg-type]


def xy(line: Line2D) -> tuple[list[float], list[float]]:
    return np.asarray(line.get_xdata()).tolist(), np.asarray(line.get_ydata()).tolist()


def bars(axes: Axes) -> list[Rectangle]:
    return [patch for patch in axes.patches if isinstance(patch, Rectangle)]


def lines(picture: Figure, label: str) -> list[tuple[list[float], list[float]]]:
    """x and y of every line of the first axes with this marker's label."""
    return [xy(line) for line in picture.axes[0].get_lines() if line.get_label() == label]


@pytest.mark.parametrize("name", AWKWARD)
def test_every_picture_can_be_drawn_of_any_table(name: str) -> None:
    for number, picture in enumerate(pictures(judged(AWKWARD[name]))):
        svg = figures.to_svg(picture, f"p{number}", "a picture")
        root = ET.fromstring(svg.replace("\x00", "").replace("xlink:", ""))
        assert root.tag == "svg" and root.get("role") == "img" and root.get("width") is None
        ids = [each.get("id") for each in root.iter() if each.get("id")]
        assert len(ids) == len(set(ids)) and all(str(each).startswith(f"p{number}-") for each in ids)
        assert "nan" not in " ".join(each.get("d", "") + each.get("x", "") for each in root.iter())
        assert not re.search(r"https?:|<!--|<metadata", svg)


def test_two_hundred_setups_fit_into_pictures_of_forty() -> None:
    found = judged(several({f"setup {n}": drawn(3) for n in range(200)})).opening
    assert figures.ROWS_A_PICTURE == 40
    picture = figures.overview(found[:40], [each.setup for each in found[:40]])
    assert [text.get_text() for text in picture.axes[0].get_yticklabels()] == [f"setup {n}" for n in range(40)]
    assert picture.get_figheight() < 25


@pytest.mark.parametrize(
    "draw",
    [
        lambda: figures.shift_intervals(opening()),
        lambda: figures.paired_by_seed(opening()),
        lambda: figures.component_bars(judged(table(drawn(8))).components["eval_loss_final"][0]),
        lambda: figures.overview([opening()], ["x"]),
        lambda: figures.loss_curves(CURVES.losses, 1),
        lambda: figures.weight_distances(CURVES, 1),
    ],
)
def test_axes_have_units_and_legends_lie_outside_of_the_data(draw: Callable[[], Figure]) -> None:
    picture = draw()
    before = settings()
    svg = figures.to_svg(picture, "x", "y")  # lays it out
    assert settings() == before
    for axes in picture.axes:
        assert "(" in axes.get_xlabel() + axes.get_ylabel() and axes.get_title("left")
        boxes = [legend.get_window_extent() for legend in picture.legends]
        assert not any(box.overlaps(axes.get_window_extent()) for box in boxes)
    assert {axes.title.get_fontsize() for axes in picture.axes} == {picture.axes[0].title.get_fontsize()}
    assert figures.to_svg(draw(), "x", "y") == svg


def settings() -> dict[str, object]:
    """matplotlib's own settings; to ask for the backend chooses one."""
    return {key: mpl.rcParams[key] for key in mpl.rcParams if key != "backend"}


@pytest.mark.parametrize("arms", [1, 2, 3, 7, 8, 16, 40])
def test_arms_can_be_told_apart_in_grey(arms: int) -> None:
    looks = list(style.looks([2**n for n in range(1, arms + 1)]).values())
    lightness = [np.dot(to_rgb(look.colour), (0.299, 0.587, 0.114)) for look in looks]
    assert np.all(np.diff(lightness) >= 0) and lightness[0] > np.dot(to_rgb(style.INK), (0.299, 0.587, 0.114)) + 0.05
    assert len({look.colour for look in looks}) == min(arms, style.SHADES)
    assert len({(look.marker, str(look.dashes)) for look in looks}) == min(arms, len(style.MARKERS))
    if 1 < arms < 8:
        assert min(np.diff(lightness)) > 0.05


def test_the_dark_ground_has_a_colour_for_each_of_the_light_one() -> None:
    light, dark = (dict(re.findall(r"--fig-(\w+): (#\w+);", figures.css_colours(dark=dark))) for dark in (False, True))
    assert light.keys() == dark.keys() and len(set(light.values())) == len(light)
    svg = figures.to_svg(figures.shift_intervals(opening()), "x", "y")
    assert set(re.findall(r"var\(--fig-(\w+),", svg)) <= light.keys()
    assert set(re.findall(r"(?<!,)#[0-9a-f]{6}\b", svg)) <= {"#000000", "#ffffff"}


def test_intervals_stand_where_the_verdict_has_them() -> None:
    verdict = opening()
    assert verdict.compared is not None and verdict.margin.value is not None
    picture = figures.shift_intervals(verdict)
    axes = picture.axes[0]
    points = [(xy(line)[0][0], xy(line)[1][0]) for line in axes.get_lines() if line.get_marker() in style.MARKERS]
    assert points == [(pytest.approx(arm.in_sigma[0]), row) for row, arm in enumerate(verdict.compared.arms)]
    ends = [sorted(xy(line)[0]) for line in axes.get_lines() if line.get_marker() == "|"]
    assert ends == [pytest.approx(list(arm.in_sigma[1:])) for arm in verdict.compared.arms]
    zone = axes.patches[0].get_extents().transformed(axes.transData.inverted())
    margin = verdict.margin.value / verdict.compared.sigma_tot
    assert (zone.x0, zone.x1) == (pytest.approx(-margin), pytest.approx(margin))
    assert [label.get_text() for label in axes.get_yticklabels()] == ["k=2", "k=4", "k=8"]
    secondary = axes.child_axes[0]
    assert secondary.get_xlabel() == "(nats)"
    figures.to_svg(picture, "x", "y")
    assert secondary.get_xlim()[1] == pytest.approx(axes.get_xlim()[1] * verdict.compared.sigma_tot)


def test_every_pair_has_its_mark_and_a_margin_far_away_is_told_in_words() -> None:
    verdict = opening(noise=1e-6)
    assert verdict.compared is not None
    picture = figures.paired_by_seed(verdict)
    [(x, y)] = lines(picture, "k=4")
    factor = style.unit_scale(1e-6 / verdict.compared.sigma_tot, "sigma_tot")[0]
    expected = (verdict.cells.y[:, 2] - verdict.cells.y[:, 0]) / verdict.compared.sigma_tot / factor
    assert y == pytest.approx(expected.tolist()) and np.round(x).tolist() == list(range(8))
    assert picture.axes[0].get_ylabel() == "difference (1e-6 sigma_tot)"
    assert any(f"margin (off axis):\n{verdict.margin.value:.2g} nats" in text.get_text() for text in picture.legends[0].get_texts())
    assert not picture.axes[0].patches


def test_a_shift_far_beyond_the_margin_makes_the_axis_logarithmic_and_says_so() -> None:
    far = figures.shift_intervals(opening(shift=0.5)).axes[0]
    assert far.get_xscale() == "symlog" and "logarithmic outside the margin" in far.get_xlabel()
    near = figures.shift_intervals(opening()).axes[0]
    assert near.get_xscale() == "linear" and "logarithmic" not in near.get_xlabel()


def test_an_arm_without_a_pair_says_so() -> None:
    found = judged(AWKWARD["one arm diverged"]).opening[0]
    words = [text.get_text() for text in figures.shift_intervals(found).axes[0].texts]
    assert words == ["no pair of finished runs"]


def components_of(**changes: object) -> SetupComponents:
    found = judged(table(drawn(8))).components["eval_loss_final"][0]
    assert found.found is not None
    return replace(found, found=replace(found.found, **changes))  # type: ignore[arg-type]


def test_bars_are_standard_deviations_on_a_logarithmic_axis_where_they_span_decades() -> None:
    components = components_of()
    axes = figures.component_bars(components).axes[0]
    frame = components.to_frame().iloc[:3]
    assert axes.get_xscale() == "log" and frame["sd"].max() > 20 * frame["sd"].min()
    assert [bar.get_x() + bar.get_width() for bar in bars(axes)] == pytest.approx(frame["sd"].tolist())
    assert [text.get_text().endswith(" %") for text in axes.texts] == [True, True, False]  # no share of the total
    close = judged(table(drawn(8, noise=0.03))).components["eval_loss_final"][0]
    assert figures.component_bars(close).axes[0].get_xscale() == "linear"


def test_an_estimate_at_the_boundary_and_an_unbounded_interval_are_said_in_words() -> None:
    base = components_of().found
    assert base is not None
    zero = replace(base.seed_k, estimate=0.0, interval=Interval(0.0, 0.0))
    open_end = replace(base.seed, interval=Interval(base.seed.interval.low, np.inf))
    axes = figures.component_bars(components_of(seed=open_end, seed_k=zero)).axes[0]
    assert [text.get_text() for text in axes.texts] == ["100 %, unbounded", "0 (at the boundary)", ""]
    assert [line.get_marker() for line in axes.get_lines()].count(">") == 1
    assert bars(axes)[1].get_width() == 0


def test_loss_curves_show_each_arm_and_the_band_of_the_reference_arm_alone() -> None:
    picture = figures.loss_curves(CURVES.losses, 1)
    assert [axes.get_title("left") for axes in picture.axes] == ["Training loss", "Evaluation loss"]
    assert lines(picture, "k=2") == [([1, 2, 3], [5, 4, 3.1])]
    [band] = picture.axes[0].collections
    y = np.asarray(band.get_paths()[0].vertices)[:, 1]
    assert (y.min(), y.max()) == (pytest.approx(2.7), pytest.approx(5.5))
    labels = [text.get_text() for text in picture.legends[0].get_texts()]
    assert labels == ["k=1, range\nof 3 seeds", "k=1 (reference)", "k=2"]


def test_losses_over_decades_have_a_logarithmic_axis() -> None:
    wide = {"train_loss": (curve(1, [5e6, 3.0]), curve(2, [5.0, 3.0]))}
    assert figures.loss_curves(wide, 1).axes[0].get_yscale() == "log"
    assert figures.loss_curves(CURVES.losses, 1).axes[0].get_yscale() == "linear"


def test_distances_of_exactly_zero_stand_below_all_others_and_are_named() -> None:
    picture = figures.weight_distances(CURVES, 1)
    axes = picture.axes[0]
    [(_, y)] = lines(picture, "k=2")
    assert axes.get_yscale() == "log" and y[1:] == [1e-7, 1e-6]
    assert 0 < y[0] < 1e-8 and axes.get_ylim()[0] < y[0]
    assert [text.get_text() for text in axes.texts] == ["exactly 0"]
    without = replace(CURVES, apart=CURVES.apart[1:], rounding=None, controls=())
    assert not figures.weight_distances(without, 1).axes[0].texts


def test_equal_weights_throughout_can_be_shown() -> None:
    zeros = SetupCurves(losses={}, apart=(curve(2, [0.0, 0.0]),), rounding=curve(0, [0.0, 0.0]), controls=("order",))
    assert figures.to_svg(figures.weight_distances(zeros, 1), "x", "y").startswith("<svg")


def test_labels_are_taken_literally_and_cut_in_their_middle() -> None:
    found = judged(AWKWARD["strange label"]).opening
    svg = figures.to_svg(figures.overview(found, [found[0].setup]), "x", 'a "label" \\1')
    assert "&lt;script&gt;alert" in svg and "<script" not in svg
    assert 'aria-label="a &quot;label&quot; \\1"' in svg
    literal = figures.overview(found, ["$x_1$ costs $2"])
    assert "$x_1$ costs $2" in figures.to_svg(literal, "x", "y")


@pytest.mark.parametrize(
    ("largest", "factor", "words"), [(0.5, 1, "nats"), (2e-6, 1e-6, "1e-6 nats"), (3e6, 1e6, "1e6 nats"), (0, 1, "nats")]
)
def test_an_axis_needs_no_exponents(largest: float, factor: float, words: str) -> None:
    assert style.unit_scale(largest, "nats") == (pytest.approx(factor), words)


def test_the_arms_of_the_tests_are_those_of_the_pictures() -> None:
    assert set(style.looks(ARMS[1:])) == set(ARMS[1:])
