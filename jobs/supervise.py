"""The process between scheduler and worker: starts the worker, replaces it when it dies, stops it when asked to.

It imports nothing heavy and runs none of the user's code, so it outlives whatever a run does, and can say how a worker
died. On a cluster it is all that watches: the command that submitted the job may be gone.
"""

import contextlib
import dataclasses
import faulthandler
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from accum_sweeps.jobs.claims import mark_lost, process_facts
from accum_sweeps.jobs.heartbeat import STOPPING, Stop, handle_stopping
from accum_sweeps.jobs.journal import Journal, JournalReader, tail
from accum_sweeps.jobs.order import WorkOrder
from accum_sweeps.jobs.worker import ENDS, WorkEnd, disk_full, work
from accum_sweeps.plan.words import counted
from accum_sweeps.record.events import now_ms
from accum_sweeps.record.state import INTERRUPTED
from accum_sweeps.record.store import RootDir, open_root
from accum_sweeps.record.sweep import open_sweep

POLL_S = 0.05
LOOK_S = 0.5
DUMP_S = 2.0  # given to a hanging worker to write where it hangs
BARREN_DEATHS = 3  # workers in a row that die without having taken a run
FIRST_CODE = 40  # exit codes of a worker that ended in one of ENDS; others mean that it died


class RunsFailedError(Exception):
    """Some runs of a job failed though the job did all it could; raised so that the scheduler shows the job as failed."""


@dataclass
class Supervision:
    """What a job did: how it ended, and the runs whose last attempt in it failed or killed its worker."""

    end: WorkEnd = field(default_factory=lambda: WorkEnd("done"))
    taken: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    holding: dict[str, Any] | None = None
    barren_deaths: int = 0

    def apply(self, event: dict[str, Any]) -> None:
        """Take note of a line of the worker's journal."""
        kind = event["event"]
        if kind == "claimed":
            self.holding, self.barren_deaths = event, 0
            self.taken.add(event["run"])
        elif kind == "ended":
            self.holding = None
            (self.failed.add if event["status"] == "failed" else self.failed.discard)(event["run"])
        elif kind == "fatal":
            self.end = WorkEnd("fatal", event["message"])


def supervise(order: WorkOrder, failed: Iterable[str] = ()) -> WorkEnd:
    """Have the order's runs done by worker processes, one after the other, each in place of one that died.

    Raises RunsFailedError at the end if a run failed or killed its worker, or did before (``failed``).
    """
    root = open_root(Path(order.root))
    path = open_sweep(root, order.sweep).path / "workers" / f"{order.name}.jsonl"
    journal, reader = Journal(path), JournalReader(path)
    journal.write("job", job=order.job, log=order.log, **process_facts(os.getpid()))
    state = Supervision(failed=set(failed))
    with _Child(order) as child:
        while True:
            code = child.run(order, state, reader)
            if 0 <= code - FIRST_CODE < len(ENDS):
                kind = ENDS[code - FIRST_CODE]
                if kind != "fatal":
                    state.end = WorkEnd(kind, child.stop_reason if kind == "stopped" else "")
                elif state.end.kind != "fatal":  # it could not even write why
                    state.end = WorkEnd("fatal", disk_full(order.root))
                break
            reason = child.why_killed or _words(code)
            _bury(root, order, state, journal, f"{INTERRUPTED}: {reason}" if child.stop_reason else reason)
            if child.stop_reason:
                state.end = WorkEnd("stopped", child.stop_reason)
                break
            state.barren_deaths += 1
            if state.barren_deaths >= BARREN_DEATHS:
                state.end = WorkEnd("fatal", f"workers die before they take a run ({_words(code)}):\n{tail(Path(order.log))}")
                break
            order = dataclasses.replace(order, incarnation=order.incarnation + 1)
    journal.write("left", kind=state.end.kind, message=state.end.message)
    journal.close()
    if state.failed and state.end.kind != "stopped":
        raise RunsFailedError(f"{counted(len(state.failed), 'run')} failed: {', '.join(sorted(state.failed))}")
    return state.end


def _bury(root: RootDir, order: WorkOrder, state: Supervision, journal: Journal, reason: str) -> None:
    """Say which run a dead worker leaves behind."""
    print(f"worker {order.owner}: {reason}", file=sys.stderr, flush=True)
    holding = state.holding or {}
    if holding:
        mark_lost(root, holding["run"], holding["attempt"], reason)
        state.failed.add(holding["run"])
    journal.write("died", owner=order.owner, reason=reason, run=holding.get("run"), attempt=holding.get("attempt"))
    state.holding = None


