"""The methods as a report states them: rules and constants from the code that applies them, and the rules' simulated error rates."""

import inspect
import math
import re
from typing import Any

from accum_sweeps.analysis import margin as margins
from accum_sweeps.analysis.dispersion import expected_log_ratio
from accum_sweeps.analysis.equivalence import MARGIN_IN_SD
from accum_sweeps.analysis.judged import Judged
from accum_sweeps.analysis.paired import LEVEL
from accum_sweeps.analysis.rates import ARMS, EARLIER_SEEDS, stored_rates
from accum_sweeps.analysis.report_tables import Table
from accum_sweeps.analysis.rules import CODES, EXCESS_LIMIT, LAMBDA_LIMIT, MIN_COMPLETE_SEEDS, PATH_SHARE_LIMIT, decide
from accum_sweeps.analysis.sentences import WORDS
from accum_sweeps.plan.judging import ALPHA

SHARP = ("negligible", "indistinguishable", "equivalent")  # verdicts that call a shift small


def rules() -> str:
    """The rules in the words of the function that applies them."""
    # A line of the documentation that continues another one joins it: the page breaks lines where it needs to.
    return re.sub(r"(?<!\n)\n(?!\n|\d\. )\s*", " ", inspect.cleandoc(decide.__doc__ or ""))


def definitions() -> list[tuple[str, str]]:
    """The quantities of the tables, by name."""
    level = f"{100 * LEVEL:g} %"
    return [
        (
            "shift (tau_k)",
            f"mean over seeds of the response at k minus that at the reference arm with the same seed; {level} t interval, each by itself; "
            "p of the paired t test (or of the sign-flip test, where that was asked for)",
        ),
        ("sigma_tot", "standard deviation over seeds of the reference arm; shifts in its unit take the estimate as known"),
        (
            "Holm p",
            "adjusted over all 2K - 1 tests of one setup and response: K - 1 shifts, lambda, K - 1 divergences; "
            f"a test that cannot be made counts as p = 1. A test rejects at {ALPHA:g}",
        ),
        (
            "excess",
            "sum over k of the squared differences from the reference arm over that of the controls from their twins, geometric mean over "
            "seeds, divided by what it is on average if all is rounding "
            f"(arms share the reference run: {', '.join(f'{math.exp(expected_log_ratio(k - 1)):.3f} at K={k}' for k in (2, 3, 4, 5))})",
        ),
        ("q over setups", "the smallest Holm p of a setup, adjusted again over all setups judged together (Benjamini-Hochberg)"),
        (
            "margin",
            f"the largest shift that does not matter. Fixed in the plan, else {MARGIN_IN_SD:g} times the lower one-sided {level} limit of "
            "the SD of the reference arm, of an earlier sweep with other seeds or of this one "
            f"({margins.MIN_SEEDS} seeds or more); the estimate in place of its limit would be too wide in half of all sweeps",
        ),
        ("TOST p", f"two one-sided t tests that the shift lies within the margin, unadjusted, passed at {ALPHA:g}"),
        (
            "equivalent",
            f"TOST passes, and the upper one-sided {level} limit of the SD of the differences is at most sqrt(2) times the margin's SD "
            f"unit (the margin divided by {MARGIN_IN_SD:g})",
        ),
        (
            "lambda",
            "variance over the accumulated runs of a seed in units of that over their rounding controls, geometric mean over seeds, from "
            "a t interval of its logarithm. Controls change nothing but rounding; kinds of controls are never mixed. The limit for "
            f'"{WORDS["indistinguishable"]}" is {LAMBDA_LIMIT:g}',
        ),
        (
            "excess",
            "squared differences of the accumulated runs from the reference arm in units of those of their controls from their twins, by "
            "seed as for lambda; 1 if arms differ by rounding alone. A real dependence on the micro-batch moves a run and its control "
            f"alike, which lambda cannot see. No test, but a limit: {EXCESS_LIMIT:g} for that verdict",
        ),
        (
            "path variance",
            "half the mean squared difference between a control and its uncontrolled twin; the path share is its part of sigma_tot^2. "
            f"Above {PATH_SHARE_LIMIT:g} more seeds help little",
        ),
        ("divergence", "a run whose loss is not finite; exact McNemar test within seed. It is an outcome and never dropped"),
        (
            "components of variance",
            "seed, seed:k (accumulation by seed) and rerun; balanced tables by closed forms with modified large-sample intervals, others "
            f"by REML with profile intervals. Estimates are truncated at 0, raw ones beside them may be negative; {level} intervals",
        ),
        (
            "distance of weights",
            "L2 distance of the weights, estimated from a linear sketch of 4096 numbers (relative error about 1 %), relative to the norm "
            "of the other run's weights",
        ),
        ("complete seed", f"a finished or diverged run in every arm; {MIN_COMPLETE_SEEDS} are needed"),
    ]


