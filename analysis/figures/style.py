"""One look for all pictures: sizes, colours whose order survives in grey, axes and legends; and a picture as inline SVG.

Every colour of a picture is one of ``LIGHT``; in the SVG it becomes a CSS variable, so that a page decides what it is on a dark ground
and in print.
"""

import io
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from html import escape
from typing import Any, ParamSpec, TypeVar

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

P = ParamSpec("P")
R = TypeVar("R")

WIDTH_IN = 8.0
LEGEND_IN = 1.75  # room for legends, at the right
SHADES = 16
INK, MUTED, GRID, ZONE, BAND = "#20242a", "#5d6670", "#dfe3e8", "#e4eaf1", "#c9ced5"
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))


def _shades(low: float, high: float) -> tuple[str, ...]:
    """Colours of growing lightness that the colour-blind tell apart, too: a stretch of the map "plasma"."""
    return tuple(to_hex(mpl.colormaps["plasma"](place)) for place in np.linspace(low, high, SHADES))


# On a light ground from dark to light, on a dark one likewise, but lighter throughout. The reference arm has the ink's colour.
_ON_LIGHT, _ON_DARK = _shades(0.24, 0.84), _shades(0.42, 1.0)
LIGHT = {"ink": INK, "muted": MUTED, "grid": GRID, "zone": ZONE, "band": BAND} | {f"arm{n}": c for n, c in enumerate(_ON_LIGHT)}
DARK = {"ink": "#e8eaed", "muted": "#a5adb7", "grid": "#343a42", "zone": "#263040", "band": "#4a515b"} | {
    f"arm{n}": c for n, c in enumerate(_ON_DARK)
}

STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Helvetica", "Arial"],
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titley": 1.0,  # where it is put by default anyway, but without measuring every label of the axes first
    "axes.labelsize": 9,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "text.color": INK,
    "text.parse_math": False,  # labels of users may hold dollar signs
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.unicode_minus": False,
    "axes.formatter.useoffset": False,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "lines.linewidth": 1.5,
    "lines.markersize": 5,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "svg.fonttype": "none",  # text stays text: searchable, small, in the reader's own font
    "path.simplify": True,
}


@dataclass(frozen=True, kw_only=True)
class Look:
    """How one arm is drawn everywhere: told from the others by lightness, by marker and by dashes."""

    colour: str
    marker: str
    dashes: Any


REFERENCE = Look(colour=INK, marker="o", dashes="-")


def looks(accum: Sequence[int]) -> dict[int, Look]:
    """The looks of the accumulated arms, ascending by k, from dark to light."""
    spread = np.linspace(0, SHADES - 1, len(accum)).round().astype(int).tolist()
    places = spread if len(accum) != 1 else [SHADES // 3]
    return {
        k: Look(colour=_ON_LIGHT[place], marker=MARKERS[(number + 1) % len(MARKERS)], dashes=DASHES[(number + 1) % len(DASHES)])
        for number, (k, place) in enumerate(zip(sorted(accum), places, strict=True))
    }


def styled(draw: Callable[P, R]) -> Callable[P, R]:
    """``draw`` with the common style, which is put back afterwards."""

    @wraps(draw)
    def inner(*args: P.args, **kwargs: P.kwargs) -> R:
        with mpl.rc_context(STYLE):
            return draw(*args, **kwargs)

    return inner


@dataclass(frozen=True, kw_only=True)
class Margins:
    """Room around the axes in inches: measuring every label instead would double the time that a picture takes."""

    left: float = 0.85
    right: float = LEGEND_IN
    top: float = 0.32
    bottom: float = 0.5


def figure(height_in: float, margins: Margins, panels: int = 1, gap_in: float = 0.8) -> tuple[Figure, list[Axes]]:
    """A figure of the common width with ``panels`` axes side by side; ``height_in`` is that of the axes."""
    height = height_in + margins.top + margins.bottom
    drawn = Figure(figsize=(WIDTH_IN, height))
    width = (WIDTH_IN - margins.left - margins.right - gap_in * (panels - 1)) / panels
    lefts = [margins.left + number * (width + gap_in) for number in range(panels)]
    boxes = [(left / WIDTH_IN, margins.bottom / height, width / WIDTH_IN, height_in / height) for left in lefts]
    return drawn, [drawn.add_axes(box) for box in boxes]


def legend(drawn: Figure, axes: Axes) -> None:
    """The legend of ``axes``, to the right of all data."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        place = ((WIDTH_IN - LEGEND_IN + 0.1) / WIDTH_IN, 1.0)
        drawn.legend(handles, labels, loc="upper left", bbox_to_anchor=place, handlelength=2.4, borderaxespad=0.3)


def plain_log(axis: Any) -> None:
    """Powers of ten written as 1e-05, as everywhere else in a report."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def unit_scale(largest: float, unit: str) -> tuple[float, str]:
    """What to divide values by so that an axis needs no exponents, and the unit to write: (1e-6, "1e-6 nats")."""
    if not np.isfinite(largest) or largest == 0 or 1e-3 <= largest < 1e5:
        return 1.0, unit
    exponent = 3 * int(np.floor(np.log10(largest) / 3))
    return 10.0**exponent, f"1e{exponent:d} {unit}"


def to_svg(drawn: Figure, name: str, label: str) -> str:
    """The picture as an element for a page: no fixed size, colours as CSS variables ``--fig-*``, ids that begin with ``name``.

    ``label`` is read out in place of the picture.
    """
    buffer = io.StringIO()
    with mpl.rc_context(STYLE | {"svg.hashsalt": name}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # the reader's browser has the font
        drawn.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->\s*", "", text, flags=re.DOTALL)
    opening = f'role="img" aria-label="{escape(label)}">'
    text = re.sub(r'^<svg [^>]*?viewBox="([^"]*)"[^>]*>', lambda found: f'<svg viewBox="{found[1]}" {opening}', text, count=1)
    return _with_variables(_with_own_ids(text, name)).strip()


def _with_own_ids(text: str, name: str) -> str:
    """Only ids that something refers to stay, with ``name`` before them: a page holds many pictures."""
    used = set(re.findall(r'(?:url\(#|href="#)([^")]+)', text))
    text = re.sub(r' id="([^"]+)"', lambda found: f' id="{name}-{found[1]}"' if found[1] in used else "", text)
    return re.sub(r'(url\(#|href="#)([^")]+)', rf"\1{name}-\2", text)


def _with_variables(text: str) -> str:
    names = {colour: name for name, colour in LIGHT.items()}
    return re.sub(r"#[0-9a-f]{6}\b", lambda found: f"var(--fig-{names[found[0]]},{found[0]})" if found[0] in names else found[0], text)


def css_colours(dark: bool = False) -> str:
    """Declarations of the variables, for a light or a ``dark`` ground."""
    return " ".join(f"--fig-{name}: {colour};" for name, colour in (DARK if dark else LIGHT).items())
