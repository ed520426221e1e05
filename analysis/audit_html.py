"""Audits as one self-contained HTML page with a picture each."""

import importlib.resources
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from accum_sweeps.analysis import audit_page, figures
from accum_sweeps.record.files import write_text

AUDIT = "audit.html"
MOST = 40  # pages of one file; the results table has all


def write_audits(path: Path, title: str, audits: Sequence[Mapping[str, Any]]) -> None:
    """Write the page on up to MOST ``audits``, those with a fault first, whole or not at all. Raises OSError if it cannot be written."""
    ordered = sorted(audits, key=lambda each: not (each["diagnosis"] or {}).get("names"))[:MOST]
    pages = [_page(each, number) for number, each in enumerate(ordered)]
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    text = environment.from_string(_read("audit.html.j2")).render(
        title=title,
        styles=_read("report.css"),
        light=figures.css_colours(),
        dark=figures.css_colours(dark=True),
        pages=pages,
        left_out=len(audits) - len(pages),
    )
    write_text(path, text)


def _page(audit: Mapping[str, Any], number: int) -> dict[str, Any]:
    svg = ""
    # Half precision may overflow; then there is nothing to draw of it.
    finite = [each for each in audit["precisions"] if all(math.isfinite(each[key]) for key in ("arm", "low", "high"))]
    if finite:
        drawn = figures.gradient_by_precision(finite, audit["accum"])
        svg = figures.to_svg(drawn, f"a{number}", "Relative difference of the gradient over unit roundoff")
    names = (audit["diagnosis"] or {}).get("names", ())
    found = audit["amplified"] or {}
    return {
        **{key: audit[key] for key in ("label", "accum", "dtype", "answer")},
        "remark": audit_page.remark_words(audit),
        "code": "effect" if names else audit_page.CODES.get(audit["answer"], "not_assessable"),
        "sentence": audit_page.sentence(audit),
        "findings": audit_page.findings(audit),
        "svg": svg,
        "rungs": audit_page.rung_rows(audit["rungs"]),
        "geometry": audit_page.geometry_words(audit),
        "precisions": audit_page.precision_rows(audit) if audit["precisions"] else [],
        "amplified": audit_page.amplified_words(found) if found.get("mechanism") else "",
        "amplified_proofs": audit_page.proof_words(found.get("experiments", ())),
        "closing": audit_page.closing(audit),
    }


def _read(name: str) -> str:
    return importlib.resources.files("accum_sweeps.analysis").joinpath("templates", name).read_text(encoding="utf-8")