def margin_sources(judged: Judged) -> list[str]:
    """Where the margins of all responses come from, a line for each response and source."""
    found = []
    for response, verdicts in judged.verdicts.items():
        values: dict[str, list[float]] = {}
        for each in verdicts:
            values.setdefault(each.margin.source, []).extend([] if each.margin.value is None else [each.margin.value])
        unit = verdicts[0].unit if verdicts else ""
        found += [f"{response}: {_span(numbers, unit)}{source}" for source, numbers in values.items()]
    return found


def _span(values: list[float], unit: str) -> str:
    if not values:
        return ""
    low, high = f"{min(values):.3g}", f"{max(values):.3g}"
    return f"{low} {unit}, " if low == high else f"{low} to {high} {unit}, "


def error_rates() -> Table:
    """The stored rates, one row a simulated truth, said in words; the last column sums the verdicts that are wrong of it."""
    rates = stored_rates()
    rows = tuple(_rate_row(row) for row in rates.to_dict("records"))
    sweeps = ", ".join(f"{number:,}" for number in sorted(rates["sweeps"].unique()))
    head = ("truth", "margin", "seeds", "path share", *(WORDS[code] for code in CODES), "wrong")
    caption = f"How often these rules come to each verdict, in % of {sweeps} simulated sweeps a row (K = {ARMS} arms)"
    return Table(caption=caption, head=head, rows=rows, words=(0, 1))


def _rate_row(row: dict[Any, Any]) -> tuple[str, ...]:
    margin = {"fixed": "fixed", "reference": "reference arm", "earlier": f"earlier sweep, {EARLIER_SEEDS} seeds"}[row["margin"]]
    rates = [f"{100 * row[code]:.1f}" for code in CODES]
    wrong = f"{100 * sum(row[code] for code in _wrong(row)):.1f}"
    return _truth(row), margin, f"{row['seeds']}", f"{row['path_share']:g}", *rates, wrong


def _truth(row: dict[Any, Any]) -> str:
    words = []
    if row["shift"]:
        times = "exactly the margin" if row["shift"] == 1 else f"{row['shift']:g} times the margin"
        words.append(f"one arm shifted by {times}")
    if row["lambda_"] != 1:
        words.append(f"accumulated runs vary {row['lambda_']:g} times as much as rounding (lambda)")
    if row["dependence"]:
        words.append(f"a dependence on the micro-batch, {row['dependence']:g} path variances in each accumulated run")
    if row["diverging_last"] != row["diverging"]:
        words.append(f"{row['diverging_last']:.0%} of one arm's runs diverge, {row['diverging']:.0%} of the others")
    if not words:
        words.append("only rounding")
    if row["scale_spread"] != 1:
        words.append(f"noise that differs up to {row['scale_spread']:g}-fold between seeds")
    if row["diverging"] and row["diverging_last"] == row["diverging"]:
        words.append(f"{row['diverging']:.0%} of all runs diverge")
    if not row["has_controls"]:
        words.append("no controls")
    return ", ".join(words)


def _wrong(row: dict[Any, Any]) -> tuple[str, ...]:
    """The codes that are wrong of a truth."""
    if row["shift"] >= 1 or row["diverging_last"] != row["diverging"]:
        return SHARP
    if row["lambda_"] >= LAMBDA_LIMIT or row["dependence"] > EXCESS_LIMIT:
        return ("indistinguishable",)
    return ("effect", "negligible")
