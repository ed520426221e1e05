"""What a sweep's ladders found (measure=ladder): a row for each, and the whole page where there are few."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from accum_sweeps.analysis.audit_page import render
from accum_sweeps.analysis.words import aligned
from accum_sweeps.plan.faults import CLASSES
from accum_sweeps.plan.words import counted
from accum_sweeps.record.store import open_root

MOST_PAGES = 4
UNKNOWN = "unknown_fault"


def is_ladder(results: pd.DataFrame) -> "pd.Series[bool]":
    """Which rows of a results table are ladders."""
    if "measure" not in results:
        return pd.Series(False, index=results.index)
    return results["measure"] == "ladder"


def faults_found(results: pd.DataFrame) -> list[str]:
    """The classes of faults that the finished ladders among ``results`` found and nobody varied on purpose; [] = none.

    Where ``fault`` is an axis, faults are built in to be found.
    """
    rows = results[is_ladder(results) & (results["status"] == "finished")]
    if rows.empty or rows["fault"].nunique() > 1:
        return []
    known = {*CLASSES, UNKNOWN}
    return sorted({name for answer in rows["diagnosis"].dropna() for name in str(answer).split("+") if name in known})


def audits(root: Path, results: pd.DataFrame) -> list[Mapping[str, Any]]:
    """What the finished ladders among ``results`` wrote, in the table's order; a damaged file is left out."""
    store, found = open_root(root), []
    rows = results[is_ladder(results) & (results["status"] == "finished")]
    for run_id, env_id, attempt in zip(rows["run_id"], rows["env_id"], rows["attempt"], strict=True):
        path = store.run_dir(run_id, env_id).ladder_path(int(attempt))
        try:
            found.append(json.loads(path.read_text()))
        except (OSError, ValueError):
            continue
    return found


def render_ladders(root: Path, results: pd.DataFrame) -> str:
    """The ladders as text: their pages where there are up to MOST_PAGES, else a table."""
    rows = results[is_ladder(results)]
    done = rows[rows["status"] == "finished"]
    if done.empty:
        return f"No ladder is finished yet: {counted(len(rows), 'run')}."
    if len(done) <= MOST_PAGES:
        return "\n\n\n".join(render(each) for each in audits(root, results))
    return "\n".join([*_counts(done), "", *_table(done)])


def _counts(done: pd.DataFrame) -> list[str]:
    lines = [f"{counted(len(done), 'ladder')}, by answer:"]
    counts = done["diagnosis"].value_counts()
    return lines + aligned([(str(answer), str(count)) for answer, count in counts.items()])


def _table(done: pd.DataFrame) -> list[str]:
    cells = [("setup", "k", "answer", "", "gradient", "rounding")]
    columns = ["setup", "accum", "diagnosis", "diagnosis_detail", "ladder_gradient_final", "ladder_gradient_floor_final"]
    for setup, accum, answer, detail, value, floor in done.reindex(columns=columns).itertuples(index=False):
        cells.append((str(setup), str(accum), str(answer), "" if detail != detail else str(detail), _number(value), _number(floor)))
    return aligned(cells)


def _number(value: float) -> str:
    return "-" if value != value else f"{value:.3g}"
