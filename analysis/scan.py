"""From a sweep's plan and its run directories to the rows of the results table."""

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from accum_sweeps.analysis.outcomes import Outcome, read_outcomes
from accum_sweeps.analysis.table import OUTCOME_COLUMNS, typed
from accum_sweeps.plan.errors import UserError
from accum_sweeps.plan.flat import flatten
from accum_sweeps.plan.spec import SPEC_VERSION, Setup
from accum_sweeps.record.events import DONE
from accum_sweeps.record.state import file_system_now, shown_status
from accum_sweeps.record.store import RootDir
from accum_sweeps.record.sweep import PlannedRun, SweepDir

RowKey = tuple[str, str]  # run_id, env_id


@dataclass(frozen=True, kw_only=True)
class PlannedRows:
    """The runs of all revisions of a plan, those of the newest first, each once.

    ``labels`` names setups as the newest revision that holds them does; ``revision`` is per run the newest that holds it.
    """

    setups: Sequence[Setup]
    labels: Sequence[str]
    runs: Sequence[PlannedRun]
    revision: Sequence[int]
    newest: int
    problems: Sequence[str]


def planned_rows(sweep: SweepDir) -> PlannedRows:
    """All runs that the sweep ever planned; older revisions that are damaged are left out and named.

    Raises UserError if the sweep was never planned or its newest plan is damaged.
    """
    problems: list[str] = []
    plans = [sweep.read_plan()]
    for number in reversed(sweep.revisions()[:-1]):
        try:
            plans.append(sweep.read_plan(number))
        except UserError as error:
            problems.append(str(error))
    setups: dict[str, tuple[int, Setup, str]] = {}
    runs: dict[str, tuple[PlannedRun, int]] = {}
    for plan in plans:
        numbers = [setups.setdefault(s.setup_id, (len(setups), s, label))[0] for s, label in zip(plan.setups, plan.labels, strict=True)]
        for run in plan.runs:
            if run.run_id not in runs:
                runs[run.run_id] = (run._replace(setup=numbers[run.setup]), plan.revision)
    kept, revision = zip(*runs.values(), strict=True) if runs else ((), ())
    _, kinds, labels = zip(*setups.values(), strict=True)
    return PlannedRows(setups=kinds, labels=labels, runs=kept, revision=revision, newest=plans[0].revision, problems=problems)


def plan_frame(rows: PlannedRows, sweep: str) -> pd.DataFrame:
    """What the plan says of each run: one row a run, all columns but those of its outcome."""
    setups = typed(pd.DataFrame([flatten(setup.to_dict()) for setup in rows.setups]))
    setups = setups.assign(setup=pd.Series(rows.labels), setup_id=pd.Series([setup.setup_id for setup in rows.setups]))
    runs = pd.DataFrame(list(rows.runs), columns=list(PlannedRun._fields))
    frame = setups.take(runs.pop("setup").to_numpy(dtype=np.intp)).reset_index(drop=True)
    frame = pd.concat([frame, runs], axis=1)
    frame["micro_batch"] = frame["global_batch"] // (frame["ranks"] * frame["accum"])
    frame["cell"] = frame["setup"] + " k=" + frame["accum"].astype(str)
    return typed(frame.assign(sweep=sweep, spec_version=SPEC_VERSION, revision=np.array(rows.revision, dtype=np.int64)))


@dataclass(kw_only=True)
class Scan:
    """The rows of a sweep: which stand in an earlier table already (``reused``), and which are to be read now (``todo``).

    Positions count into ``planned.runs``; ``reused`` has the row of ``earlier`` too.
    """

    root: RootDir
    sweep: SweepDir
    planned: PlannedRows
    earlier: pd.DataFrame | None
    reused: list[tuple[int, int]] = field(default_factory=list)
    todo: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def is_unchanged(self) -> bool:
        """Whether ``earlier`` says all there is to say."""
        return self.earlier is not None and not self.todo and len(self.reused) == len(self.earlier)

    def reused_keys(self) -> set[RowKey]:
        """The rows that need not be read again."""
        return set() if self.earlier is None else set(_keys(self.earlier.iloc[[row for _, row in self.reused]]))

    def leave_out(self, keys: set[RowKey]) -> None:
        """Forget the runs of ``keys`` that are done: somebody else tells of them."""
        run_ids = {run_id for run_id, _ in keys}
        self.reused = [(p, row) for p, row in self.reused if self.planned.runs[p].run_id not in run_ids]
        self.todo = [p for p in self.todo if self.planned.runs[p].run_id not in run_ids]

    def read(self) -> Iterator[tuple[int, Outcome]]:
        """Read what is to be read, in the plan's order; damage is noted in ``problems``. Runs of older revisions count only when done."""
        now = _now(self.root) if self.todo else 0.0
        for position in self.todo:
            for outcome in read_outcomes(self.root, self.planned.runs[position].run_id, now):
                if outcome.is_done or self.planned.revision[position] == self.planned.newest:
                    self.problems += outcome.problems
                    yield position, outcome

    def results(self, fresh: Sequence[tuple[int, Mapping[str, Any]]]) -> pd.DataFrame:
        """The results table of the reused rows and of ``fresh``: (position, outcome columns)."""
        settings = plan_frame(self.planned, self.sweep.name)
        blank = pd.DataFrame({name: [] for name in OUTCOME_COLUMNS}, dtype=object)
        parts = [typed(pd.concat([blank, pd.DataFrame([values for _, values in fresh], dtype=object)]))]
        if self.earlier is not None:
            kept = self.earlier.iloc[[row for _, row in self.reused]]
            parts.insert(0, kept)
        parts = [part[[name for name in part.columns if name not in settings.columns]] for part in parts]
        outcomes = typed(pd.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True))
        positions = np.array([position for position, _ in itertools.chain(self.reused, fresh)], dtype=np.intp)
        settings = settings.take(positions).reset_index(drop=True)
        order = np.argsort(positions, kind="stable")
        frame = pd.concat([settings, outcomes], axis=1).take(order).reset_index(drop=True)
        shown = {status: shown_status(status, is_cancelled=self.sweep.is_cancelled) for status in frame["status"].unique()}
        frame["status"] = frame["status"].map(shown)
        return typed(frame)


def scan(sweep: SweepDir, earlier: pd.DataFrame | None) -> Scan:
    """Compare the plan with ``earlier``, a results table of the same sweep: its done rows are reused while their directories exist."""
    planned = planned_rows(sweep)
    result = Scan(root=sweep.root, sweep=sweep, planned=planned, earlier=earlier, problems=list(planned.problems))
    known: dict[RowKey, int] = {}
    if earlier is not None:
        known = {key: row for row, (key, status) in enumerate(zip(_keys(earlier), earlier["status"], strict=True)) if status in DONE}
    for position, run in enumerate(planned.runs):
        rows = [known.get((run.run_id, env_id)) for env_id in sweep.root.environments(run.run_id)] if known else []
        if rows and None not in rows:
            result.reused += [(position, row) for row in rows if row is not None]
        else:
            result.todo.append(position)
    return result


def _keys(frame: pd.DataFrame) -> list[RowKey]:
    return list(zip(frame["run_id"].tolist(), frame["env_id"].tolist(), strict=True))


def _now(root: RootDir) -> float:
    # A root that is somebody else's may not be written to: then this machine's clock has to do.
    try:
        return file_system_now(root.path)
    except OSError:
        return time.time()
