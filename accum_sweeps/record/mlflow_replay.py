"""Brings the runs of one sweep into one MLflow, pass by pass; mlflow_run does it for a single run."""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from accum_sweeps.record.mlflow_children import Child, read_children, seen, shown
from accum_sweeps.record.mlflow_content import NOTE, RUNNING, SweepRun, note, sweep_id, sweep_runs, sweep_status, user
from accum_sweeps.record.mlflow_cursor import SWEEP, Cursor, exclusive, target_folder
from accum_sweeps.record.mlflow_database import prepare
from accum_sweeps.record.mlflow_run import RunReplay, SyncReport, Work
from accum_sweeps.record.mlflow_sqlite import SqliteTracker, sqlite_path
from accum_sweeps.record.mlflow_tracker import DeletedRunError, RefusedError, Tracker, UnknownRunError, UnreachableError
from accum_sweeps.record.state import RunState, file_system_now, run_state, shown_status
from accum_sweeps.record.store import RootDir
from accum_sweeps.record.sweep import SweepDir

MANY_SAMPLES = 5000  # after which SQLite's statistics are worth their renewal
GROUP_S = 0.25  # of work between two commits, where MLflow has such: each waits for the disk, and others wait meanwhile


@dataclass
class Replay:
    """The replay of ``sweep`` into the experiment at ``uri`` (absolute)."""

    root: RootDir
    sweep: SweepDir
    uri: str
    experiment: str
    _revisions: list[int] | None = None
    _runs: dict[str, SweepRun] = field(default_factory=dict)
    _client: Tracker | None = None
    _is_first: bool = True

    def __post_init__(self) -> None:
        self.folder = target_folder(self.sweep, self.uri, self.experiment)
        self.cursor = Cursor(self.folder)

    def run(self, give_up: Callable[[], bool], *, is_over: bool, files: Sequence[Path] = (), verify: bool = False) -> SyncReport:
        """One pass over all runs; ``give_up`` ends the wait for another replay, ``is_over`` says that nobody works on the sweep.

        ``files`` are kept with the sweep's own run. ``verify`` compares the cursor with what MLflow says of each run first.
        Raises UserError where MLflow cannot be used at all. An unreachable one is a warning in the report.
        """
        report = SyncReport()
        with exclusive(self.folder / "lock", give_up) as is_held:
            if not is_held:
                report.is_busy = True
                return report
            try:
                with self.cursor.writing():
                    self._pass(report, is_over, files, verify)
            except UnreachableError as error:
                report.warning = f"MLflow cannot be reached: {error}"
            except RefusedError as error:
                report.warning = f"MLflow refuses the sweep: {error}"
            except OSError as error:
                report.warning = f"how far MLflow is cannot be noted: {error}"
        return report

    def _pass(self, report: SyncReport, is_over: bool, files: Sequence[Path], verify: bool) -> None:
        try:
            self._attempt(report, is_over, files, verify)
        except UnknownRunError:
            # The database is another one than before, and the experiment's id in it may be another too.
            for name in list(self.cursor.entries):
                self.cursor.forget(name)
            self._client = None
            self._attempt(report, is_over, files, verify)

    def _attempt(self, report: SyncReport, is_over: bool, files: Sequence[Path], verify: bool) -> None:
        tracker = self._tracker()
        self.cursor.is_holding = tracker.is_transactional
        try:
            Pass(self, tracker, report).all(is_over, files, verify or (tracker.is_transactional and self._is_first))
            self._is_first = False
        finally:
            tracker.close()

    def runs(self) -> dict[str, SweepRun]:
        """The sweep's runs by run_id, re-read when its plan has a new revision."""
        if (revisions := self.sweep.revisions()) != self._revisions:
            self._runs, self._revisions = sweep_runs(self.sweep), revisions
        return self._runs

    def _tracker(self) -> Tracker:
        """The quickest way in: the SQLite file directly where its tables are understood, else MLflow's client."""
        if sqlite_path(self.uri) is not None:
            prepared = prepare(self.uri, self.experiment)
            tracker = SqliteTracker.open(self.uri, prepared.experiment_id)
            if tracker is not None:
                return tracker
        if self._client is None:
            from accum_sweeps.record.mlflow_client import ClientTracker

            self._client = ClientTracker.open(self.uri, self.experiment)
        return self._client


