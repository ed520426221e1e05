"""The one-page answer to "is my accumulation right?", as text, from an audit's plain values (its file ``ladder.<attempt>.json``)."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from accum_sweeps.analysis.words import WIDTH, aligned
from accum_sweeps.plan.faults import DEPENDENCES, REMEDIES

ANSWERS = {
    "rounding": "Right. What differs from one batch is rounding.",
    "amplified_rounding": "Right. What differs from one batch is rounding, which the optimizer makes large.",
    "real_dependence": "The accumulation is right, but the subject depends on how a batch is cut: none gives what one batch gives.",
    "below_floor": "No fault is seen, but rounding is coarse here: a small one would not be seen.",
    "not_observable": "Nothing can be said.",
    "unknown_fault": "Wrong, in none of the ways that are known by name.",
}
CODES = {"rounding": "equivalent", "amplified_rounding": "equivalent", "real_dependence": "inconclusive"}  # of the verdict that looks alike
MECHANISMS = {
    "soft_region": "Adam's update g / (|g| + eps) is steep where |g| is not much larger than eps",
    "sign_flips": "the sign of gradients below the noise flips, and Adam's update with it",
    "zero_gradient": "a tensor whose gradient is zero but for rounding moves by the full rate",
    "low_precision_optimizer": "the optimizer computes in low precision, whatever the gradient's",
}


def render(audit: Mapping[str, Any]) -> str:
    """The page."""
    shape = "\n".join(textwrap.wrap(geometry_words(audit), WIDTH))
    rungs, precisions = _rungs(audit["rungs"]), _precisions(audit)
    blocks = [_opening(audit), _proofs(audit), rungs, shape, precisions, _amplified(audit["amplified"]), closing(audit)]
    return "\n\n".join(block for block in blocks if block)


def sentence(audit: Mapping[str, Any]) -> str:
    """The answer in a sentence."""
    names = (audit["diagnosis"] or {}).get("names", ())
    known = [name for name in names if name != "unknown_fault"]
    return f"Wrong: {' and '.join(known)}." if known else ANSWERS[names[0] if names else audit["answer"]]


def findings(audit: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What was found: name, rung, words, proofs, and what to write instead."""
    return [
        {
            "name": finding["variant"] or finding["name"],
            "rung": finding["rung"],
            "words": finding["words"],
            "proofs": proof_words(finding["experiments"]),
            "remedy": _remedy(finding),
        }
        for finding in (audit["diagnosis"] or {}).get("findings", ())
    ]


def _remedy(finding: Mapping[str, Any]) -> str:
    known = REMEDIES | DEPENDENCES
    return known.get(finding["variant"]) or known.get(finding["name"], "")


def proof_words(experiments: Sequence[Mapping[str, Any]]) -> list[str]:
    """As in "all rows full: 0.31 becomes 2e-16"."""
    return [f"check: {proof['words']}: {_number(proof['before'])} becomes {_number(proof['after'])}" for proof in experiments]


def rung_rows(rungs: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Number, name, what was found, what rounding may do, whether it is above, the measure."""
    rows: list[tuple[str, ...]] = []
    for rung in rungs:
        value, floor = rung["value"], rung["floor"]
        rows.append((str(rung["number"]), rung["name"], _number(value), _number(floor), _where(value, floor), rung["measure"]))
    return rows


def _where(value: float | None, floor: float) -> str:
    """Where a rung's value lies."""
    if value is None:
        return "not observable"
    if math.isnan(value) or math.isnan(floor):
        return "not finite"
    return "" if value <= floor else "above"


def geometry_words(audit: Mapping[str, Any]) -> str:
    """The gradient under test beside that of one batch, free of scale."""
    found = audit.get("geometry")  # files of earlier releases have none
    if found is None or not found["rho"] or math.isnan(found["cosine"]):
        return ""
    # 1 - cosine from differences: the cosine itself has no digits left where it is 1 but for rounding.
    angle = max(0.0, (found["relative"] ** 2 - (found["rho"] - 1) ** 2) / (2 * found["rho"]))
    of_no_multiple = f"{_number(found['eta'])} of it is of no multiple of that gradient"
    return f"The gradient is {found['rho']:.6g} times as long as that of one batch, at 1 - cosine {_number(angle)}; {of_no_multiple}."


def amplified_words(found: Mapping[str, Any]) -> str:
    """How much larger an update differs than its gradient, and why."""
    return f"amplified: an update differs {found['gain']:.3g} times as much as its gradient, because {MECHANISMS[found['mechanism']]}."


def closing(audit: Mapping[str, Any]) -> str:
    """What would not have been seen."""
    if audit["resolution"] is None:
        return ""
    where = "float64" if audit["diagnosis"]["is_exact"] else audit["dtype"]
    return f"A fault that changes a gradient by less than {audit['resolution']:.1g}, relative, would not have been seen ({where})."


def _opening(audit: Mapping[str, Any]) -> str:
    head = [f"{audit['label']}, k={audit['accum']} against one batch, {audit['dtype']}", "", f"answer  {audit['answer']}"]
    return "\n".join([*head, *_filled(sentence(audit)), *_filled(remark_words(audit))])


def remark_words(audit: Mapping[str, Any]) -> str:
    """What could not be asked, or was taken as rounding, as a sentence."""
    remark = audit["remark"]
    return f"{remark[0].upper()}{remark[1:]}." if remark else ""


def _filled(text: str, label: str = "") -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=label.ljust(8), subsequent_indent=" " * 8, break_on_hyphens=False)


def _proofs(audit: Mapping[str, Any]) -> str:
    lines = []
    for finding in findings(audit):
        lines += [f"why     {finding['name']}, rung {finding['rung']}", *_filled(finding["words"])]
        for proof in finding["proofs"]:
            lines += _filled(proof)
        lines += _filled(finding["remedy"], "do")
    return "\n".join(lines)


def _rungs(rungs: Sequence[Mapping[str, Any]]) -> str:
    if not rungs:
        return ""
    rows = [("", "rung", "found", "rounding", "", "measure"), *rung_rows(rungs)]
    width = max(len(row[-1]) for row in rows)
    return "\n".join(line.rstrip() for line in aligned([(*row[:-1], row[-1].ljust(width)) for row in rows]))


def _precisions(audit: Mapping[str, Any]) -> str:
    if not audit["precisions"]:
        return ""
    return "\n".join(aligned(precision_rows(audit)))


def precision_rows(audit: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """By dtype the gradient's relative differences, below a head."""
    k = f"k={audit['accum']}"
    head = ("gradient", "roundoff", f"{k} from one batch", "right code, regrouped", f"{k} from fp64", "one batch from fp64")
    return [head, *(_precision_row(found) for found in audit["precisions"])]


def _precision_row(found: Mapping[str, Any]) -> tuple[str, ...]:
    band = f"{_number(found['low'])} to {_number(found['high'])}"
    errors = (_number(found.get("error")), _number(found.get("error_of_one_batch")))
    return found["dtype"], _number(found["unit"]), _number(found["arm"]), band, *errors


def _amplified(found: Mapping[str, Any] | None) -> str:
    if found is None or not found["mechanism"]:
        return ""
    return "\n".join([*textwrap.wrap(amplified_words(found), WIDTH), *(f"  {proof}" for proof in proof_words(found["experiments"]))])


def _number(value: float | None) -> str:
    if value is None or math.isnan(value):
        return "-"
    return f"{value:.3g}"
