"""Runs as MLflow keeps them -> rows of a table: this program's own under the columns of the results table, anybody's as they are."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from accum_sweeps.analysis.parse_columns import number, whole
from accum_sweeps.analysis.table import OUTCOME_COLUMNS, Column, known_columns, typed

FINAL = "final/"  # what MLflow's names of a run's final values begin with
# Tags that hold what a column of the results table does.
_TAGS = {
    **{name: name for name in ("run_id", "env_id", "sweep", "setup", "setup_id", "cell", "status", "attempt")},
    "mlflow.source.git.commit": "git_commit",
    "reason": "error",
}
_OWN_TAGS, _OWN_PARAMS = ("run_id", "env_id", "setup_id", "sweep_id", "status"), ("accum", "seed")
_STATUSES = {"RUNNING": "running", "FINISHED": "finished", "FAILED": "failed", "KILLED": "cancelled", "SCHEDULED": "planned"}


@dataclass(frozen=True, kw_only=True, slots=True)
class LoggedRun:
    """A run of an experiment; of each metric the value that was logged last."""

    run_id: str
    name: str
    status: str
    params: Mapping[str, str]
    metrics: Mapping[str, float]
    tags: Mapping[str, str]

    @property
    def is_own(self) -> bool:
        """Whether the run is one of this program's trainings."""
        return all(key in self.tags for key in _OWN_TAGS) and all(key in self.params for key in _OWN_PARAMS)

    @property
    def is_sweep(self) -> bool:
        """Whether it is the page of one of this program's sweeps."""
        return "sweep_id" in self.tags and "run_id" not in self.tags

    @property
    def label(self) -> str:
        """The run as a person finds it in MLflow."""
        return f"run {self.name} ({self.run_id[:8]})" if self.name else f"run {self.run_id}"


def own_results(runs: Sequence[LoggedRun]) -> pd.DataFrame:
    """The results table of this program's runs, as far as MLflow holds it: sweep by sweep and setup by setup, in the order of start."""
    known = known_columns()
    rows = [_own_row(run) for run in runs]
    names = list(dict.fromkeys([*(name for row in rows for name in row), *OUTCOME_COLUMNS]))
    columns = {name: _read([row.get(name) for row in rows], known.get(name)) for name in names}
    frame = typed(pd.DataFrame(columns))
    ranks = [pd.factorize(frame[name])[0] for name in ("sweep", "setup_id")]
    order = pd.DataFrame({"sweep": ranks[0], "setup": ranks[1], "accum": frame["accum"], "seed": frame["seed"]})
    return frame.take(order.sort_values(["sweep", "setup", "accum", "seed"], kind="stable").index.to_numpy()).reset_index(drop=True)


def _own_row(run: LoggedRun) -> dict[str, Any]:
    row: dict[str, Any] = {column: run.tags[tag] for tag, column in _TAGS.items() if tag in run.tags} | dict(run.params)
    for key, value in run.metrics.items():
        name = key.removeprefix(FINAL)
        if name != key:
            row["steps_done" if name == "steps" else name] = value
    return row


def _read(values: Sequence[Any], column: Column | None) -> "pd.Series[Any]":
    """Parameters are text in MLflow, as JSON writes them: read as what the column holds."""
    kind = column.kind if column else "any"
    readers = {"text": lambda text: text, "int": whole, "float": number, "bool": _truth, "any": _any}
    read = readers[kind]
    found = [None if value is None or value == "null" else read(value) for value in values]
    if kind == "any" and any(isinstance(value, str) for value in found):
        found = [None if value is None or value == "null" else str(value) for value in values]
    return pd.Series(found, dtype="float64" if kind == "float" else object)


def _truth(text: str) -> bool | None:
    return {"true": True, "false": False}.get(str(text))


def _any(value: Any) -> Any:
    """A setting or value that this release does not define."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value


def experiment_frame(runs: Sequence[LoggedRun]) -> pd.DataFrame:
    """One row a run: run_id, run_name, status as told here, then params.*, metrics.*, tags.* as MLflow's own tables call them."""
    rows = [
        {
            "run_id": run.run_id,
            "run_name": run.name,
            "status": _STATUSES.get(run.status, run.status),
            **{f"params.{key}": value for key, value in run.params.items()},
            **{f"metrics.{key}": value for key, value in run.metrics.items()},
            **{f"tags.{key}": value for key, value in run.tags.items()},
        }
        for run in runs
    ]
    return pd.DataFrame(rows, dtype=object)
