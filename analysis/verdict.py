"""The verdict on a setup: did accumulation change the response, as far as these runs can tell?

The rules that need rounding controls (lambda, ``indistinguishable``), the tests of divergence and the number of further seeds are
not part of it; the sentence says what was not looked at.
"""

from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from accum_sweeps.analysis.cells import Cells, setups
from accum_sweeps.analysis.comparison import Arm, Comparison, compare
from accum_sweeps.analysis.rules import MIN_COMPLETE_SEEDS
from accum_sweeps.analysis.sentences import not_assessable, sentence
from accum_sweeps.analysis.words import listed
from accum_sweeps.plan.errors import UserError
from accum_sweeps.record.events import DONE

CODES = ("not_assessable", "effect", "negligible", "equivalent", "inconclusive")


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A setup's verdict for one response. ``code`` is one of CODES, ``sentence`` says it in words, ``reasons`` why it is not assessable.

    ``compared`` is None if the reference arm is missing or alone. ``margin`` and all values are in ``unit``.
    """

    setup: str
    setup_id: str
    response: str
    unit: str
    reference: int
    code: str
    sentence: str
    reasons: tuple[str, ...]
    margin: float | None
    compared: Comparison | None
    cells: Cells = field(repr=False)

    def to_frame(self) -> pd.DataFrame:
        """One row for each arm but the reference arm; shifts in ``unit``, columns ``*_sigma`` in units of sigma_tot."""
        arms = self.compared.arms if self.compared else ()
        return pd.DataFrame([self._row(arm) for arm in arms], columns=COLUMNS)

    def _row(self, arm: Arm) -> dict[str, object]:
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
            "p": arm.shift.p,
            "p_holm": arm.p_holm,
            "sigma_tot": self.compared.sigma_tot if self.compared else np.nan,
            "margin": np.nan if self.margin is None else self.margin,
            "tost_p": arm.tost_p,
            "difference_sd_upper": arm.sd_upper,
        }


COLUMNS = [
    *("setup", "setup_id", "response", "unit", "code", "reference", "accum", "finished", "diverged", "pairs"),
    *("shift", "shift_low", "shift_high", "shift_sigma", "shift_sigma_low", "shift_sigma_high", "difference_sd", "p", "p_holm"),
    *("sigma_tot", "margin", "tost_p", "difference_sd_upper"),
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
    results: pd.DataFrame, *, response: str = "eval_loss_final", reference: int | None = None, margin: float | None = None
) -> Verdicts:
    """The verdict on each setup of a results table.

    ``reference`` is the accumulation factor that others are compared with, by default the smallest of each setup. ``margin`` is
    the largest shift that does not matter, in the response's unit (nats for a loss; a perplexity is taken as its logarithm); without
    it no equivalence is judged. Raises UserError for a missing column or a value that cannot be.
    """
    if margin is not None and not 0 < margin < np.inf:
        raise UserError(f"margin={margin!r}: must be above 0 and finite, in the response's unit")
    table, unit = in_unit(results, response)
    controlled = set(table.loc[table["control"] != "none", "setup_id"]) if "control" in table else set()
    return Verdicts(
        judge(cells, response=response, unit=unit, reference=reference, margin=margin, has_controls=cells.setup_id in controlled)
        for cells in setups(table, response)
    )


def in_unit(results: pd.DataFrame, response: str) -> tuple[pd.DataFrame, str]:
    """The table with ``response`` in the unit it is judged in, and that unit."""
    if "perplexity" in response and response in results:
        with np.errstate(divide="ignore", invalid="ignore"):
            return results.assign(**{response: np.log(results[response].astype("float64"))}), "nats"
    units = {"wall_s": "s", "peak_mem_gb": "GiB"}
    return results, "nats" if "loss" in response else units.get(response, f"units of {response}")


def judge(
    cells: Cells, *, response: str, unit: str, reference: int | None = None, margin: float | None = None, has_controls: bool = False
) -> Verdict:
    """The verdict on one setup."""
    chosen = min(cells.accum) if reference is None else reference
    compared = compare(cells, chosen, margin) if chosen in cells.accum and len(cells.accum) > 1 else None
    reasons = tuple(_obstacles(cells, chosen))
    code = "not_assessable" if reasons or compared is None else _code(compared)
    words = not_assessable(reasons) if compared is None or reasons else sentence(code, compared, cells, unit, margin, has_controls)
    return Verdict(
        setup=cells.setup,
        setup_id=cells.setup_id,
        response=response,
        unit=unit,
        reference=chosen,
        code=code,
        sentence=words,
        reasons=reasons,
        margin=margin,
        compared=compared,
        cells=cells,
    )


def _obstacles(cells: Cells, reference: int) -> list[str]:
    """Why the setup cannot be judged: what is missing, by arm and by seed."""
    if reference not in cells.accum:
        return [f"no run at the reference k={reference} (there are k={listed(cells.accum)})"]
    if len(cells.accum) == 1:
        return [f"all runs have k={reference}, there is nothing to compare"]
    reasons = []
    for k, finished, outcomes in zip(cells.accum, cells.count("finished"), cells.outcome.T, strict=True):
        if finished == 0:
            words, numbers = np.unique(outcomes, return_counts=True)
            reasons.append(f"k={k} has no finished run ({', '.join(f'{n} {word}' for word, n in zip(words, numbers, strict=True))})")
    complete = int(cells.complete.sum())
    if complete < MIN_COMPLETE_SEEDS:
        reasons.append(f"{complete} complete seeds of {len(cells.seeds)}, at least {MIN_COMPLETE_SEEDS} are needed{_gaps(cells)}")
    return reasons


def _gaps(cells: Cells, most: int = 3) -> str:
    gaps = [
        f"seed {seed} k={k} {outcome}"
        for seed, outcomes in zip(cells.seeds, cells.outcome, strict=True)
        for k, outcome in zip(cells.accum, outcomes, strict=True)
        if outcome not in DONE
    ]
    shown = gaps[:most] + ([f"{len(gaps) - most} more"] if len(gaps) > most else [])
    return f" ({', '.join(shown)})" if shown else ""


def _code(compared: Comparison) -> str:
    is_detected = any(arm.is_detected for arm in compared.arms)
    # Divergence is not tested here, so a setup with diverged runs is never called equivalent.
    has_diverged = compared.diverged > 0 or any(arm.diverged for arm in compared.arms)
    holds = not has_diverged and all(arm.is_equivalent for arm in compared.arms)
    if is_detected:
        return "negligible" if holds else "effect"
    return "equivalent" if holds else "inconclusive"
