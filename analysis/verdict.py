"""The verdict on a setup: did accumulation change the response, compared with rounding and with seeds?

The statistics and the rules are in analysis.rules; here they meet tables, margins and words.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
from numpy.random import Generator

from accum_sweeps.analysis.cells import KINDS, Cells, by_data_seed, setups
from accum_sweeps.analysis.comparison import Arm, Comparison, compare
from accum_sweeps.analysis.margin import Margin, absolute_margin, margin_of_earlier_sweep, margin_of_reference_arm
from accum_sweeps.analysis.obstacles import obstacles
from accum_sweeps.analysis.paired import Floats, benjamini_hochberg
from accum_sweeps.analysis.rules import Decision, Statistics, decide, measure
from accum_sweeps.analysis.sentences import not_assessable, sentence
from accum_sweeps.plan.errors import UserError, one_of
from accum_sweeps.plan.judging import RESPONSE

PERPLEXITY = re.compile(r"perplexity|(^|[^a-z])ppl([^a-z]|$)", re.IGNORECASE)  # names of responses that are judged as their logarithm


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A setup's verdict for one response. ``code`` is one of rules.CODES, ``sentence`` says it in words.

    ``reasons`` say why it is not assessable. ``control`` is the kind of the rounding controls, empty without usable ones.
    ``statistics``, ``decision`` and ``compared`` are None if the reference arm is missing or alone. ``q`` is the smallest adjusted p
    value, adjusted again (Benjamini-Hochberg) over the setups that were judged together. The margin and all values are in ``unit``.
    """

    setup: str
    setup_id: str
    response: str
    unit: str
    reference: int
    code: str
    sentence: str
    reasons: tuple[str, ...]
    margin: Margin
    control: str
    statistics: Statistics | None
    decision: Decision | None
    compared: Comparison | None
    cells: Cells = field(repr=False)
    q: float = np.nan

    def to_frame(self) -> pd.DataFrame:
        """One row for each arm but the reference arm; shifts in ``unit``, columns ``*_sigma`` in units of sigma_tot."""
        if self.compared is None or self.statistics is None or self.decision is None:
            return pd.DataFrame(columns=COLUMNS)
        rows = [self._row(arm, self.compared, self.statistics, self.decision) for arm in self.compared.arms]
        return pd.DataFrame(rows, columns=COLUMNS)

    def _row(self, arm: Arm, compared: Comparison, statistics: Statistics, decision: Decision) -> dict[str, object]:
        dispersion, path = statistics.dispersion, statistics.path
        return {
            "setup": self.setup,
            "setup_id": self.setup_id,
            "response": self.response,
            "unit": self.unit,
            "code": self.code,
            "reference": self.reference,
            "accum": arm.accum,
            "finished": arm.finished,
            "diverged": arm.diverged,
            "pairs": arm.shift.pairs,
            "shift": arm.shift.mean,
            "shift_low": arm.shift.low,
            "shift_high": arm.shift.high,
            "shift_sigma": arm.in_sigma[0],
            "shift_sigma_low": arm.in_sigma[1],
            "shift_sigma_high": arm.in_sigma[2],
            "difference_sd": arm.shift.sd,
            "p": arm.p,
            "p_holm": arm.p_holm,
            "sigma_tot": compared.sigma_tot,
            "margin": np.nan if self.margin.value is None else self.margin.value,
            "margin_source": self.margin.source,
            "tost_p": arm.tost_p,
            "difference_sd_upper": arm.sd_upper,
            "control": self.control,
            "lambda": dispersion.ratio if dispersion else np.nan,
            "lambda_low": dispersion.low if dispersion else np.nan,
            "lambda_high": dispersion.high if dispersion else np.nan,
            "lambda_upper": dispersion.upper if dispersion else np.nan,
            "lambda_p_holm": decision.dispersion_p if dispersion and dispersion.is_assessable else np.nan,
            "excess": statistics.excess.ratio if statistics.excess else np.nan,
            "excess_upper": statistics.excess.upper if statistics.excess else np.nan,
            "divergence_p_holm": arm.divergence_p_holm,
            "path_sd": np.sqrt(path.value),
            "path_share": decision.path_share,
            "more_seeds": np.nan if decision.more_seeds is None else decision.more_seeds,
            "q": self.q,
        }


COLUMNS = [
    *("setup", "setup_id", "response", "unit", "code", "reference", "accum", "finished", "diverged", "pairs"),
    *("shift", "shift_low", "shift_high", "shift_sigma", "shift_sigma_low", "shift_sigma_high", "difference_sd", "p", "p_holm"),
    *("sigma_tot", "margin", "margin_source", "tost_p", "difference_sd_upper"),
    *("control", "lambda", "lambda_low", "lambda_high", "lambda_upper", "lambda_p_holm", "excess", "excess_upper"),
    "divergence_p_holm",
    *("path_sd", "path_share", "more_seeds", "q"),
]


class Verdicts(tuple[Verdict, ...]):
    """The verdicts of a table's setups, in its order. ``[v] = acs.verdict(...)`` where there is one setup; printed, a line for each."""

    __slots__ = ()

    def to_frame(self) -> pd.DataFrame:
        """All setups' rows: one for each arm but the reference arm."""
        frames = [verdict.to_frame() for verdict in self]
        return pd.concat([frame for frame in frames if len(frame)] or frames[:1] or [pd.DataFrame(columns=COLUMNS)], ignore_index=True)

    def __str__(self) -> str:
        return "\n".join(f"{verdict.setup}: {verdict.sentence}" for verdict in self)