class Pass:
    """One pass over a sweep's runs."""

    def __init__(self, replay: Replay, tracker: Tracker, report: SyncReport) -> None:
        self.root, self.sweep, self.cursor = replay.root, replay.sweep, replay.cursor
        self.runs = replay.runs()
        self.tracker, self.report = tracker, report
        self.now = file_system_now(self.sweep.path)
        self.is_cancelled = self.sweep.is_cancelled
        self.work = Work(self.root, self.sweep, self.cursor, tracker, report, self.now)
        self.committed = time.monotonic()

    def all(self, is_over: bool, files: Sequence[Path], verify: bool) -> None:
        """Everything that is due now."""
        self._begin(verify)
        counts: Counter[str] = Counter()
        newest = max((run.plan.revision for run in self.runs.values()), default=0)
        for run_id, run in self.runs.items():
            now_seen = seen(self.root.run_folder(run_id))
            if any(now_seen):
                counts[self._one(run_id, run, now_seen)] += 1
                if time.monotonic() - self.committed > GROUP_S:
                    self._commit()
            elif run.plan.revision == newest:
                counts[self._in_sweep("planned")] += 1
        self.report.running = counts["running"]
        self.report.runs = sum(bool(entry.get("id")) for name, entry in self.cursor.entries.items() if name != SWEEP)
        self._conclude(counts, is_over=is_over)
        self._keep(files)
        self._renew_statistics(is_over)
        self._commit()

    def _renew_statistics(self, is_over: bool) -> None:
        samples = sum(entry.get("sent", 0) for entry in self.cursor.entries.values())
        new = samples - self.cursor.entries[SWEEP].get("counted", 0)
        if new >= MANY_SAMPLES or (is_over and new):
            self.tracker.finish()
            self.cursor.update(SWEEP, counted=samples)

    def _commit(self) -> None:
        """First MLflow, then the cursor: what a crash in between leaves unsaid is found again."""
        self.tracker.commit()
        self.cursor.flush()
        self.committed = time.monotonic()

    def _begin(self, verify: bool) -> None:
        """Find or create the sweep's own run. Raises UnknownRunError if MLflow does not know what the cursor tells of."""
        identifier = self.cursor.entries.get(SWEEP, {}).get("id", "")
        if identifier:
            try:
                self.tracker.check_run(identifier)
            except DeletedRunError:
                self.cursor.forget(SWEEP)
                identifier = ""
        # An id of None: noted before the run was created, and a crash came in between.
        if verify or not identifier or any(entry.get("id", "") is None for entry in self.cursor.entries.values()):
            runs = self.tracker.find_runs({"sweep_id": sweep_id(self.sweep)})
            if verify:
                self._verify(runs)
            known = {entry.get("id") for entry in self.cursor.entries.values()}
            self.work.found = {(tags.get("run_id", ""), tags.get("env_id", "")): run for run, tags in runs.items() if run not in known}
        if not identifier:
            identifier = self.work.found.get(("", "")) or self._create_sweep()
            self.cursor.update(SWEEP, id=identifier)
            self._commit()
        self.work.parent = identifier

    def _verify(self, runs: dict[str, dict[str, str]]) -> None:
        """Doubt what the cursor tells of runs that MLflow has lost, or has in an older state (a restored copy of its database)."""
        for name, entry in list(self.cursor.entries.items()):
            if name == SWEEP or not entry.get("id"):
                continue
            tags = runs.get(entry["id"])
            if tags is None:
                with contextlib.suppress(DeletedRunError):
                    try:
                        self.tracker.check_run(entry["id"])
                    except UnknownRunError:
                        self.cursor.forget(name)
                        self._look_again(name)
            elif any(tags.get(key) != value for key, value in entry.get("facts", {}).items()):
                self.cursor.update(name, is_found=True, params=False, name=None, facts={}, told=None)
                self._look_again(name)

    def _look_again(self, child: str) -> None:
        self.cursor.forget(child.partition("/")[0])

    def _keep(self, files: Sequence[Path]) -> None:
        for path in files:
            try:
                self.tracker.log_file(self.work.parent, path)
            except OSError as error:
                self.report.damaged.append(f"{path}: not kept in MLflow: {error.strerror or error}")

    def _create_sweep(self) -> str:
        header = next(iter(self.runs.values())).plan.header if self.runs else {}
        tags = {"kind": "sweep", "sweep": self.sweep.name, "sweep_id": sweep_id(self.sweep), "mlflow.user": user()}
        return self.tracker.create_run(self.sweep.name, int(header.get("created_ms", time.time() * 1000)), tags)

    def _conclude(self, counts: Counter[str], *, is_over: bool) -> None:
        """The note and state of the sweep's own run."""
        newest = max((run.plan for run in self.runs.values()), key=lambda plan: plan.revision, default=None)
        if newest is None:
            return
        verdict = self.sweep.path / "mlflow" / "verdict.md"
        words = note(newest, counts, verdict.read_text() if verdict.exists() else "")
        status = sweep_status(counts, is_over=is_over)
        # Runs that other sweeps have done may all have ended before this one was planned.
        end = max(int(newest.header.get("created_ms", 0)), *(entry.get("end", 0) for entry in self.cursor.entries.values()))
        told = {"note": words, "status": status, "end": 0 if status == RUNNING else end}
        if self.cursor.entries[SWEEP].get("told") != told:
            self.tracker.set_tags(self.work.parent, {NOTE: words})
            self.tracker.set_status(self.work.parent, status, None if status == RUNNING else end or int(self.now * 1000))
            self.cursor.update(SWEEP, told=told)

    def _one(self, run_id: str, run: SweepRun, now_seen: list[Any]) -> str:
        """Bring one run up to date, in all environments that count; its status."""
        entry = self.cursor.entries.get(run_id, {})
        mark = [*now_seen, self.is_cancelled]
        if entry.get("mark") == mark:
            return str(entry["status"])
        state = run_state(self.root, run_id, now=self.now)
        status = self._in_sweep(state.status)
        children = read_children(self.root, run_id)
        counting = shown(children, state.env_id)
        for child in children:
            if child.damage:
                self.report.damaged.append(child.damage)
            if child not in counting:
                self.work.drop(child)
        for child in counting:
            self._bring(run, child, child.state(state), is_oldest=child is counting[0])
        # What may change without a trace in the run's folder is looked at again: a worker can die, a file can be mended.
        is_settled = state.env_id and state.status != "running" and not any(child.damage for child in children)
        self.cursor.update(run_id, status=status, mark=mark if is_settled else None)
        return status

    def _bring(self, run: SweepRun, child: Child, state: RunState, *, is_oldest: bool) -> None:
        if child.number == 0 and state.status in ("running", "planned"):
            self.work.drop(child)  # nothing was measured yet
            return
        name = run.name("" if is_oldest else child.env_id)
        try:
            RunReplay(self.work, run, child, name, state, self._in_sweep(state.status)).bring()
        except DeletedRunError:
            self.report.removed += 1
        except RefusedError as error:
            self.report.damaged.append(f"{name}: {error}")

    def _in_sweep(self, status: str) -> str:
        return shown_status(status, is_cancelled=self.is_cancelled)
