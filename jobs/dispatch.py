"""Starts workers and watches them until nothing is left to do. The only file that knows submitit.

A local sweep is one submitit job a slot, each a supervised warm worker that pulls runs. The dispatcher computes nothing
and imports nothing heavy; it tails the workers' journals, and what it says at the end it reads from the run directories.
"""

import contextlib
import dataclasses
import functools
import os
import secrets
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accum_sweeps.jobs.board import Board
from accum_sweeps.jobs.claims import mark_lost
from accum_sweeps.jobs.heartbeat import STOPPING, Stop
from accum_sweeps.jobs.journal import JournalReader, tail
from accum_sweeps.jobs.order import REUSE, Group, WorkOrder, groups
from accum_sweeps.jobs.resources import Resources
from accum_sweeps.jobs.scan import Scan
from accum_sweeps.jobs.slots import SlotPool, slot_pool
from accum_sweeps.jobs.supervise import supervise
from accum_sweeps.jobs.worker import THREAD_VARIABLES, WorkEnd, disk_full, work
from accum_sweeps.plan.errors import ConfigError, one_of
from accum_sweeps.record.files import is_disk_full
from accum_sweeps.record.state import is_alive, process_start
from accum_sweeps.record.store import RootDir
from accum_sweeps.record.sweep import Plan, SweepDir

if TYPE_CHECKING:
    import submitit

TICK_S = 0.05
LOOK_S = 0.5
KILL_AFTER_S = 5.0  # beyond the grace that supervisors give their workers
BARREN_JOBS = 3  # jobs in a row that end before they take a run
NO_TIMEOUT_MIN = 60 * 24 * 365 * 10


@dataclass(frozen=True)
class FailedRun:
    """A run that did not end well: its status (failed or lost), why, and the log of its newest attempt."""

    run_id: str
    name: str
    status: str
    reason: str
    log: Path


@dataclass(frozen=True)
class DispatchResult:
    """How the sweep stands after a command: runs by status, what failed, and why the command ended early, if it did."""

    counts: dict[str, int]
    failed: tuple[FailedRun, ...] = ()
    notes: tuple[str, ...] = ()
    is_interrupted: bool = False
    is_cancelled: bool = False
    error: str = ""
    env_ids: tuple[str, ...] = ()


@dataclass
class Job:
    """A submitted worker, as its journal tells it."""

    name: str
    group: Group
    pool: SlotPool
    handle: "submitit.Job[Any]"
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


class WorkerJob:
    """What submitit runs: a supervised worker."""

    def __init__(self, order: WorkOrder) -> None:
        self.order = order

    def __call__(self) -> WorkEnd:
        """Runs in the job's process. A scheduler's requeue would be built here, as submitit's ``checkpoint``."""
        import submitit

        environment = submitit.JobEnvironment()
        return supervise(dataclasses.replace(self.order, job=environment.job_id, log=str(environment.paths.stdout)))


def dispatch(
    root: RootDir,
    sweep: SweepDir,
    plan: Plan,
    resources: Resources,
    *,
    reuse: str = "strict",
    on_progress: Callable[[Board], None] = lambda board: None,
    engine: str = "accum_sweeps.jobs.engine",
) -> DispatchResult:
    """Have all runs of ``plan`` done that are not done yet, and stay until that is so.

    SIGINT, SIGTERM and SIGHUP stop the workers, which save what they have; a second one kills them. ``on_progress`` is called
    often and should decide for itself when to draw. Raises UserError (no such GPU, too many slots) before anything starts.
    """
    if reuse not in REUSE:
        raise ConfigError("reuse", reuse, one_of(reuse, REUSE))
    pools = {group: slot_pool(resources, group.device, group.threads) for group in groups(plan)}
    order = WorkOrder(
        root=str(root.path.resolve()),
        sweep=sweep.name,
        revision=plan.revision,
        dispatch=f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}",
        name="",
        group=next(iter(pools), Group("cpu", 1, False)),
        pool=next(iter(pools.values()), SlotPool("core", (), 0, 0)),
        resources=resources,
        reuse=reuse,
        engine=engine,
        sys_path=tuple(entry or str(Path.cwd()) for entry in sys.path),
    )
    kind = _Inline if resources.kind == "inline" else _Local
    return kind(root, sweep, plan, order, pools, on_progress).run()


