"""Numbers and lists as a person reads them: as many digits as the uncertainty allows, not more."""

import math
from collections.abc import Iterable, Sequence

MOST_ARMS = 8  # that a sentence lists
WIDTH = 100  # columns of a page of text


def decimals(uncertainty: float, significant: int = 2) -> int:
    """Decimals that show ``uncertainty`` with so many significant digits (0 or not finite: 4)."""
    if not math.isfinite(uncertainty) or uncertainty <= 0:
        return 4
    return max(0, significant - 1 - math.floor(math.log10(uncertainty)))


def signed(value: float, places: int) -> str:
    """``value`` with its sign; an exact 0 as ``0``, one that rounds to it as ``0.00``; over six decimals in powers of ten."""
    if math.isnan(value):
        return "?"
    if value == 0:
        return "0"
    if places > 6:
        return f"{value:+.1e}"
    return f"{value:+.{places}f}" if round(value, places) else f"{0:.{places}f}"


def plain(value: float, places: int) -> str:
    """``value`` without a sign, else as :func:`signed`."""
    return signed(value, places).removeprefix("+")


def interval(low: float, high: float, places: int) -> str:
    """``[low, high]``, or nothing where there is none."""
    return "" if math.isnan(low) else f"[{signed(low, places)}, {signed(high, places)}]"


def rounded_up(value: float) -> str:
    """A bound of two significant digits that is not below ``value``."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    exponent = math.floor(math.log10(abs(value)))
    unit = 10.0 ** (exponent - 1)
    bound = math.ceil(value / unit - 1e-9) * unit
    exponent = math.floor(math.log10(abs(bound)) + 1e-9)
    return f"{bound:.{max(0, 1 - exponent)}f}" if exponent >= -4 else f"{bound:.1e}"


def listed(words: Iterable[object]) -> str:
    """``a, b and c``."""
    *rest, last = [str(word) for word in words]
    return f"{', '.join(rest)} and {last}" if rest else last


def arms(accum: Iterable[int]) -> str:
    """``k=2, 4 and 8``; of very many their number and the largest: ``49 arms (up to k=50)``."""
    every = list(accum)
    return f"{len(every)} arms (up to k={max(every)})" if len(every) > MOST_ARMS else f"k={listed(every)}"


def percent(part: float, total: float) -> str:
    """``part`` of ``total`` in per cent with two significant digits; ``?`` where there is no total."""
    if not total > 0:
        return "?"
    share = 100 * part / total
    return f"{share:.2g} %" if share < 99.5 else f"{share:.0f} %"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines whose columns are flush right, indented by two."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return ["  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
