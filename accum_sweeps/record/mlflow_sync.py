"""The replay of run directories into MLflow: by hand, or as a process of its own that follows a sweep.

    python -m accum_sweeps.record.mlflow_sync --root ROOT --sweep NAME --uri URI --experiment NAME [--follow]

A follower replays until its standard input ends, its parent dies, or it gets SIGTERM; then it replays what is left, says
what it did as JSON, and exits with 0, or with 3 if MLflow lags behind. Nothing here imports MLflow unless it has to.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Any

from accum_sweeps.plan.errors import UserError
from accum_sweeps.plan.tracking import check_uri
from accum_sweeps.record.files import write_text
from accum_sweeps.record.mlflow_children import Child, read_children, seen, shown
from accum_sweeps.record.mlflow_database import Prepared, prepare
from accum_sweeps.record.mlflow_points import run_samples
from accum_sweeps.record.mlflow_replay import Replay
from accum_sweeps.record.mlflow_run import SyncReport
from accum_sweeps.record.state import read_claim
from accum_sweeps.record.store import open_root
from accum_sweeps.record.sweep import open_sweep

__all__ = ["Follower", "Lag", "Prepared", "SyncReport", "lag", "prepare", "sync"]

LAGS = 3  # exit code
BUSY_LIMIT_S = 60.0
SETTLE_S = 20.0  # for which workers that were told to stop may take to do so
POLL_S = 1.0
LONGEST_PAUSE_S = 30.0
COUNTED_RUNS = 200


def sync(
    root: Path, sweep: str, uri: str, experiment: str, *, files: Iterable[Path] = (), verdict: str = "", is_over: bool = True
) -> SyncReport:
    """Bring everything that MLflow lacks of a sweep into it; a lost or empty database is rebuilt completely.

    ``files`` are kept with the sweep's own run as artifacts; ``verdict`` (Markdown) stands in its note from now on.
    ``is_over=False``: runs not yet started are still waited for, so that the sweep counts as running. Raises
    UserError where MLflow cannot be used; an unreachable server is a warning in the report. Waits up to a minute for
    another replay of the same sweep, and leaves if that is not enough.
    """
    replay = _replay(root, sweep, uri, experiment)
    deadline = time.monotonic() + BUSY_LIMIT_S
    return _final(replay, files, verdict, lambda: time.monotonic() > deadline, is_over=is_over)


@dataclass(frozen=True, kw_only=True)
class Lag:
    """Runs and samples that MLflow does not have yet; ``is_estimate`` where only some runs were counted exactly."""

    runs: int = 0
    samples: int = 0
    is_estimate: bool = False


def lag(root: Path, sweep: str, uri: str, experiment: str) -> Lag:
    """How far MLflow is behind the run directories, from the cursor on disk; asks no server."""
    replay = _replay(root, sweep, uri, experiment)
    behind: list[int] = []
    skipped = 0
    for run_id, run in replay.runs().items():
        now_seen = seen(replay.root.run_folder(run_id))
        if not any(now_seen) or (replay.cursor.entries.get(run_id, {}).get("mark") or [])[:2] == now_seen:
            continue
        if len(behind) >= COUNTED_RUNS:
            skipped += 1
            continue
        newest = read_claim(replay.root.run_folder(run_id), now_seen[0])
        children = shown(read_children(replay.root, run_id), str(newest.get("env_id", "")))
        waiting = [_waiting(replay, child, run.steps) for child in children]
        if any(count is not None for count in waiting):
            behind.append(sum(count or 0 for count in waiting))
    samples = sum(behind) * (len(behind) + skipped) // max(len(behind), 1)
    return Lag(runs=len(behind) + skipped, samples=samples, is_estimate=skipped > 0)


class Follower:
    """A replay process that follows a sweep, at low priority."""

    def __init__(self, root: Path, sweep: str, uri: str, experiment: str, *, log: IO[Any] | None = None) -> None:
        command = [sys.executable, "-m", "accum_sweeps.record.mlflow_sync", "--root", str(root), "--sweep", sweep]
        # The URI may hold a password, and a command line can be read by everybody on the machine.
        variables = {**os.environ, "MLFLOW_TRACKING_URI": check_uri(uri, "tracking.uri")}
        self.process = subprocess.Popen(
            [*command, "--experiment", experiment, "--follow"],
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log or subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # Ctrl-C and a lost terminal are for the parent, whose end ends this process too
        )

    def stop(self, *, files: Iterable[Path] = (), verdict: str = "", limit_s: float = 300.0) -> SyncReport:
        """Have the rest replayed, keep ``files`` and ``verdict`` (see sync), and wait for the end; the process's report."""
        last_wish = json.dumps({"files": [str(path) for path in files], "verdict": verdict})
        try:
            output, _ = self.process.communicate(last_wish + "\n", timeout=limit_s)
            return SyncReport(**json.loads(output.splitlines()[-1]))
        except (OSError, ValueError, IndexError, TypeError):
            return SyncReport(warning=f"the replay into MLflow ended with exit code {self.process.poll()}")
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            return SyncReport(warning=f"the replay into MLflow took longer than {limit_s:.0f} s")


