"""A sweep's report: one HTML file that opens with the verdict, needs no network and no script, and can be rebuilt at any time."""

import importlib.resources
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

from accum_sweeps.analysis import report_methods as methods
from accum_sweeps.analysis.figures import css_colours
from accum_sweeps.analysis.judged import Judged
from accum_sweeps.analysis.load import trajectories
from accum_sweeps.analysis.report_facts import environment_rows, sweep_facts
from accum_sweeps.analysis.report_opening import opening, standing
from accum_sweeps.analysis.report_setups import MOST_DETAILED, detailed, overviews, sections
from accum_sweeps.analysis.report_tables import as_sequence, failures, setup_rows
from accum_sweeps.analysis.series import sketch_distances
from accum_sweeps.plan.errors import UserError
from accum_sweeps.plan.words import be, counted
from accum_sweeps.record.files import write_text
from accum_sweeps.record.sweep import SweepDir

REPORT = "report.html"


def write_report(
    path: Path,
    judged: Judged,
    *,
    facts: Mapping[str, Any] | None = None,
    curves: pd.DataFrame | None = None,
    distances: pd.DataFrame | None = None,
) -> None:
    """Write the report on ``judged`` to ``path``, whole or not at all.

    ``facts`` are those of :func:`accum_sweeps.analysis.report_facts.sweep_facts`, none for a table of unknown origin. ``curves`` is a
    table of trajectories, ``distances`` one of :func:`accum_sweeps.analysis.series.sketch_distances`. Raises OSError if it cannot be
    written.
    """
    text = render_report(judged, facts=facts or {}, curves=curves, distances=distances)
    # What users' programs say may hold anything; a page may not.
    write_text(path, text.replace("\0", "").encode("utf-8", "replace").decode())


def write_sweep_report(path: Path, sweep: SweepDir, judged: Judged, points: Path, older_setups: int = 0) -> None:
    """The report on a sweep of a root: ``points`` is its file of trajectories. Only what is told of in full is read."""
    shown = judged.results[judged.results["setup_id"].isin(detailed(judged))]
    try:
        distances = sketch_distances(sweep.root.path, shown, judged.judging.reference)
    except UserError:  # a damaged file, which ``judged`` has named
        distances = None
    facts = sweep_facts(sweep, judged.results, older_setups)
    write_report(path, judged, facts=facts, curves=trajectories(points), distances=distances)


def render_report(judged: Judged, *, facts: Mapping[str, Any], curves: pd.DataFrame | None, distances: pd.DataFrame | None) -> str:
    """The page as text."""
    found = sections(judged, curves, distances)
    anchors = {setup_id: section.anchor for setup_id, section in zip(detailed(judged), found, strict=True)}
    older = facts.get("older_setups", 0)
    left_out = [
        *judged.left_out,
        *([f"{counted(older, 'setup')} of earlier plans {be(older)} in the results table and not judged here"] if older else []),
    ]
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(_read("report.html.j2")).render(
        title=f"accum_sweeps: {facts['sweep']}" if facts.get("sweep") else "accum_sweeps: report",
        facts=facts,
        styles=_read("report.css"),
        light=css_colours(),
        dark=css_colours(dark=True),
        standing=standing(judged.results),
        opening=opening(judged),
        response=judged.judging.response,
        unit=judged.opening[0].unit if judged.opening else "",
        setups=setup_rows(judged, anchors),
        has_ladders=bool(judged.ladders),
        most_detailed=MOST_DETAILED,
        overviews=overviews(judged),
        sections=found,
        rules=methods.rules(),
        definitions=methods.definitions(),
        margins=methods.margin_sources(judged),
        error_rates=methods.error_rates(),
        environment=environment_rows(facts, judged.results),
        environments=facts.get("environments", []),
        left_out=left_out,
        failures=as_sequence(failures(judged.results)),
    )


def _read(name: str) -> str:
    return importlib.resources.files("accum_sweeps.analysis").joinpath("templates", name).read_text(encoding="utf-8")
