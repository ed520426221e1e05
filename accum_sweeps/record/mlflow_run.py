"""Brings one run in one environment into MLflow: created once, each kept sample once, whatever is killed in between.

The order: note that it will be created, create it, note its id; parameters in a call of their own; samples batch by
batch, the cursor after each; tags and state last. Whatever is in doubt after a crash is looked up by its tags.
"""

import contextlib
import itertools
from dataclasses import dataclass, field
from typing import Any

from accum_sweeps.record.mlflow_children import Child
from accum_sweeps.record.mlflow_content import RUNNING, SweepRun, facts_tags, mlflow_status, times
from accum_sweeps.record.mlflow_cursor import Cursor
from accum_sweeps.record.mlflow_points import Curves, Sample, run_samples
from accum_sweeps.record.mlflow_tracker import BATCH, DeletedRunError, RefusedError, Tracker, UnknownRunError
from accum_sweeps.record.state import RunState
from accum_sweeps.record.store import RootDir
from accum_sweeps.record.sweep import SweepDir


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
class Work:
    """What the runs of one pass share. ``found``: runs in MLflow that the cursor does not know, by run_id and env_id."""

    root: RootDir
    sweep: SweepDir
    cursor: Cursor
    tracker: Tracker
    report: SyncReport
    now: float
    parent: str = ""
    found: dict[tuple[str, str], str] = field(default_factory=dict)

    def drop(self, child: Child) -> None:
        """Hide what MLflow has of an environment that does not count (any more)."""
        known = self.cursor.entries.get(child.key)
        identifier = (known or {}).get("id") or self.found.pop((child.run_id, child.env_id), None)
        if identifier:
            # Noted first: after a crash in between, a deleted run would look as if a person had deleted it.
            self.cursor.update(child.key, id=identifier, is_replaced=True)
            with contextlib.suppress(UnknownRunError, DeletedRunError, RefusedError):
                self.tracker.delete_run(identifier)
        if identifier or known:
            self.cursor.forget(child.key)


@dataclass
class RunReplay:
    """One run in one environment, in one pass; ``status`` is its state as the sweep sees it."""

    work: Work
    run: SweepRun
    child: Child
    name: str
    state: RunState
    status: str
    altered: dict[str, None] = field(default_factory=dict)

    def bring(self) -> None:
        """Create what is missing, send what is new. A run that MLflow does not know any more is started again."""
        try:
            self._bring()
        except UnknownRunError:
            self.work.cursor.forget(self.child.key)
            self._bring()
        if self.altered:
            self.work.report.altered.append(f"{self.name}: {'; '.join(self.altered)}")

    def _bring(self) -> None:
        curves = Curves() if self.child.damage else run_samples(self.child.history, self.run.steps)
        self.altered |= dict.fromkeys(self.entry.get("refused", [])) | curves.altered
        identifier = self._prepared()
        if not self.child.damage:
            identifier = self._continue(identifier, curves.samples)
            self._send(identifier, curves.samples)
        self._tell(identifier)

    def _prepared(self) -> str:
        """The run's id in MLflow, its parameters there."""
        params = self.run.params(self.altered)
        identifier = self._identifier()
        if not self.entry.get("params"):
            self._note_refused(self.work.tracker.log_params(identifier, params))
            self.work.cursor.update(self.child.key, params=True)
        return identifier

    @property
    def entry(self) -> dict[str, Any]:
        """What the cursor knows of the run."""
        return self.work.cursor.entries.get(self.child.key, {})

    def _identifier(self) -> str:
        """The run's id in MLflow; it is created unless it exists."""
        if self.entry.get("is_replaced"):
            self.work.drop(self.child)
        if self.entry.get("id"):
            return str(self.entry["id"])
        key, env_id = self.child.key, self.child.env_id
        found = self.work.found.pop((self.child.run_id, env_id), None)
        if found:
            self.work.tracker.set_tags(found, {"mlflow.parentRunId": self.work.parent})
            self.work.cursor.forget(key)
            self.work.cursor.update(key, id=found, sent=0, is_found=True)
            return found
        self.work.cursor.update(key, at_once=True, id=None, sent=0)
        start, _ = self._times()
        tags = self.run.tags(self.work.sweep, self.work.parent, env_id)
        identifier = self.work.tracker.create_run(self.name, start, {**tags, **self._facts()})
        self.work.cursor.update(key, id=identifier, name=self.name, facts=self._facts(), told=[RUNNING, None])
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
            self.work.cursor.update(self.child.key, sent=0, last=None, is_found=False)
            return identifier
        # Noted first: after a crash in between, a deleted run would look as if a person had deleted it.
        self.work.cursor.update(self.child.key, is_replaced=True)
        return self._prepared()

    def _send(self, identifier: str, samples: list[Sample]) -> None:
        sent = self.entry["sent"]
        rest = iter(samples[sent:])
        while batch := list(itertools.islice(rest, BATCH)):
            self._note_refused(self.work.tracker.log_samples(identifier, batch))
            sent += len(batch)
            self.work.report.samples += len(batch)
            self.work.cursor.update(self.child.key, sent=sent, last=list(batch[-1][:3]))

    def _note_refused(self, words: list[str]) -> None:
        if words:
            self.work.cursor.update(self.child.key, refused=[*self.entry.get("refused", []), *words])
            self.altered |= dict.fromkeys(words)

    def _tell(self, identifier: str) -> None:
        """Name, tags and state, where they changed."""
        facts, before = self._facts(), self.entry.get("facts", {})
        changed = dict.fromkeys(before.keys() - facts.keys(), "") | {key: value for key, value in facts.items() if before.get(key) != value}
        if self.entry.get("name") != self.name:  # only then: somebody may have renamed the run in MLflow
            changed["mlflow.runName"] = self.name
        if changed:
            self.work.tracker.set_tags(identifier, changed)
        _, end = self._times()
        status = mlflow_status(self.state)
        if self.entry.get("told") != [status, end]:
            self.work.tracker.set_status(identifier, status, end)
        outcome = self.child.history.outcome
        self.work.cursor.update(self.child.key, name=self.name, facts=facts, told=[status, end], end=end or 0, outcome=outcome)

    def _facts(self) -> dict[str, str]:
        return {**facts_tags(self.child.history, self.state, self.altered), "status": self.status}

    def _times(self) -> tuple[int, int | None]:
        claim = self.work.root.run_folder(self.child.run_id) / f"claim.{self.state.attempt}"
        claimed = claim.stat().st_mtime if claim.exists() else self.work.now
        return times(self.child.history, self.state, int(claimed * 1000))
