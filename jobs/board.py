"""What a command knows of its sweep at the moment: a status for each run, who is at what, and what went wrong."""

import collections
import time
from dataclasses import dataclass, field
from typing import Any

from accum_sweeps.record.events import DONE, read_tail
from accum_sweeps.record.state import RunState
from accum_sweeps.record.store import RootDir
from accum_sweeps.record.sweep import Plan


@dataclass
class Running:
    """A run that one of the command's workers is at."""

    run_id: str
    attempt: int
    env_id: str
    since: float
    worker: str
    slot: str = ""
    step: int = 0
    first_step: int | None = None
    values: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Spent:
    """``seconds`` that one worker took for so many ``runs``, a part of one where it was begun or continued."""

    seconds: float = 0.0
    runs: float = 0.0

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(self.seconds + other.seconds, self.runs + other.runs)


@dataclass
class Board:
    """Statuses by run_id, running runs by worker name, notes for people in the order in which they came."""

    root: RootDir
    plan: Plan
    status: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    running: dict[str, Running] = field(default_factory=dict)
    slots: dict[str, str] = field(default_factory=dict)
    waiting: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    spent: dict[int, Spent] = field(default_factory=dict)  # by setup: on the runs of this command that are over

    def counts(self) -> dict[str, int]:
        """Runs by status."""
        return dict(collections.Counter(self.status.values()))

    def counts_by_setup(self) -> list[dict[str, int]]:
        """Runs by status, for each setup of the plan."""
        found: list[collections.Counter[str]] = [collections.Counter() for _ in self.plan.setups]
        for run in self.plan.runs:
            found[run.setup][self.status[run.run_id]] += 1
        return [dict(counter) for counter in found]

    def settle(self, state: RunState, *, is_done: bool) -> None:
        """Take over what the run's directory says; ``is_done`` where this command counts it as done."""
        if is_done:
            self.status[state.run_id] = state.status if state.status in DONE else "finished"
        else:
            self.status[state.run_id] = "planned" if state.status in DONE else state.status
        if state.status in ("failed", "lost"):
            self.reasons[state.run_id] = state.reason

    def apply(self, worker: str, event: dict[str, Any]) -> None:
        """Take over a line of a worker's journal."""
        run_id = event.get("run")
        if run_id is not None and run_id not in self.status:
            return  # of another revision of the plan
        handler = getattr(self, f"_on_{event['event']}", None)
        if handler is not None:
            handler(worker, event)

    def _on_slot(self, worker: str, event: dict[str, Any]) -> None:
        self.slots[worker] = event["slot"]
        self.waiting.pop(worker, None)

    def _on_waiting(self, worker: str, event: dict[str, Any]) -> None:
        self.waiting[worker] = event["reason"]

    def _on_claimed(self, worker: str, event: dict[str, Any]) -> None:
        self.waiting.pop(worker, None)
        self.status[event["run"]] = "running"
        slot = self.slots.get(worker, "")
        self.running[worker] = Running(event["run"], event["attempt"], event["env_id"], event["time"] / 1000, worker, slot)

    def _on_ended(self, worker: str, event: dict[str, Any]) -> None:
        env_id = self._leave(worker, event["time"] / 1000)
        self.status[event["run"]] = "planned" if event["status"] == "released" else event["status"]
        if event["status"] == "failed":
            self.reasons[event["run"]] = event["error"]
            log = self.root.run_dir(event["run"], env_id).log_path(event["attempt"])
            self.note(f"{self.name_of(event['run'])}: failed: {event['error']}\n  log: {log}")

    def _on_reused(self, _worker: str, event: dict[str, Any]) -> None:
        self.status[event["run"]] = "finished"

    def _on_damaged(self, _worker: str, event: dict[str, Any]) -> None:
        self.note(event["message"])

    def _on_died(self, worker: str, event: dict[str, Any]) -> None:
        self.running.pop(worker, None)
        self.waiting.pop(worker, None)
        if event["run"] is not None:
            self.status[event["run"]], self.reasons[event["run"]] = "lost", event["reason"]
            self.note(f"{self.name_of(event['run'])}: {event['reason']}")

    def _on_left(self, worker: str, _event: dict[str, Any]) -> None:
        self.running.pop(worker, None)
        self.waiting.pop(worker, None)

    def _leave(self, worker: str, now: float) -> str:
        """The worker's run is over; returns the environment it ran in."""
        running = self.running.pop(worker, None)
        if running is None:
            return ""
        setup = self._setup(running)
        running.step = self.plan.setups[setup].steps
        self.spent[setup] = self.spent.get(setup, Spent()) + self._spent(running, now)
        return running.env_id

    def _setup(self, running: Running) -> int:
        return self.plan.by_id[running.run_id].setup

    def _spent(self, running: Running, now: float) -> Spent:
        """So far, by the steps done; nothing before the first one, when a run has only read its data.

        The clock of a node may be ahead of this one's: an estimate of the time left is then too small, but never below 0.
        """
        steps = running.step - (running.first_step or 0)
        return Spent(max(now - running.since, 0.0), steps / self.plan.setups[self._setup(running)].steps) if steps > 0 else Spent()

    def note(self, text: str) -> None:
        """Something that a person should know; each text once."""
        if text not in self.notes:
            self.notes.append(text)

    def name_of(self, run_id: str) -> str:
        """The run in words."""
        return self.plan.run_name(self.plan.by_id[run_id])

    def refresh_running(self) -> None:
        """Read the newest step and values of the runs that are running."""
        for running in self.running.values():
            path = self.root.run_dir(running.run_id, running.env_id).events_path(running.attempt)
            try:
                attempt = read_tail(path, running.attempt, 1 << 12)
            except OSError:
                continue
            running.step = attempt.step
            if running.first_step is None:
                running.first_step = attempt.from_step
            if attempt.points:
                running.values = attempt.points[-1].values

    def remaining_s(self, now: float | None = None) -> float | None:
        """Estimated seconds to the end; None while nothing was done yet. ``now``: seconds since the epoch.

        From the time that the setup's own runs took here, or, for a setup without any, from that of all runs: a step of one setup may
        take a thousand times as long as a step of another.
        """
        now = time.time() if now is None else now
        spent, left = dict(self.spent), collections.Counter[int]()
        for run in self.plan.runs:
            left[run.setup] += self.status[run.run_id] in ("planned", "running", "lost")
        to_do = {setup: float(number) for setup, number in left.items()}
        for running in self.running.values():
            setup = self._setup(running)
            spent[setup] = spent.get(setup, Spent()) + self._spent(running, now)
            to_do[setup] -= running.step / self.plan.setups[setup].steps
        total = sum(spent.values(), Spent())
        if not total.runs:
            return None
        known = {setup: each if each.runs else total for setup, each in spent.items()}
        seconds = sum(number * known.get(setup, total).seconds / known.get(setup, total).runs for setup, number in to_do.items())
        return seconds / max(1, len(self.running))