def _words(code: int) -> str:
    if code >= 0:
        return f"its worker ended with exit code {code}"
    try:
        return f"its worker was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"its worker was killed by signal {-code}"


class _Child:
    """Forks workers, one at a time, and passes signals on to the present one."""

    def __init__(self, order: WorkOrder) -> None:
        self.order = order
        self.pid = 0
        self.stop_reason = ""
        self.why_killed = ""
        self.deadline: float | None = None
        self.looked = 0.0
        self.before: dict[int, Any] = {}

    def __enter__(self) -> "_Child":
        self.before = {number: signal.getsignal(number) for number in STOPPING}
        handle_stopping(self._on_signal, ignore_terminal=self.order.dispatcher is not None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)  # the dispatcher starts jobs with some of them blocked
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._stop(f"stopped by {signal.Signals(number).name}")

    def _stop(self, reason: str) -> None:
        self.stop_reason = self.stop_reason or reason
        if self.deadline is None:
            self.deadline = time.monotonic() + self.order.resources.stop_grace_s
        if self.pid:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid, signal.SIGTERM)

    def run(self, order: WorkOrder, state: Supervision, reader: JournalReader) -> int:
        """Run one worker to its end; returns its exit code, negative for a signal."""
        bound = order.resources.runs_per_job
        self.why_killed = ""
        if bound:
            order = dataclasses.replace(order, runs_left=max(bound - len(state.taken), 0), taken=tuple(sorted(state.taken)))
        self._fork(order)
        try:
            while True:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    return os.waitstatus_to_exitcode(status)
                self._look(state, reader)
                time.sleep(POLL_S)
        except BaseException:
            os.kill(self.pid, signal.SIGKILL)  # nobody would watch it
            raise
        finally:
            self.pid = 0
            self._read(state, reader)

    def _fork(self, order: WorkOrder) -> None:
        # Blocked around the fork, a signal reaches either the old handlers or the child's own, never half of each.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
        sys.stdout.flush(), sys.stderr.flush()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            _be_worker(order, parent, self.stop_reason)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)

    def _read(self, state: Supervision, reader: JournalReader) -> None:
        for event in reader.read():
            state.apply(event)

    def _look(self, state: Supervision, reader: JournalReader) -> None:
        now = time.monotonic()
        if self.deadline is not None and now > self.deadline:
            return self._kill(f"it did not stop within {self.order.resources.stop_grace_s:g} s ({self.stop_reason})")
        if now - self.looked < LOOK_S:
            return None
        self.looked = now
        if not self.stop_reason and self.order.is_abandoned:
            self._stop("the command that started this worker is gone")
        self._read(state, reader)
        limit_s = self.order.resources.run_limit_s
        if limit_s is not None and state.holding:
            over_s = (now_ms() - state.holding["time"]) / 1000 - limit_s
            if over_s > min(self.order.resources.stop_grace_s, max(limit_s, 1.0)):  # the run itself did not notice
                self._kill(f"its run's time limit of {limit_s / 60:g} min is over and it did not stop")
        return None

    def _kill(self, why: str) -> None:
        self.why_killed = self.why_killed or why
        os.kill(self.pid, signal.SIGABRT)  # faulthandler writes where it hangs
        until = time.monotonic() + DUMP_S
        while time.monotonic() < until and os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            time.sleep(POLL_S)
        os.kill(self.pid, signal.SIGKILL)


def _be_worker(order: WorkOrder, parent: int, stop_reason: str) -> None:
    """The forked process's whole life; never returns."""
    code = 1
    try:
        stop = Stop()
        stop.worker = stop_reason or None
        handle_stopping(stop.on_signal, ignore_terminal=order.dispatcher is not None)
        signal.signal(signal.SIGABRT, signal.SIG_DFL)
        faulthandler.enable(file=2)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
        code = FIRST_CODE + ENDS.index(work(order, stop, parent=parent).kind)
    except BaseException:
        traceback.print_exc()
    finally:
        # Nothing of the parent's (buffers, exit handlers, the scheduler's stack) may run in this process.
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(code)
