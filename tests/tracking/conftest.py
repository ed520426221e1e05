"""A real MLflow server on a real PostgreSQL, as ``make tracking-server`` starts it."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from accum_sweeps.plan.errors import UserError
from accum_sweeps.record.server import programs


def free_port() -> int:
    """A port of loopback that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class TrackingServer:
    """The program ``accum_sweeps.record.server`` in a folder; it keeps its port when it is started again."""

    def __init__(self, folder: Path, *, workers: int = 2) -> None:
        self.folder, self.port, self.workers = folder, free_port(), workers
        self.uri = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> "TrackingServer":
        """Start it and wait until it answers."""
        command = [sys.executable, "-m", "accum_sweeps.record.server", "--folder", str(self.folder), "--port", str(self.port)]
        self.process = subprocess.Popen(
            [*command, "--workers", str(self.workers)], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self.process.stdout is not None
        self.told = [self.process.stdout.readline() for _ in range(3)]
        assert self.uri in self.told[0], self.told
        with urllib.request.urlopen(f"{self.uri}/health", timeout=10) as answer:
            assert answer.status == 200
        return self

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End it by a signal; its exit code."""
        if self.process is None:
            return 0
        self.process.send_signal(number)
        code = self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process = None
        return code

    @property
    def descendants(self) -> dict[int, str]:
        """What the program has started, by process id: command lines."""
        assert self.process is not None
        parents: dict[int, int] = {}
        lines: dict[int, str] = {}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                lines[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
        found: dict[int, str] = {}
        level = [self.process.pid]
        while level:
            level = [pid for pid, parent in parents.items() if parent in level]
            found |= {pid: lines[pid] for pid in level}
        return found

    @property
    def sockets(self) -> str:
        """The folder of PostgreSQL's socket."""
        [line] = [words for words in self.descendants.values() if "/postgres -D " in words]
        return line.split(" -k ")[1].split()[0]

    def crash_database(self) -> None:
        """One of PostgreSQL's processes is killed: it ends all connections, and recovers from its log."""
        until = time.monotonic() + 30
        while not (writers := [pid for pid, words in self.descendants.items() if words.startswith("postgres: background writer")]):
            assert time.monotonic() < until, "PostgreSQL did not recover"
            time.sleep(0.05)
        os.kill(writers[0], signal.SIGKILL)

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Rows of MLflow's database."""
        import psycopg2

        connection = psycopg2.connect(host=self.sockets, user="mlflow", dbname="mlflow")
        try:
            with connection.cursor() as cursor:
                cursor.execute(sql)
                return list(cursor.fetchall())
        finally:
            connection.close()


@pytest.fixture(scope="session")
def server() -> Iterator[TrackingServer]:
    """One for all tests of a worker: a first start takes some seconds."""
    try:
        programs()
    except UserError as error:
        pytest.skip(str(error))
    # Not below pytest's folders, which let nobody through: PostgreSQL is not run by root.
    folder = Path(tempfile.mkdtemp(prefix="accum_sweeps_tracking_"))
    folder.chmod(0o711)
    started = TrackingServer(folder / "server")
    try:
        yield started.start()
    finally:
        started.stop()
        shutil.rmtree(folder, ignore_errors=True)
