"""A worker's second thread: signs of life for its claim, and watching for reasons to stop."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

from accum_sweeps.jobs.claims import Claim
from accum_sweeps.record.sweep import SweepDir

LOOK_S = 0.5
STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2)
TERMINAL = (signal.SIGINT, signal.SIGHUP)


class Stop:
    """Why to stop: ``worker`` ends the whole worker, ``run`` only the present run. Callable, as execute wants it."""

    def __init__(self) -> None:
        self.worker: str | None = None
        self.run: str | None = None

    def __call__(self) -> str | None:
        """The reason, or None while there is none."""
        return self.worker or self.run

    def on_signal(self, number: int, _frame: FrameType | None) -> None:
        """Signal handler: stop the worker at the next step."""
        self.worker = self.worker or f"stopped by {signal.Signals(number).name}"


Handler = Callable[[int, FrameType | None], None]


def handle_stopping(handler: Handler, *, ignore_terminal: bool) -> None:
    """Let ``handler`` have the signals that stop a worker.

    A terminal sends its signals to everything that was started from it. Where a command waits for the worker, that command
    decides what they mean (under nohup: nothing), and the worker does not listen.
    """
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN if ignore_terminal and number in TERMINAL else handler)


class Heartbeat(threading.Thread):
    """Touches the claim held at the moment every ``heartbeat_s`` seconds and keeps ``stop`` up to date.

    A process that was asleep beats as soon as it wakes, and so learns at once that its claim was taken over.
    """

    def __init__(self, stop: Stop, sweep: SweepDir, heartbeat_s: float, parent: int | None) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self._stop_reason, self._sweep, self._heartbeat_s, self._parent = stop, sweep, heartbeat_s, parent
        self._claim: Claim | None = None
        self._lock = threading.Lock()
        self._due = 0.0
        self._ended = threading.Event()

    def hold(self, claim: Claim | None) -> None:
        """Keep ``claim`` alive from now on, or none."""
        with self._lock:
            self._stop_reason.run = None
            self._due = time.monotonic() + self._heartbeat_s
            self._claim = claim

    def end(self) -> None:
        """Stop the thread."""
        self._ended.set()
        self.join()

    def run(self) -> None:
        """The thread's loop."""
        while not self._ended.wait(min(LOOK_S, self._heartbeat_s)):
            # A file server that does not answer for a moment is no reason to stop; the claim expires if it lasts.
            with contextlib.suppress(OSError):
                self._look()

    def _look(self) -> None:
        if self._parent is not None and os.getppid() != self._parent:
            self._stop_reason.worker = self._stop_reason.worker or "the process that watches this worker is gone"
        if self._sweep.is_cancelled:
            self._stop_reason.worker = self._stop_reason.worker or "cancelled"
        with self._lock:
            if self._claim is not None and time.monotonic() >= self._due:
                self._due = time.monotonic() + self._heartbeat_s
                self._stop_reason.run = self._claim.beat() or None
