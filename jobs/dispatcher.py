"""What every way of dispatching does: scan before, watch the journals, handle signals, and tell how it stands afterwards."""

import contextlib
import dataclasses
import functools
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accum_sweeps.jobs.board import Board
from accum_sweeps.jobs.heartbeat import Stop
from accum_sweeps.jobs.journal import JournalReader
from accum_sweeps.jobs.order import Group, WorkOrder
from accum_sweeps.jobs.scan import Scan
from accum_sweeps.jobs.slots import SlotPool
from accum_sweeps.jobs.worker import work
from accum_sweeps.record.state import shown_status
from accum_sweeps.record.store import RootDir
from accum_sweeps.record.sweep import Plan, SweepDir


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
    """How the sweep stands after a command: runs by status, what failed, and why the command ended early, if it did.

    Of a cluster: the job arrays ``submitted``, each with its number of tasks, jobs that were queued or running before (``active``), and
    the folder of their ``logs``.
    """

    counts: dict[str, int]
    failed: tuple[FailedRun, ...] = ()
    notes: tuple[str, ...] = ()
    is_interrupted: bool = False
    is_cancelled: bool = False
    error: str = ""
    env_ids: tuple[str, ...] = ()
    submitted: tuple[tuple[str, int], ...] = ()
    active: int = 0
    logs: Path | None = None


class Dispatcher:
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
        self.scan = Scan(root, plan, self.board, order)
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
        """Have the open runs done."""
        raise NotImplementedError

    def result(self) -> DispatchResult:
        """How the sweep stands, as far as the last scan knows."""
        is_cancelled = self.sweep.is_cancelled
        counts: Counter[str] = Counter()
        failed = []
        for run_id, status in self.board.status.items():
            shown = shown_status(status, is_cancelled=is_cancelled)
            counts[shown] += 1
            if shown in ("failed", "lost"):
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

        heard = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN]  # nohup
        try:
            before = {number: signal.signal(number, handle) for number in heard}
        except ValueError:  # not the main thread: whoever owns that one handles signals
            before = {}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def on_repeated_signal(self) -> None:
        """The user insists."""


class Inline(Dispatcher):
    """All runs in this very process, one after the other."""

    def work(self) -> None:
        for number, (group, pool) in enumerate(self.pools.items(), 1):
            if self.stop.worker or self.error:
                break
            if not self.scan.open_runs(group):
                continue
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