class _Dispatcher:
    """What local and inline dispatch share: the scan before, the result after, and signals."""

    def __init__(
        self,
        root: RootDir,
        sweep: SweepDir,
        plan: Plan,
        order: WorkOrder,
        pools: dict[Group, SlotPool],
        on_progress: Callable[[Board], None],
    ) -> None:
        self.root, self.sweep, self.plan, self.order, self.pools = root, sweep, plan, order, pools
        self.board = Board(root, plan)
        self.scan = Scan(root, plan, self.board, order.reuse)
        self.progress = on_progress
        self.stop = Stop()
        self.signals = 0
        self.error = ""

    def run(self) -> DispatchResult:
        """Scan, work, and tell how it stands."""
        with self._handled_signals():
            self.scan.everything()
            self.work()
            self.scan.everything()
            self._show()
        return self.result()

    def work(self) -> None:
        raise NotImplementedError

    def result(self) -> DispatchResult:
        is_cancelled = self.sweep.is_cancelled
        counts: Counter[str] = Counter()
        failed = []
        for run_id, status in self.board.status.items():
            unfinished = status in ("planned", "lost", "failed")
            counts["cancelled" if is_cancelled and unfinished else status] += 1
            if status in ("failed", "lost"):
                failed.append(self._failed(run_id, status))
        return DispatchResult(
            counts=dict(counts),
            failed=tuple(failed),
            notes=tuple(self.board.notes),
            is_interrupted=self.signals > 0,
            is_cancelled=is_cancelled,
            error=self.error,
            env_ids=tuple(sorted(self.scan.env_ids)),
        )

    def _failed(self, run_id: str, status: str) -> FailedRun:
        return FailedRun(run_id, self.board.name_of(run_id), status, self.board.reasons.get(run_id, ""), self.scan.log_of(run_id))

    def _show(self) -> None:
        with contextlib.suppress(OSError):  # a closed terminal is no reason to lose the sweep
            self.progress(self.board)

    @contextlib.contextmanager
    def _handled_signals(self) -> Iterator[None]:
        def handle(number: int, frame: Any) -> None:
            self.signals += 1
            self.stop.on_signal(number, frame)
            self.on_repeated_signal()

        try:
            before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        except ValueError:  # not the main thread: whoever owns that one handles signals
            before = {}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def on_repeated_signal(self) -> None:
        """The user insists."""


class _Inline(_Dispatcher):
    """All runs in this very process, one after the other."""

    def work(self) -> None:
        for number, (group, pool) in enumerate(self.pools.items(), 1):
            if self.stop.worker or self.error:
                break
            order = dataclasses.replace(self.order, name=f"{self.order.dispatch}-inline{number}", group=group, pool=pool)
            reader = JournalReader(self.sweep.path / "workers" / f"{order.name}.jsonl")
            with _kept_affinity():
                end = work(order, self.stop, watch=functools.partial(self._watch, reader, group, order.name))
            self._watch(reader, group, order.name)
            self.error = end.message if end.kind == "fatal" else ""

    def _watch(self, reader: JournalReader, group: Group, name: str) -> None:
        for event in reader.read():
            self.board.apply(name, event)
            self.scan.apply(group, event)
        self.board.refresh_running()
        self._show()

    def on_repeated_signal(self) -> None:
        if self.signals > 1:
            raise KeyboardInterrupt


@contextlib.contextmanager
def _kept_affinity() -> Iterator[None]:
    before = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    try:
        yield
    finally:
        if before is not None:
            os.sched_setaffinity(0, before)


class _Local(_Dispatcher):
    """Worker jobs of submitit's local executor."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
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
        return len(same) < pool.count and sum(other.width for other in same) + pool.width <= len(pool.ids)

    def _start(self, group: Group, pool: SlotPool) -> None:
        import submitit

        self.started += 1
        name = f"{self.order.dispatch}-w{self.started}"
        # A folder for each job: submitit names files after process ids, and those come again. An executor for each job:
        # one executor waits between submissions, which is meant for clusters.
        executor = submitit.LocalExecutor(self.sweep.path / "submitit" / name)
        executor.update_parameters(timeout_min=NO_TIMEOUT_MIN, stderr_to_stdout=True)
        order = dataclasses.replace(self.order, name=name, group=group, pool=pool)
        with _job_environment():
            handle = executor.submit(WorkerJob(order))
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
                self.error = self.error or f"workers end before they take a run:\n{tail(Path(job.handle.paths.stdout))}"

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
        if now - self.signalled > LOOK_S:  # again and again: a job that is just starting may miss one
            self.signalled = now
            for job in jobs:
                job.stop()


@contextlib.contextmanager
def _job_environment() -> Iterator[None]:
    """What a job is started with: one thread until its worker knows better, and no part in the terminal's Ctrl-C.

    Ctrl-C reaches all processes of a terminal; submitit's controller would then kill the worker after a second. Blocked
    signals stay blocked in what is started, and those that arrive meanwhile are delivered here afterwards.
    """
    before = {name: os.environ.get(name) for name in THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, set(STOPPING) - {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _probe(folder: Path) -> None:
    """Raise the OSError of a full disk, if it is full."""
    path = folder / f".probe.{os.getpid()}"
    try:
        path.write_bytes(b"\0" * 65536)
    finally:
        path.unlink(missing_ok=True)
