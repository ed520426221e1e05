"""Reads from the run directories where a plan stands, all at once or a little at a time."""

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from accum_sweeps.jobs.board import Board
from accum_sweeps.jobs.choice import finished_in
from accum_sweeps.jobs.damage import set_aside, set_aside_if_damaged
from accum_sweeps.jobs.order import Group, WorkOrder, groups
from accum_sweeps.plan.words import be, counted
from accum_sweeps.record.events import DONE
from accum_sweeps.record.state import RunState, file_system_now, run_state
from accum_sweeps.record.store import RootDir
from accum_sweeps.record.sweep import Plan, PlannedRun

SLICE_S = 0.002


class Scan:
    """Keeps ``board`` in step with the run directories.

    Only a worker knows its environment, and with ``reuse=strict`` a run done elsewhere is not done here. Until the first worker
    has named its environment, whatever is done anywhere counts as done, but one worker is wanted to find out.
    """

    def __init__(self, root: RootDir, plan: Plan, board: Board, order: WorkOrder) -> None:
        self.root, self.plan, self.board, self.reuse = root, plan, board, order.reuse
        self.dispatch = order.dispatch
        self.groups = groups(plan)
        self.group_of = {run.run_id: group for group, runs in self.groups.items() for run in runs}
        self.env_of: dict[Group, str] = {}
        self.done_in: dict[str, list[str]] = {}
        self.launcher_of: dict[str, str] = {}  # of done runs
        self._round: Iterator[PlannedRun] = itertools.cycle(plan.runs)
        self._attempts: dict[str, tuple[str, int]] = {}

    @property
    def env_ids(self) -> set[str]:
        """Environments of this command's workers."""
        return set(self.env_of.values())

    def everything(self) -> None:
        """Look at each run that is not known to be done."""
        now = file_system_now(self.root.path)
        for run in self.plan.runs:
            if self.board.status.get(run.run_id) not in DONE:
                self._look(run.run_id, now)

    def some(self) -> None:
        """Look at a few runs that others may have done meanwhile, for a bounded time."""
        until, now = time.monotonic() + SLICE_S, file_system_now(self.root.path)
        ours = {running.run_id for running in self.board.running.values()}
        for run in itertools.islice(self._round, len(self.plan.runs)):
            if time.monotonic() > until:
                break
            if run.run_id not in ours and self.board.status[run.run_id] not in DONE:
                self._look(run.run_id, now)

    def _look(self, run_id: str, now: float) -> None:
        folder = self.root.run_folder(run_id)
        if folder.exists() and not folder.is_dir():
            self.board.note(f"{folder}: is not a folder; set aside as {set_aside(folder).name}")
        state = run_state(self.root, run_id, now=now)
        if state.attempt:
            self._note_environments(state, [state.env_id] if state.is_done else finished_in(self.root, state))
        if state.attempt:
            self._attempts[run_id] = (state.env_id, state.attempt)
        if state.is_done:
            self.launcher_of[run_id] = state.claim.get("launcher", "")
        self.board.settle(state, is_done=self._counts_as_done(run_id))

    def _note_environments(self, state: RunState, environments: list[str]) -> None:
        for env_id in environments:
            if damage := set_aside_if_damaged(self.root.run_dir(state.run_id, env_id), is_thorough=False):
                self.board.note(damage)
            elif env_id not in (known := self.done_in.setdefault(state.run_id, [])):
                known.append(env_id)

    def _counts_as_done(self, run_id: str) -> bool:
        done = self.done_in.get(run_id, [])
        env_id = self.env_of.get(self.group_of[run_id])
        return bool(done) and (self.reuse != "strict" or env_id is None or env_id in done)

    def apply(self, group: Group, event: dict[str, Any]) -> bool:
        """Take over a journal line of one of the group's workers; True if more turned out to be left to do."""
        if event["event"] == "claimed":
            self._attempts[event["run"]] = (event["env_id"], event["attempt"])
        if event["event"] != "environment" or self.env_of.get(group) == event["env_id"]:
            return False
        self.env_of[group] = event["env_id"]
        elsewhere = [run.run_id for run in self.groups[group] if self._was_only_elsewhere(run.run_id, event["env_id"])]
        if not elsewhere or self.reuse == "any":
            return False
        runs = counted(len(elsewhere), "run")
        if self.reuse == "warn":
            self.board.note(f"{runs} {be(len(elsewhere))} taken from another environment than this one, {event['env_id']} (reuse=warn)")
            return False
        were = "was" if len(elsewhere) == 1 else "were"
        self.board.note(f"{runs} {were} done in another environment than this one, {event['env_id']}: done again here")
        for run_id in elsewhere:
            if self.board.status[run_id] in DONE:
                self.board.status[run_id] = "planned"
        return True

    def _was_only_elsewhere(self, run_id: str, env_id: str) -> bool:
        """Whether the run was done when this command began, but not in this environment."""
        if env_id in self.done_in.get(run_id, [env_id]):
            return False
        state = run_state(self.root, run_id)  # so far only the environment of the newest attempt was looked at
        self._note_environments(state, finished_in(self.root, state))
        is_ours = state.claim.get("dispatch") == self.dispatch  # by a worker faster than what it says about itself
        return is_ours or env_id not in self.done_in[run_id]

    def open_runs(self, group: Group) -> int:
        """Runs of the group for which a worker is wanted."""
        statuses = [self.board.status[run.run_id] for run in self.groups[group]]
        ours = sum(self.group_of[running.run_id] == group for running in self.board.running.values())
        elsewhere = statuses.count("running") - ours
        left = sum(status not in DONE for status in statuses)
        is_unsure = self.reuse != "any" and group not in self.env_of and any(run.run_id in self.done_in for run in self.groups[group])
        return max(left - max(elsewhere, 0), int(left > 0 or is_unsure))

    def log_of(self, run_id: str) -> Path:
        """The log of the run's newest attempt."""
        env_id, attempt = self._attempts.get(run_id, ("", 0))
        return self.root.run_dir(run_id, env_id).log_path(attempt)
