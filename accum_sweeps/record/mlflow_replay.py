"""Brings the runs of one sweep into one MLflow: each run once, each kept sample once, whatever is killed in between.

The order for each run: note that it will be created, create it, note its id; parameters in a call of their own; samples
batch by batch, the cursor after each; tags and state last. Whatever is in doubt after a crash is looked up by its tags.
"""

import contextlib
import itertools
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from accum_sweeps.record.mlflow_content import (
    NOTE,
    RUNNING,
    SweepRun,
    facts_tags,
    mlflow_status,
    note,
    sweep_id,
    sweep_runs,
    sweep_status,
    times,
    user,
)
from accum_sweeps.record.mlflow_cursor import SWEEP, Cursor, exclusive, target_folder
from accum_sweeps.record.mlflow_database import prepare
from accum_sweeps.record.mlflow_points import Curves, Sample, run_samples
from accum_sweeps.record.mlflow_sqlite import SqliteTracker, sqlite_path
from accum_sweeps.record.mlflow_tracker import BATCH, DeletedRunError, RefusedError, Tracker, UnknownRunError, UnreachableError
from accum_sweeps.record.state import RunState, file_system_now, newest_claim, run_state
from accum_sweeps.record.store import History, RootDir
from accum_sweeps.record.sweep import SweepDir

MANY_SAMPLES = 5000  # after which SQLite's statistics are worth their renewal
GROUP_S = 0.25  # of work between two commits, where MLflow has such: each waits for the disk, and others wait meanwhile


@dataclass(kw_only=True)
class SyncReport:
    """What a replay did. ``altered`` and ``damaged`` name runs; ``warning`` says why not everything arrived."""

    runs: int = 0
    created: int = 0
    samples: int = 0
    removed: int = 0
    altered: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    warning: str = ""
    is_busy: bool = False
    running: int = 0

    @property
    def is_complete(self) -> bool:
        """Whether MLflow holds everything that it is to hold now."""
        return not self.warning and not self.is_busy


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
        self.found: dict[tuple[str, str], str] = {}
        self.parent = ""
        self.committed = time.monotonic()

    def all(self, is_over: bool, files: Sequence[Path], verify: bool) -> None:
        """Everything that is due now."""
        self._begin(verify)
        counts: Counter[str] = Counter()
        newest = max((run.plan.revision for run in self.runs.values()), default=0)
        for run_id, run in self.runs.items():
            number = newest_claim(self.root.run_folder(run_id))
            if number:
                counts[self._one(run_id, run, number)] += 1
                if time.monotonic() - self.committed > GROUP_S:
                    self._commit()
            elif run.plan.revision == newest:
                counts[self._in_sweep("planned")] += 1
        self.report.running = counts["running"]
        self.report.runs = sum(bool(entry.get("id")) for name, entry in self.cursor.entries.items() if name != SWEEP)
        self._conclude(counts, is_over=is_over)
        self._keep(files)
        if self.report.samples >= MANY_SAMPLES:
            self.tracker.finish()
        self._commit()

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
        if verify or not identifier or not all(entry.get("id") for entry in self.cursor.entries.values()):
            runs = self.tracker.find_runs({"sweep_id": sweep_id(self.sweep)})
            if verify:
                self._verify(runs)
            known = {entry.get("id") for entry in self.cursor.entries.values()}
            self.found = {(tags.get("run_id", ""), tags.get("env_id", "")): run for run, tags in runs.items() if run not in known}
        if not identifier:
            identifier = self.found.get(("", "")) or self._create_sweep()
            self.cursor.update(SWEEP, id=identifier)
            self._commit()
        self.parent = identifier

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
            elif any(tags.get(key) != value for key, value in entry.get("facts", {}).items()):
                self.cursor.update(name, is_found=True, params=False, facts={}, told=None, mark=None)

    def _keep(self, files: Sequence[Path]) -> None:
        for path in files:
            try:
                self.tracker.log_file(self.parent, path)
            except OSError as error:
                self.report.damaged.append(f"{path}: not kept in MLflow: {error.strerror}")

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
        told = {"note": words, "status": status}
        if self.cursor.entries[SWEEP].get("told") != told:
            self.tracker.set_tags(self.parent, {NOTE: words})
            ends = [entry.get("end", 0) for entry in self.cursor.entries.values()]
            self.tracker.set_status(self.parent, status, None if status == RUNNING else max(ends) or int(self.now * 1000))
            self.cursor.update(SWEEP, told=told)

    def _one(self, run_id: str, run: SweepRun, number: int) -> str:
        """Bring one run, claimed ``number`` times, up to date; its status."""
        entry = self.cursor.entries.get(run_id, {})
        if entry.get("mark") == self._mark(run_id, entry.get("env", ""), number):
            return str(entry["status"])
        state = run_state(self.root, run_id, now=self.now)
        status = self._in_sweep(state.status)
        if not state.env_id:
            return status
        mark = self._mark(run_id, state.env_id, state.attempt)
        try:
            history = self.root.run_dir(run_id, state.env_id).history()
            lines = sum(attempt.damaged_lines for attempt in history.attempts.values())
            damage = f"{lines} lines of its events cannot be read" if lines else ""
        except OSError as error:
            history, damage = History({}), str(error)
        if damage:
            self.report.damaged.append(f"{self.root.run_dir(run_id, state.env_id).path}: {damage}")
        if history.newest is None and state.status in ("running", "planned"):
            return status
        try:
            RunReplay(self, run_id, run, state, status, history, is_damaged=bool(damage)).bring()
        except DeletedRunError:
            self.report.removed += 1
        except RefusedError as error:
            self.report.damaged.append(f"{run.name}: {error}")
        self.cursor.update(run_id, env=state.env_id, status=status, mark=None if state.status == "running" or damage else mark)
        return status

    def _in_sweep(self, status: str) -> str:
        return "cancelled" if status == "planned" and self.is_cancelled else status

    def _mark(self, run_id: str, env_id: str, number: int) -> list[Any]:
        """Changes whenever there is something new to tell of a run that does not run."""
        try:
            size = self.root.run_dir(run_id, env_id).events_path(number).stat().st_size
        except OSError:
            size = -1
        return [number, size, self.is_cancelled]


