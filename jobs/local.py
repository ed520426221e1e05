"""Watches the worker jobs of one machine: starts as many as there are slots and work, replaces those that die, stops them."""

import contextlib
import dataclasses
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from accum_sweeps.jobs.claims import mark_lost
from accum_sweeps.jobs.dispatcher import Dispatcher
from accum_sweeps.jobs.journal import JournalReader, tail
from accum_sweeps.jobs.order import Group, WorkOrder
from accum_sweeps.jobs.slots import SlotPool
from accum_sweeps.jobs.worker import WorkEnd, disk_full
from accum_sweeps.record.files import is_disk_full
from accum_sweeps.record.state import is_alive, process_start

TICK_S = 0.05
LOOK_S = 0.5
KILL_AFTER_S = 5.0  # beyond the grace that supervisors give their workers
BARREN_JOBS = 3  # jobs in a row that end before they take a run


class Handle(Protocol):
    """What is needed of a submitted job. On this machine its id is the process id of submitit's controller."""

    @property
    def job_id(self) -> str:
        """The scheduler's name for it."""

    @property
    def log(self) -> Path:
        """What it printed."""

    def done(self) -> bool:
        """Whether it has ended, however."""


@dataclass
class Job:
    """A submitted worker, as its journal tells it."""

    name: str
    group: Group
    pool: SlotPool
    handle: Handle
    reader: JournalReader
    supervisor: tuple[int, int] = (0, 0)
    worker: tuple[int, int] = (0, 0)
    holding: dict[str, Any] | None = None
    taken: int = 0
    left: WorkEnd | None = None
    ended: float | None = None

    def apply(self, event: dict[str, Any]) -> None:
        """Take note of a journal line."""
        if event["event"] in ("job", "worker"):
            process = event["pid"], event["pid_start"]
            self.supervisor, self.worker = (process, self.worker) if event["event"] == "job" else (self.supervisor, process)
        elif event["event"] == "claimed":
            self.holding, self.taken = event, self.taken + 1
        elif event["event"] in ("ended", "died"):
            self.holding = None
        elif event["event"] == "left":
            self.left = WorkEnd(event["kind"], event["message"])

    @property
    def is_over(self) -> bool:
        """Whether nobody watches over a worker any more. The supervisor does, even without submitit's process above it."""
        return bool(self.handle.done()) and not is_alive(*self.supervisor)

    def stop(self) -> None:
        """Ask it to save what it has and to go; submitit's process passes TERM on."""
        if self.handle.done():
            _send(self.supervisor, signal.SIGTERM)
        else:
            os.kill(int(self.handle.job_id), signal.SIGTERM)

    def kill(self) -> None:
        """End all its processes at once."""
        if not self.handle.done():
            os.kill(int(self.handle.job_id), signal.SIGKILL)
        _send(self.supervisor, signal.SIGKILL)
        _send(self.worker, signal.SIGKILL)


def _send(process: tuple[int, int], number: int) -> None:
    if is_alive(*process):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process[0], number)


