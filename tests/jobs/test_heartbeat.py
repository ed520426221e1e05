"""The second thread of a worker: it keeps the claim alive and says when to stop."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from accum_sweeps.jobs.claims import Claim, mark_lost, take
from accum_sweeps.jobs.heartbeat import Heartbeat, Stop
from accum_sweeps.record.state import file_system_now
from accum_sweeps.record.store import RootDir
from accum_sweeps.record.sweep import SweepDir
from tests.jobs.sweeps import make_sweep, seeds

RUN = "ab" + "0" * 18


@pytest.fixture
def sweep(tmp_path: Path) -> SweepDir:
    return make_sweep(tmp_path / "root", seeds(1))[1]


@pytest.fixture
def started(sweep: SweepDir) -> Iterator[Callable[..., tuple[Stop, Heartbeat]]]:
    threads: list[Heartbeat] = []

    def start(parent: int | None = None) -> tuple[Stop, Heartbeat]:
        stop = Stop()
        threads.append(Heartbeat(stop, sweep, 0.05, parent))
        threads[-1].start()
        return stop, threads[-1]

    yield start
    for thread in threads:
        thread.end()


def claimed(root: RootDir, after: int = 0) -> Claim:
    claim = take(root, RUN, after, {"env_id": "e" * 12, "dispatch": "d", "expiry_s": 1.0})
    assert claim is not None
    return claim


def reason(stop: Stop, seconds: float = 10.0) -> str | None:
    until = time.monotonic() + seconds
    while stop() is None and time.monotonic() < until:
        time.sleep(0.01)
    return stop()


def test_a_held_claim_stays_fresh_and_a_released_one_ages(sweep: SweepDir, started: Callable[..., tuple[Stop, Heartbeat]]) -> None:
    claim = claimed(sweep.root)
    os.utime(claim.path, (0, 0))
    stop, heartbeat = started()
    heartbeat.hold(claim)
    until = time.monotonic() + 10
    while claim.path.stat().st_mtime == 0 and time.monotonic() < until:
        time.sleep(0.01)
    assert file_system_now(sweep.root.path) - claim.path.stat().st_mtime < 5
    heartbeat.hold(None)
    os.utime(claim.path, (0, 0))
    time.sleep(0.3)
    assert claim.path.stat().st_mtime == 0 and stop() is None


def test_a_lost_claim_stops_its_run_and_not_the_worker(sweep: SweepDir, started: Callable[..., tuple[Stop, Heartbeat]]) -> None:
    stop, heartbeat = started()
    heartbeat.hold(claimed(sweep.root))
    mark_lost(sweep.root, RUN, 1, "seen dead")
    assert reason(stop) == "it was given up as lost" and stop.worker is None
    heartbeat.hold(claimed(sweep.root, after=1))
    time.sleep(0.2)
    assert stop() is None


def test_a_cancelled_sweep_and_a_dead_parent_stop_the_worker(sweep: SweepDir, started: Callable[..., tuple[Stop, Heartbeat]]) -> None:
    stop, _ = started(parent=os.getppid())
    time.sleep(0.2)
    assert stop() is None
    sweep.set_cancelled(True)
    assert reason(stop) == "cancelled" == stop.worker
    sweep.set_cancelled(False)
    orphan, _ = started(parent=os.getppid() + 1)
    assert reason(orphan) == "the process that watches this worker is gone"


def test_the_first_signal_names_the_reason() -> None:
    stop = Stop()
    stop.on_signal(signal.SIGTERM, None)
    stop.on_signal(signal.SIGINT, None)
    assert stop() == "stopped by SIGTERM"
