"""Tables and numbers of a study's page, as Markdown; and the threads' figures, which lie beside the studies."""

import importlib.resources
import io
import math
from collections.abc import Sequence

import pandas as pd


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; nothing without rows."""
    if not rows:
        return ""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def number(value: float, digits: int = 3) -> str:
    """``value`` with so many significant digits; nothing for NaN."""
    return "" if math.isnan(value) else f"{value:.{digits}g}"


def share(value: float) -> str:
    """A proportion in percent; nothing for NaN."""
    return "" if math.isnan(value) else f"{100 * value:.1f} %"


def power_of_ten(tolerance: float, is_equal: bool) -> str:
    """The smallest power of ten at which a test passes that needs ``tolerance``."""
    if math.isnan(tolerance):
        return ""
    if is_equal:
        return "bits equal"
    if not math.isfinite(tolerance):
        return "none"
    return f"1e{math.ceil(math.log10(tolerance)):+03d}".replace("e-0", "e-").replace("e+0", "e+") if tolerance else "0 (rtol suffices)"


def thread_figures(name: str) -> pd.DataFrame:
    """The figures in ``name``, a CSV file with a comment that says where they are from; text as it is printed there, "" for none."""
    text = importlib.resources.files("accum_sweeps.analysis.studies").joinpath(name).read_text(encoding="utf-8")
    return pd.read_csv(io.StringIO(text), comment="#", dtype=str, keep_default_na=False)