class Local(Dispatcher):
    """Worker jobs that ``submit`` starts on this machine."""

    def __init__(self, *arguments: Any, submit: Callable[[WorkOrder], Handle]) -> None:
        super().__init__(*arguments)
        self.submit = submit
        self.order = dataclasses.replace(self.order, dispatcher=(os.getpid(), process_start(os.getpid())))
        self.jobs: list[Job] = []
        self.closed: set[Group] = set()
        self.started = 0
        self.barren = 0
        self.is_dirty = True
        self.looked = self.signalled = 0.0
        self.stop_since: float | None = None

    def work(self) -> None:
        try:
            while self._step():
                self._show()
                time.sleep(TICK_S)
        finally:
            self.stop.worker = self.stop.worker or "the command ends"
            while self.jobs:  # only after an exception: the loop above ends without jobs
                self._step()
                time.sleep(TICK_S)

    def _step(self) -> bool:
        """One look at everything; False when there is nothing more to wait for."""
        for job in list(self.jobs):
            self._read(job)
            if job.is_over:
                self._reap(job)
        now = time.monotonic()
        if now - self.looked > LOOK_S:
            self.looked = now
            self.board.refresh_running()
            self.scan.some()
            if self.sweep.is_cancelled:
                self.stop.worker = self.stop.worker or "cancelled"
        if self.stop.worker or self.error:
            self._stop_jobs(now)
        else:
            # One worker found everything done: others of its group are still starting, or wait for a slot or for each other.
            self._ask_to_stop([job for job in self.jobs if job.group in self.closed], now)
            if self.is_dirty:
                self._start_jobs()
        return bool(self.jobs)

    def _read(self, job: Job) -> None:
        for event in job.reader.read():
            job.apply(event)
            self.board.apply(job.name, event)
            if self.scan.apply(job.group, event):
                self.is_dirty = True
            if event["event"] == "claimed":
                self.barren = 0
            if event["event"] == "fatal":
                self.error = self.error or event["message"]

    # Starting

    def _start_jobs(self) -> None:
        self.is_dirty = False
        for group, pool in self.pools.items():
            if group in self.closed:
                continue
            wanted = min(pool.count, self.scan.open_runs(group))
            while sum(job.group == group for job in self.jobs) < wanted and self._has_room(pool):
                self._start(group, pool)

    def _has_room(self, pool: SlotPool) -> bool:
        same = [job.pool for job in self.jobs if job.pool.kind == pool.kind]
        slots, ids = sum(other.ranks for other in same), sum(other.width for other in same)
        return slots + pool.ranks <= pool.count * pool.ranks and ids + pool.width <= len(pool.ids)

    def _start(self, group: Group, pool: SlotPool) -> None:
        self.started += 1
        name = f"{self.order.dispatch}-w{self.started}"
        handle = self.submit(dataclasses.replace(self.order, name=name, group=group, pool=pool))
        self.jobs.append(Job(name, group, pool, handle, JournalReader(self.sweep.path / "workers" / f"{name}.jsonl")))

    # Ending

    def _reap(self, job: Job) -> None:
        """A job is over: find out how, and whether another one is to take its place."""
        self._read(job)
        if job.ended is None:
            job.ended = time.monotonic()
        if is_alive(*job.worker):  # its supervisor was killed; the worker notices and saves what it has
            if time.monotonic() - job.ended > self.order.resources.stop_grace_s:
                job.kill()
            return
        self.jobs.remove(job)
        self.is_dirty = True
        if job.left is None:
            self._died(job)
        elif job.left.kind == "done":
            self.closed.add(job.group)
        elif job.left.kind == "fatal":
            self.error = self.error or job.left.message
        if job.taken == 0 and job.group not in self.closed and not self.stop.worker:
            self.barren += 1
            if self.barren >= BARREN_JOBS:
                self.error = self.error or f"workers end before they take a run:\n{tail(job.handle.log)}"

    def _died(self, job: Job) -> None:
        reason = "its job was killed"
        try:
            if job.holding:
                mark_lost(self.root, job.holding["run"], job.holding["attempt"], reason)
            _probe(self.sweep.path)
        except OSError as error:
            if not is_disk_full(error):
                raise
            self.error = disk_full(self.order.root)
        holding = job.holding or {"run": None}
        self.board.apply(job.name, {"event": "died", "reason": reason, "run": holding["run"]})

    def _stop_jobs(self, now: float) -> None:
        if self.stop_since is None:
            self.stop_since = now
        if self.signals > 1 or now - self.stop_since > self.order.resources.stop_grace_s + KILL_AFTER_S:
            for job in self.jobs:
                job.kill()
        else:
            self._ask_to_stop(self.jobs, now)

    def _ask_to_stop(self, jobs: list[Job], now: float) -> None:
        if jobs and now - self.signalled > LOOK_S:  # again and again: a job that is just starting may miss one
            self.signalled = now
            for job in jobs:
                job.stop()


def _probe(folder: Path) -> None:
    """Raise the OSError of a full disk, if it is full."""
    path = folder / f".probe.{os.getpid()}"
    try:
        path.write_bytes(b"\0" * 65536)
    finally:
        path.unlink(missing_ok=True)
