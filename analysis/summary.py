"""The table that a sweep ends with, as plain text: by setup and accumulation factor, at most 100 columns wide."""

import math
import textwrap
from collections import Counter
from collections.abc import Sequence

import pandas as pd

from accum_sweeps.analysis.comparison import Arm, Comparison
from accum_sweeps.analysis.verdict import Verdict, Verdicts, verdict
from accum_sweeps.analysis.words import decimals, interval, plain, signed

WIDTH = 100
RESPONSE = "eval_loss_final"


def render(results: pd.DataFrame, reference: int | None = None, response: str = RESPONSE, margin: float | None = None) -> str:
    """Final loss and paired difference by setup and k, one sentence a setup.

    ``results`` is a results table; ``reference``, ``response`` and ``margin`` as in :func:`accum_sweeps.analysis.verdict.verdict`.
    The intervals are 95 % t intervals of the mean paired difference, each by itself; sigma_tot is the SD over seeds of the
    reference arm, and the intervals in its unit take the estimate as known.
    """
    current = of_newest_plan(results)
    verdicts = verdict(current, response=response, reference=reference, margin=margin)
    if not verdicts:
        return "No run to tell of yet."
    shared = Counter(each.setup for each in verdicts)
    names = [f"{each.setup} ({each.setup_id})" if shared[each.setup] > 1 else each.setup for each in verdicts]
    blocks = [_block(name, each) for name, each in zip(names, verdicts, strict=True)]
    older = results["setup_id"].nunique() - len(verdicts) if len(current) < len(results) else 0
    last = [f"{older} setups of earlier plans of this sweep are in the results table and not shown here."] if older else []
    return "\n\n".join([_legend(verdicts), *blocks, *last])


def of_newest_plan(results: pd.DataFrame) -> pd.DataFrame:
    """The rows of those setups that the newest revision of each sweep's plan still holds, with all runs ever done of them."""
    if "revision" not in results or "sweep" not in results:
        return results
    newest = results["revision"] == results.groupby("sweep")["revision"].transform("max")
    return results[results["setup_id"].isin(results.loc[newest, "setup_id"])]


def _legend(verdicts: Verdicts) -> str:
    words = (
        f"{verdicts[0].response} by setup and accumulation factor k: mean over seeds, and mean paired difference from the reference "
        f"arm (same seed) with its 95 % interval, in {verdicts[0].unit} and in sigma_tot, the SD over seeds of the reference arm. "
        "Each interval is one by itself; those in sigma_tot take its estimate as known."
    )
    return textwrap.fill(words, WIDTH)


def _block(name: str, each: Verdict) -> str:
    lines = textwrap.wrap(name, WIDTH) or [""]
    if each.compared is not None:
        lines += _table([_HEAD, *_rows(each.compared, each.unit)])
    return "\n".join([*lines, *textwrap.wrap(f"-> {each.sentence}", WIDTH, initial_indent="  ", subsequent_indent="     ")])


_HEAD = ("k", "runs", "mean", "difference", "95 % interval", "in sigma_tot", "95 % interval")


def _rows(compared: Comparison, unit: str) -> list[tuple[str, ...]]:
    places = decimals(compared.sigma_tot)
    sigma = "" if math.isnan(compared.sigma_tot) else f"sigma_tot {plain(compared.sigma_tot, places)} {unit}"
    first = (compared.reference, (_count(compared), plain(compared.mean, min(places, 6)), "reference", sigma, "", ""))
    rows = [first, *((arm.accum, _arm(arm, places)) for arm in compared.arms)]
    return [(str(k), *cells) for k, cells in sorted(rows)]


def _arm(arm: Arm, places: int) -> tuple[str, ...]:
    mean, low, high = arm.in_sigma
    shift_places = decimals(arm.shift.high - arm.shift.mean)
    sigma_places = decimals(high - mean)
    return (
        _count(arm),
        plain(arm.mean, min(places, 6)),
        signed(arm.shift.mean, shift_places),
        interval(arm.shift.low, arm.shift.high, shift_places),
        signed(mean, sigma_places),
        interval(low, high, sigma_places),
    )


def _count(arm: Arm | Comparison) -> str:
    return f"{arm.finished} + {arm.diverged} diverged" if arm.diverged else str(arm.finished)


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[place]) for row in rows) for place in range(len(_HEAD))]
    return ["  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