@dataclass
class RunReplay:
    """One run of a pass."""

    work: Pass
    run_id: str
    run: SweepRun
    state: RunState
    status: str
    history: History
    is_damaged: bool
    altered: dict[str, None] = field(default_factory=dict)

    def bring(self) -> None:
        """Create what is missing, send what is new. A run that MLflow does not know any more is started again."""
        entry = self.work.cursor.entries.get(self.run_id, {})
        if entry.get("env", self.state.env_id) != self.state.env_id:
            self.work.cursor.forget(self.run_id)
        try:
            self._bring()
        except UnknownRunError:
            self.work.cursor.forget(self.run_id)
            self._bring()
        if self.altered:
            self.work.report.altered.append(f"{self.run.name}: {'; '.join(self.altered)}")

    def _bring(self) -> None:
        curves = Curves() if self.is_damaged else run_samples(self.history, self.run.steps)
        self.altered |= curves.altered
        identifier = self._prepared()
        if not self.is_damaged:
            identifier = self._continue(identifier, curves.samples)
            self._send(identifier, curves.samples)
        self._tell(identifier)

    def _prepared(self) -> str:
        """The run's id in MLflow, its parameters there."""
        params = self.run.params(self.altered)
        identifier = self._identifier()
        if not self.entry.get("params"):
            self.altered |= dict.fromkeys(self.work.tracker.log_params(identifier, params))
            self.work.cursor.update(self.run_id, params=True)
        return identifier

    @property
    def entry(self) -> dict[str, Any]:
        """What the cursor knows of the run."""
        return self.work.cursor.entries.get(self.run_id, {})

    def _identifier(self) -> str:
        """The run's id in MLflow; it is created unless it exists."""
        if self.entry.get("is_replaced"):
            with contextlib.suppress(UnknownRunError, DeletedRunError, RefusedError):
                self.work.tracker.delete_run(self.entry["id"])
            self.work.cursor.forget(self.run_id)
        if self.entry.get("id"):
            return str(self.entry["id"])
        found = self.work.found.pop((self.run_id, self.state.env_id), None)
        if found:
            self.work.tracker.set_tags(found, {"mlflow.parentRunId": self.work.parent})
            self.work.cursor.forget(self.run_id)
            self.work.cursor.update(self.run_id, id=found, env=self.state.env_id, sent=0, is_found=True)
            return found
        self.work.cursor.update(self.run_id, at_once=True, id=None, env=self.state.env_id, sent=0)
        start, _ = self._times()
        tags = self.run.tags(self.work.sweep, self.work.parent, self.state.env_id)
        identifier = self.work.tracker.create_run(self.run.name, start, {**tags, **self._facts()})
        self.work.cursor.update(self.run_id, id=identifier, facts=self._facts(), told=[RUNNING, None])
        self.work.report.created += 1
        return identifier

    def _continue(self, identifier: str, samples: list[Sample]) -> str:
        """Whether what MLflow has is the beginning of what it is to get; if not, the run is replaced by a new one.

        That happens where a checkpoint was damaged, or a worker taken for dead went on for a while: a later attempt then
        measured again what had been sent.
        """
        sent, last = self.entry.get("sent", 0), self.entry.get("last")
        is_beginning = sent == 0 if last is None else sent <= len(samples) and list(samples[sent - 1][:3]) == last
        if is_beginning and not self.entry.get("is_found"):
            return identifier
        if self.work.tracker.samples(identifier) <= {sample[:3] for sample in samples}:
            self.work.cursor.update(self.run_id, sent=0, last=None, is_found=False)
            return identifier
        # Noted first: after a crash in between, a deleted run would look as if a person had deleted it.
        self.work.cursor.update(self.run_id, is_replaced=True)
        return self._prepared()

    def _send(self, identifier: str, samples: list[Sample]) -> None:
        sent = self.entry["sent"]
        rest = iter(samples[sent:])
        while batch := list(itertools.islice(rest, BATCH)):
            self.altered |= dict.fromkeys(self.work.tracker.log_samples(identifier, batch))
            sent += len(batch)
            self.work.report.samples += len(batch)
            self.work.cursor.update(self.run_id, sent=sent, last=list(batch[-1][:3]))

    def _tell(self, identifier: str) -> None:
        """Tags and state, where they changed."""
        facts, before = self._facts(), self.entry.get("facts", {})
        changed = dict.fromkeys(before.keys() - facts.keys(), "") | {key: value for key, value in facts.items() if before.get(key) != value}
        if changed:
            self.work.tracker.set_tags(identifier, changed)
        _, end = self._times()
        status = mlflow_status(self.state)
        if self.entry.get("told") != [status, end]:
            self.work.tracker.set_status(identifier, status, end)
        self.work.cursor.update(self.run_id, facts=facts, told=[status, end], end=end or 0)

    def _facts(self) -> dict[str, str]:
        return {**facts_tags(self.history, self.state, self.altered), "status": self.status}

    def _times(self) -> tuple[int, int | None]:
        claim = self.work.root.run_folder(self.run_id) / f"claim.{self.state.attempt}"
        claimed = claim.stat().st_mtime if claim.exists() else self.work.now
        return times(self.history, self.state, int(claimed * 1000))
