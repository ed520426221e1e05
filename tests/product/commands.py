"""The command as a person types it, in a process of its own; and what it left behind."""

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from accum_sweeps.record.sketches import load_sketches
from accum_sweeps.record.store import RootDir, open_root
from accum_sweeps.record.sweep import open_sweep

MARK = "ACCUM_SWEEPS_TEST_MARK"


@dataclass(frozen=True)
class Place:
    """A folder in which commands are typed; every process that they start can be found by its mark."""

    folder: Path
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def root(self) -> RootDir:
        """The root that the commands use."""
        return open_root(self.folder / "sweeps")

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """Start ``python -m accum_sweeps`` with ``arguments``, in a session of its own."""
        (self.folder / "tmp").mkdir(parents=True, exist_ok=True)
        names = ("COV_", "PYTEST", "ACCUM_SWEEPS", "MLFLOW")
        environment = {key: value for key, value in os.environ.items() if not key.startswith(names)} | {MARK: self.mark}
        environment["TMPDIR"] = str(self.folder / "tmp")  # slots are held there: tests side by side do not wait for each other
        command = [sys.executable, "-m", "accum_sweeps", *arguments]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} | options
        return subprocess.Popen(command, cwd=self.folder, env=environment, text=True, start_new_session=True, **streams)

    def type(self, *arguments: str, code: int = 0, limit_s: float = 480.0, answer: str = "") -> str:
        """Type a command, wait for it, expect its exit code; returns all that it printed."""
        process = self.start(*arguments, stdin=subprocess.PIPE)
        try:
            output, _ = process.communicate(answer, timeout=limit_s)
        finally:
            process.kill()
        assert process.returncode == code, output
        return output

    def processes(self) -> dict[int, str]:
        """Every living process that a command typed here has started: id -> command line."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if f"{MARK}={self.mark}".encode() in (folder / "environ").read_bytes():
                    found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        return found

    def wait_until_alone(self, limit_s: float = 20.0) -> None:
        """Fail if a process of a command is still there after ``limit_s`` seconds."""
        until = time.monotonic() + limit_s
        while (left := self.processes()) and time.monotonic() < until:
            time.sleep(0.1)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert left == {}, f"orphans: {left}"


def numbers(root: RootDir, sweep: str) -> dict[str, Any]:
    """All that a sweep measured, without times: by run_id its points and the hashes of its weights."""
    result = {}
    for run in open_sweep(root, sweep).read_plan().runs:
        (env_id,) = root.environments(run.run_id)
        run_dir = root.run_dir(run.run_id, env_id)
        history = run_dir.history()
        assert history.is_finished and history.newest is not None, run.run_id
        hashes = {step: digest for step, (_, digest) in load_sketches(run_dir.sketches_path(history.newest.number)).by_step.items()}
        final = {key: value for key, value in history.newest.final.items() if key not in ("wall_s", "peak_mem_gb")}
        result[run.run_id] = (hashes, [(point.step, point.values) for point in history.points()], final)
    return result


def starts(root: RootDir, sweep: str) -> int:
    """Number of attempts that were ever claimed for the sweep's runs."""
    return sum(len(list(root.run_folder(run.run_id).glob("claim.*"))) for run in open_sweep(root, sweep).read_plan().runs)


def mlflow_rows(root: RootDir, query: str) -> list[tuple[Any, ...]]:
    """Rows of the root's tracking database."""
    with contextlib.closing(sqlite3.connect(root.path / "mlflow.db")) as connection:
        return connection.execute(query).fetchall()


def mlflow_points(root: RootDir) -> Mapping[str, list[tuple[str, int, float, int]]]:
    """By the run's name every point in MLflow that is not a final value: (key, step, value, time), sorted."""
    rows = mlflow_rows(root, "SELECT r.name, m.key, m.step, m.value, m.timestamp FROM metrics m JOIN runs r USING (run_uuid)")
    result: dict[str, list[tuple[str, int, float, int]]] = {}
    for name, key, step, value, stamp in rows:
        if not key.startswith("final/"):
            result.setdefault(name, []).append((key, step, value, stamp))
    return {name: sorted(points) for name, points in result.items()}


def disk_points(root: RootDir, sweep: str) -> Mapping[str, list[tuple[str, int, float, int]]]:
    """The same from the run directories; every point, so only for runs short enough not to be thinned."""
    plan = open_sweep(root, sweep).read_plan()
    result = {}
    for run in plan.runs:
        (env_id,) = root.environments(run.run_id)
        points = root.run_dir(run.run_id, env_id).history().points()
        result[plan.run_name(run)] = sorted((k, p.step, v, p.time_ms) for p in points for k, v in p.values.items())
    return result
