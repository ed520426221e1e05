"""What a sweep's ladders found (measure=ladder): beside each setup's verdict, as a row for each, and as a page where there are few."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from accum_sweeps.analysis.audit_page import render
from accum_sweeps.analysis.table import setting_columns
from accum_sweeps.analysis.words import aligned
from accum_sweeps.plan.faults import CLASSES
from accum_sweeps.plan.words import counted
from accum_sweeps.record.store import open_root

MOST_PAGES = 4
UNKNOWN = "unknown_fault"
WRITTEN = {"label", "accum", "dtype", "answer", "remark", "diagnosis", "rungs", "precisions", "amplified", "resolution"}  # by every ladder
ITS_OWN = ("measure", "probe_tensors")  # settings in which a ladder differs from the setup that it stands beside
IN_WORDS = {
    "rounding": "right, only rounding",
    "amplified_rounding": "right, only rounding, which the optimizer makes large",
    "real_dependence": "right, but what is trained depends on how a batch is cut",
    "below_floor": "no fault is seen, but rounding is coarse",
    "not_observable": "nothing can be said",
}


@dataclass(frozen=True, kw_only=True)
class SetupLadder:
    """What the ladder of a trained setup found at accumulation factor ``accum``; ``answer`` is empty where it is not ``finished``.

    ``detail``: mechanism of the amplification or kind of the dependence. ``gradient`` and ``floor``: relative difference of the gradient
    from that of one batch, and what rounding alone may do to it; NaN where not observable.
    """

    setup_id: str
    setup: str
    accum: int
    status: str
    answer: str
    detail: str
    gradient: float
    floor: float

    @property
    def faults(self) -> tuple[str, ...]:
        """Classes of the faults that it found."""
        return _faults(self.answer)

    @property
    def brief(self) -> str:
        """For a cell of a table."""
        return self.answer or self.status

    @property
    def words(self) -> str:
        """For a line below the verdict."""
        if not self.answer:
            return f"ladder at k={self.accum}: {self.status}"
        words = f"WRONG: {' and '.join(self.faults)}" if self.faults else IN_WORDS[self.answer]
        words += f" ({self.detail})" if self.detail else ""
        if math.isnan(self.gradient):
            return f"ladder at k={self.accum}: {words}"
        return f"ladder at k={self.accum}: {words}; gradient {self.gradient:.2g} from that of one batch, rounding up to {self.floor:.2g}"


LADDER_COLUMNS = ("setup_id", "setup", "accum", "status", "answer", "detail", "gradient", "floor")


def ladders(results: pd.DataFrame) -> pd.DataFrame:
    """A row for each trained setup of ``results`` that a ladder stands beside: columns LADDER_COLUMNS, those of :class:`SetupLadder`."""
    return pd.DataFrame([asdict(each) for each in setup_ladders(results).values()], columns=list(LADDER_COLUMNS))


def setup_ladders(results: pd.DataFrame) -> dict[str, SetupLadder]:
    """setup_id of each trained setup of ``results`` -> its ladder, one of equal settings; a finished one goes before others."""
    if not is_ladder(results).any() or not {"setup_id", "control", "replicate"} <= set(results.columns):
        return {}
    names = [name for name in setting_columns(results) if name not in ITS_OWN]
    climbed = results[is_ladder(results)]
    climbed = climbed[(climbed["control"] == "none") & (climbed["replicate"] == 0)]
    climbed = climbed.assign(is_finished=climbed["status"] == "finished").sort_values("is_finished", kind="stable")
    by_settings = dict(zip(_settings(climbed, names), climbed.to_dict("records"), strict=True))
    trained = results[results["measure"] == "training"].drop_duplicates("setup_id")
    found = {}
    for setup_id, setup, settings in zip(trained["setup_id"], trained["setup"], _settings(trained, names), strict=True):
        if settings in by_settings:
            found[str(setup_id)] = _setup_ladder(str(setup_id), str(setup), by_settings[settings])
    return found


def _settings(rows: pd.DataFrame, names: list[str]) -> list[tuple[str, ...]]:
    """The values of ``names``, row by row; gaps are equal to gaps."""
    columns = [rows[name].astype(object).where(rows[name].notna(), "").map(str) for name in names]
    return list(zip(*columns, strict=True))


def _setup_ladder(setup_id: str, setup: str, row: Mapping[Any, Any]) -> SetupLadder:
    is_finished = row["status"] == "finished"
    return SetupLadder(
        setup_id=setup_id,
        setup=setup,
        accum=int(row["accum"]),
        status=str(row["status"]),
        answer=_text(row.get("diagnosis")) if is_finished else "",
        detail=_text(row.get("diagnosis_detail")) if is_finished else "",
        gradient=float(row.get("ladder_gradient_final", math.nan)),
        floor=float(row.get("ladder_gradient_floor_final", math.nan)),
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _faults(answer: str) -> tuple[str, ...]:
    return tuple(name for name in answer.split("+") if name in {*CLASSES, UNKNOWN})


def is_ladder(results: pd.DataFrame) -> "pd.Series[bool]":
    """Which rows of a results table are ladders."""
    if "measure" not in results:
        return pd.Series(False, index=results.index)
    return results["measure"] == "ladder"


def faults_found(results: pd.DataFrame) -> list[str]:
    """The classes of faults that the finished ladders among ``results`` found and nobody varied on purpose; [] = none.

    Where ``fault`` is an axis, faults are built in to be found; one that is trained with is built in to be trained with.
    """
    rows = results[is_ladder(results) & (results["status"] == "finished")]
    if not is_ladder(results).all():
        rows = rows[~_asks_for_it(rows)]
    if rows.empty or rows["fault"].nunique() > 1:
        return []
    return sorted({name for answer in rows["diagnosis"].dropna() for name in _faults(str(answer))})


def _asks_for_it(rows: pd.DataFrame) -> "pd.Series[bool]":
    """Whether a row's settings build a fault in: by its name, or as a loss that weighs micro-batches and not their terms."""
    own_means = rows["subject.mean"] == "micro_batch" if "subject.mean" in rows else False
    return (rows["fault"] != "none") | own_means


