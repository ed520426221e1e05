"""The one-page answer to "is my accumulation right?", as text, from an audit's plain values (its file ``ladder.<attempt>.json``)."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from accum_sweeps.analysis.summary import WIDTH
from accum_sweeps.analysis.words import aligned

ANSWERS = {
    "rounding": "Right. What differs from one batch is rounding.",
    "amplified_rounding": "Right. What differs from one batch is rounding, which the optimizer makes large.",
    "real_dependence": "The accumulation is right, but the subject depends on how a batch is cut: none gives what one batch gives.",
    "below_floor": "No fault is seen, but rounding is coarse here: a small one would not be seen.",
    "not_observable": "Nothing can be said.",
    "unknown_fault": "Wrong, in none of the ways that are known by name.",
}
MECHANISMS = {
    "soft_region": "Adam's update g / (|g| + eps) is steep where |g| is not much larger than eps",
    "sign_flips": "the sign of gradients below the noise flips, and Adam's update with it",
    "zero_gradient": "a tensor whose gradient is zero but for rounding moves by the full rate",
    "low_precision_optimizer": "the optimizer computes in low precision, whatever the gradient's",
}


def render(audit: Mapping[str, Any]) -> str:
    """The page."""
    blocks = [_opening(audit), _proofs(audit), _rungs(audit["rungs"]), _precisions(audit), _amplified(audit["amplified"]), _closing(audit)]
    return "\n\n".join(block for block in blocks if block)


def _opening(audit: Mapping[str, Any]) -> str:
    names = (audit["diagnosis"] or {}).get("names", ())
    known = [name for name in names if name != "unknown_fault"]
    sentence = f"Wrong: {' and '.join(known)}." if known else ANSWERS[names[0] if names else audit["answer"]]
    head = [f"{audit['label']}, k={audit['accum']} against one batch, {audit['dtype']}", ""]
    return "\n".join([*head, f"answer  {audit['answer']}", *_filled(sentence), *(_filled(audit["remark"]) if audit["remark"] else [])])


def _filled(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent="        ", subsequent_indent="        ")


def _proofs(audit: Mapping[str, Any]) -> str:
    lines = []
    for finding in (audit["diagnosis"] or {}).get("findings", ()):
        named = finding["variant"] or finding["name"]
        lines += [f"why     {named}, rung {finding['rung']}", *_filled(finding["words"])]
        for proof in finding["experiments"]:
            lines += _filled(f"{proof['words']}: {_number(proof['before'])} becomes {_number(proof['after'])}")
    return "\n".join(lines)


def _rungs(rungs: Sequence[Mapping[str, Any]]) -> str:
    if not rungs:
        return ""
    rows = [("", "rung", "found", "rounding", "", "measure")]
    for rung in rungs:
        value, floor = rung["value"], rung["floor"]
        seen = "not observable" if value is None else "" if value <= floor else "above"
        rows.append((str(rung["number"]), rung["name"], _number(value), _number(floor), seen, rung["measure"]))
    width = max(len(row[-1]) for row in rows)
    return "\n".join(line.rstrip() for line in aligned([(*row[:-1], row[-1].ljust(width)) for row in rows]))


def _precisions(audit: Mapping[str, Any]) -> str:
    if not audit["precisions"]:
        return ""
    head = ("gradient", "unit roundoff", f"k={audit['accum']} from one batch", "right code, changed in rounding only")
    rows = [
        (p["dtype"], _number(p["unit"]), _number(p["arm"]), f"{_number(p['low'])} to {_number(p['high'])}") for p in audit["precisions"]
    ]
    return "\n".join(aligned([head, *rows]))


def _amplified(found: Mapping[str, Any] | None) -> str:
    if found is None or not found["mechanism"]:
        return ""
    text = f"amplified: an update differs {found['gain']:.3g} times as much as its gradient, because {MECHANISMS[found['mechanism']]}."
    proofs = [f"{proof['words']}: {_number(proof['before'])} becomes {_number(proof['after'])}" for proof in found["experiments"]]
    return "\n".join([*textwrap.wrap(text, WIDTH), *(f"  {proof}" for proof in proofs)])


def _closing(audit: Mapping[str, Any]) -> str:
    if audit["resolution"] is None:
        return ""
    where = "float64" if audit["diagnosis"]["is_exact"] else audit["dtype"]
    return f"A fault that changes a gradient by less than {audit['resolution']:.1g}, relative, would not have been seen ({where})."


def _number(value: float | None) -> str:
    if value is None or math.isnan(value):
        return "-"
    return f"{value:.3g}"