def _replay(root: Path, sweep: str, uri: str, experiment: str) -> Replay:
    opened = open_root(root.absolute())
    replay = Replay(opened, open_sweep(opened, sweep), check_uri(uri, "tracking.uri"), experiment)
    replay.runs()  # says so if there is no such sweep, before anything is written
    return replay


def _waiting(replay: Replay, child: Child, steps: int) -> int | None:
    """Samples that MLflow lacks of a run in one environment, 0 if only its state; None if it lacks nothing that can be sent."""
    entry = replay.cursor.entries.get(child.key, {})
    waiting = 0 if child.damage else len(run_samples(child.history, steps).samples) - int(entry.get("sent", 0))
    outcome = child.history.outcome
    return max(waiting, 0) if waiting > 0 or (outcome and outcome != entry.get("outcome")) else None


def _final(replay: Replay, files: Iterable[Path], verdict: str, give_up: Callable[[], bool], *, is_over: bool = True) -> SyncReport:
    if verdict:
        (replay.sweep.path / "mlflow").mkdir(exist_ok=True)
        write_text(replay.sweep.path / "mlflow" / "verdict.md", verdict)
    return replay.run(give_up, is_over=is_over, files=[path.absolute() for path in files], verify=True)


class _Stop:
    """Says when a follower is to end: its standard input ends, its parent dies, or SIGTERM; the rest is the parent's business."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.last_wish: dict[str, Any] = {}
        self._parent = os.getppid()
        for name in (signal.SIGINT, signal.SIGHUP):
            signal.signal(name, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self._terminate)
        threading.Thread(target=self._read, daemon=True).start()

    def wait(self, seconds: float) -> bool:
        """Sleep, at most until the end; whether it has come."""
        return self.event.wait(seconds) or os.getppid() != self._parent

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # who insists is obeyed
        self.event.set()

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            # Not through sys.stdin: its lock, held by a thread that waits, can stop the interpreter from ending.
            text = b"".join(iter(lambda: os.read(0, 1 << 16), b"")).strip()
            self.last_wish = json.loads(text.splitlines()[-1]) if text else {}
        self.event.set()


def follow(replay: Replay) -> SyncReport:
    """Replay whatever is due until told to stop, then the rest; an unreachable server is tried again ever more rarely."""
    stop, total, pause = _Stop(), SyncReport(), POLL_S
    while not stop.wait(pause):
        report, took = _timed(replay, stop)
        _add(total, report)
        # At most a tenth of one core, however large the sweep is.
        pause = min(2 * pause, LONGEST_PAUSE_S) if report.warning else max(POLL_S, 9 * took)
    deadline = time.monotonic() + SETTLE_S
    files, verdict = [Path(name) for name in stop.last_wish.get("files", [])], str(stop.last_wish.get("verdict", ""))
    while True:
        report = _final(replay, files, verdict, lambda: time.monotonic() > deadline + BUSY_LIMIT_S)
        _add(total, report)
        if not report.running or report.warning or time.monotonic() > deadline:
            return total
        time.sleep(0.5)


def _timed(replay: Replay, stop: _Stop) -> tuple[SyncReport, float]:
    began = time.monotonic()
    try:
        report = replay.run(stop.event.is_set, is_over=False)
    except (UserError, OSError) as error:
        report = SyncReport(warning=str(error))
    return report, time.monotonic() - began


def _add(total: SyncReport, report: SyncReport) -> None:
    """Sum up what was done; what is the case is as of the last pass."""
    total.created += report.created
    total.samples += report.samples
    total.altered = list(dict.fromkeys([*total.altered, *report.altered]))
    for name in ("runs", "removed", "damaged", "warning", "is_busy", "running"):
        setattr(total, name, getattr(report, name))


def main(arguments: list[str] | None = None) -> int:
    """The program; see the module's head."""
    parser = argparse.ArgumentParser(prog="accum_sweeps.record.mlflow_sync", description="Bring a sweep's runs into MLflow.")
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--sweep", required=True)
    parser.add_argument("--uri", default=os.environ.get("MLFLOW_TRACKING_URI"), help="default: $MLFLOW_TRACKING_URI")
    parser.add_argument("--experiment", required=True)
    parser.add_argument("--follow", action="store_true", help="until standard input ends")
    options = parser.parse_args(arguments)
    if options.follow:
        os.nice(10)
    try:
        with contextlib.redirect_stdout(sys.stderr):  # whoever started this reads nothing but the report
            replay = _replay(options.root, options.sweep, options.uri or "", options.experiment)
            report = follow(replay) if options.follow else sync(options.root, options.sweep, options.uri, options.experiment)
    except (UserError, OSError) as error:
        report = SyncReport(warning=str(error))
    print(json.dumps(dataclasses.asdict(report)), flush=True)
    return 0 if report.is_complete else LAGS


if __name__ == "__main__":
    sys.exit(main())