def verdict(
    results: pd.DataFrame,
    *,
    response: str = RESPONSE,
    reference: int | None = None,
    margin: float | Margin | None = None,
    earlier: pd.DataFrame | None = None,
    control: str | None = None,
    sign_flip: bool = False,
    generator: Generator | None = None,
) -> Verdicts:
    """The verdict on each setup of a results table.

    ``reference`` is the accumulation factor that others are compared with, by default the smallest of each setup. ``margin`` is
    the largest shift that does not matter, in the response's unit (nats for a loss; a perplexity is taken as its logarithm); without
    it the margin comes from ``earlier``, the results table of an earlier sweep of the same setups with other seeds, else from the
    spread of the reference arm itself (five seeds or more). ``control`` names the kind of rounding controls, by default the one with
    most finished runs. ``sign_flip`` replaces the paired t tests; beyond 16 seeds it needs the ``generator``. Raises UserError for a
    missing column or a value that cannot be.
    """
    asked = absolute_margin(margin) if isinstance(margin, (int, float)) and not isinstance(margin, bool) else margin
    _check_arguments(response, reference, asked)
    if control is not None and control not in KINDS:
        raise UserError(f"control={control!r}: {one_of(control, KINDS)}")
    table, unit = in_unit(results, response)
    before = {} if earlier is None else {cells.setup_id: cells for cells in setups(in_unit(earlier, response)[0], response)}
    found = []
    for cells in setups(table, response):
        chosen = min(cells.accum) if reference is None else reference
        given = asked if isinstance(asked, Margin) else _margin(by_data_seed(cells), chosen, None if earlier is None else before)
        found.append(judge(cells, chosen, given, response=response, unit=unit, control=control, sign_flip=sign_flip, generator=generator))
    tested = {place: each.decision.smallest_p for place, each in enumerate(found) if each.decision and not each.reasons}
    q = dict(zip(tested, benjamini_hochberg(list(tested.values())).tolist(), strict=True))
    return Verdicts(replace(each, q=q.get(place, np.nan)) for place, each in enumerate(found))


def _check_arguments(response: object, reference: object, margin: object) -> None:
    if not isinstance(response, str):
        raise UserError(f"response={response!r}: must be the name of one column; call it once for each response")
    if reference is not None and (isinstance(reference, bool) or not isinstance(reference, (int, np.integer))):
        raise UserError(f"reference={reference!r}: must be an accumulation factor, a whole number")
    if margin is not None and not isinstance(margin, Margin):
        raise UserError(f"margin={margin!r}: must be a number in the response's unit; call it once for each response")


def in_unit(results: pd.DataFrame, response: str) -> tuple[pd.DataFrame, str]:
    """The table with ``response`` in the unit it is judged in, and that unit."""
    if PERPLEXITY.search(response) and response in results:
        with np.errstate(divide="ignore", invalid="ignore"):
            return results.assign(**{response: np.log(results[response].astype("float64"))}), "nats"
    units = {"wall_s": "s", "peak_mem_gb": "GiB"}
    return results, "nats" if "loss" in response else units.get(response, f"units of {response}")


def _margin(cells: Cells, reference: int, before: Mapping[str, Cells] | None) -> Margin:
    """Where none is given: from the same setup of an earlier sweep, or from the reference arm."""
    if before is None:
        return margin_of_reference_arm(_arm(cells, reference))
    found = before.get(cells.setup_id)
    earlier = None if found is None else by_data_seed(found)
    if earlier is None:
        return Margin(value=None, source="no margin: the earlier sweep has no run of this setup")
    return margin_of_earlier_sweep(_arm(earlier, reference), earlier.seeds, cells.seeds)


def _arm(cells: Cells, k: int) -> Floats:
    return cells.y[:, cells.accum.index(k)] if k in cells.accum else np.empty(0)


def judge(
    cells: Cells,
    reference: int,
    margin: Margin,
    *,
    response: str,
    unit: str,
    control: str | None = None,
    sign_flip: bool = False,
    generator: Generator | None = None,
) -> Verdict:
    """The verdict on one setup; seeds that share their data count together, as one."""
    whole, cells = cells, by_data_seed(cells)
    reasons = obstacles(cells, reference)
    kind = _control(cells, control)
    statistics = decision = compared = None
    if reference in cells.accum and len(cells.accum) > 1:
        statistics = measure(
            cells.y,
            cells.accum.index(reference),
            margin,
            controls=cells.controls.get(kind),
            diverged=cells.outcome == "diverged",
            sign_flip=sign_flip and not reasons,
            generator=generator,
        )
        decision = decide(statistics)
        compared = compare(cells, reference, statistics, decision)
    if compared is None or statistics is None or decision is None or reasons:
        code, words = "not_assessable", not_assessable(reasons)
    else:
        code, words = decision.code, sentence(compared, statistics, decision, cells, unit, kind)
    return Verdict(
        setup=cells.setup,
        setup_id=cells.setup_id,
        response=response,
        unit=unit,
        reference=reference,
        code=code,
        sentence=words,
        reasons=reasons,
        margin=margin,
        control=kind,
        statistics=statistics,
        decision=decision,
        compared=compared,
        cells=whole,
    )


def _control(cells: Cells, wanted: str | None) -> str:
    """The kind of controls to take: kinds are never mixed in one variance. Of equally many the first of KINDS."""
    if wanted is not None:
        return wanted if wanted in cells.controls else ""
    return max(cells.controls, key=lambda kind: int(np.isfinite(cells.controls[kind]).sum()), default="")