def audits(root: Path, results: pd.DataFrame) -> list[Mapping[str, Any]]:
    """What the finished ladders among ``results`` wrote, in the table's order; a damaged file is left out."""
    store, found = open_root(root), []
    rows = results[is_ladder(results) & (results["status"] == "finished")]
    for run_id, env_id, attempt in zip(rows["run_id"], rows["env_id"], rows["attempt"], strict=True):
        found += _read(store.run_dir(run_id, env_id).ladder_path(int(attempt)))
    return found


def _read(path: Path) -> list[Mapping[str, Any]]:
    """What a ladder wrote; [] where that is gone or damaged."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return []
    return [found] if isinstance(found, dict) and found.keys() >= WRITTEN else []


def render_ladders(root: Path, results: pd.DataFrame) -> str:
    """The ladders as text: their pages where there are up to MOST_PAGES and all can be read, else a table."""
    rows = results[is_ladder(results)]
    done = rows[rows["status"] == "finished"]
    if done.empty:
        return f"No ladder is finished yet: {counted(len(rows), 'run')}."
    if len(done) <= MOST_PAGES and len(pages := audits(root, results)) == len(done):
        return "\n\n\n".join(render(each) for each in pages)
    return "\n".join([*_counts(done), "", *_table(done)])


def render_first_fault(root: Path, results: pd.DataFrame) -> str:
    """The page of the first ladder among ``results`` that found a fault; empty where none did."""
    found = [each for each in audits(root, results) if (each["diagnosis"] or {}).get("names")]
    rest = f"\n\n{counted(len(found) - 1, 'other ladder')} found a fault too; the audit page has them all." if len(found) > 1 else ""
    return render(found[0]) + rest if found else ""


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
