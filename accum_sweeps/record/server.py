"""A tracking server for a machine or a team: MLflow on PostgreSQL, both on this machine, in one folder.

    python -m accum_sweeps.record.server [--folder DIR] [--port 5000] [--workers 2]

PostgreSQL listens on no network at all, only on a socket in a folder that nobody else can enter; MLflow listens on 127.0.0.1. Started
again, it goes on with the same data. Ctrl-C or SIGTERM stop both. Run by root, PostgreSQL runs as the user postgres: it refuses to be
root.
"""

import argparse
import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import quote

from accum_sweeps.plan.errors import UserError
from accum_sweeps.record.mlflow_tracker import environment

HOST = "127.0.0.1"
START_S = 90.0  # MLflow makes some sixty tables at the first start
STOP_S = 20.0
DEBIAN = Path("/usr/lib/postgresql")
# Jobs would run code that is sent to the server. A new connection for each request, as replays have them, takes a third of its time.
SERVER_VARIABLES = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_SQLALCHEMYSTORE_POOLCLASS": "QueuePool"}


@dataclass(frozen=True, kw_only=True)
class Options:
    """``folder``: where database and artifacts are, made if missing. ``workers``: processes that answer requests."""

    folder: Path
    port: int = 5000
    workers: int = 2

    @property
    def address(self) -> str:
        """For ``tracking.uri``."""
        return f"http://{HOST}:{self.port}"


def programs() -> Path:
    """The folder of PostgreSQL's programs, of the newest version that is installed. Raises UserError without one."""
    if found := shutil.which("initdb"):
        return Path(found).resolve().parent
    versions = sorted(DEBIAN.glob("*/bin/initdb"), key=lambda path: int(path.parent.parent.name))
    if not versions:
        raise UserError(
            "PostgreSQL is not installed: no initdb found.\n  Install it, on Debian: apt-get install --no-install-recommends postgresql"
        )
    return versions[-1].parent


def check(options: Options) -> None:
    """Raise UserError for what would keep the server from starting."""
    programs()
    for package in ("mlflow", "psycopg2", "uvloop"):
        if importlib.util.find_spec(package) is None:
            raise UserError(f"the Python package {package} is missing.\n  Install it: pip install 'accum-sweeps[server]'")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port that was left a moment ago is free
        try:
            probe.bind((HOST, options.port))
        except OSError as error:
            raise UserError(f"--port {options.port} cannot be used: {error.strerror}.\n  Give another one.") from None


class Postgres:
    """A database cluster in ``folder``, reached by a socket that only its owner and root can use."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.programs = folder, programs()
        self.sockets = Path(tempfile.mkdtemp(prefix="accum_sweeps_pg_"))  # a socket's path has at most 107 characters
        self.log = folder / "postgres.log"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        """For MLflow's ``--backend-store-uri``."""
        return f"postgresql+psycopg2://mlflow@/mlflow?host={quote(str(self.sockets))}"

    def start(self) -> None:
        """Make the cluster if there is none, and start it. Raises UserError with the end of its log if it does not come up."""
        self._own(self.sockets)
        data = self.folder / "data"
        if not (data / "PG_VERSION").exists():
            self._own(self.folder)
            self._run("initdb", "--pgdata", str(data), "--username=mlflow", "--auth-local=trust", "--auth-host=reject", "--encoding=UTF8")
        command = [str(self.programs / "postgres"), "-D", str(data), "-c", "listen_addresses=", "-k", str(self.sockets)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, cwd=self.folder, **self._as_user())
        _wait(self._answers, self.process, self.log, "PostgreSQL")
        databases = self._run("psql", "-h", str(self.sockets), "-U", "mlflow", "-d", "postgres", "-Atc", "SELECT datname FROM pg_database")
        if "mlflow" not in databases.split():
            self._run("createdb", "-h", str(self.sockets), "-U", "mlflow", "mlflow")

    def check(self) -> None:
        """Raise UserError once it has ended by itself."""
        if self.process is not None:
            _check(self.process, self.log, "PostgreSQL")

    def stop(self) -> None:
        """A fast shutdown: what was committed is on disk."""
        _end(self.process, signal.SIGINT)
        shutil.rmtree(self.sockets, ignore_errors=True)

    def _answers(self) -> bool:
        asked = subprocess.run([str(self.programs / "pg_isready"), "-q", "-h", str(self.sockets)], check=False, capture_output=True)
        return asked.returncode == 0

    def _run(self, program: str, *arguments: str) -> str:
        command = [str(self.programs / program), *arguments]
        done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=self.folder, **self._as_user())
        if done.returncode:
            raise UserError(f"PostgreSQL's {program} failed in {self.folder}: {done.stderr.strip()}")
        return str(done.stdout)

    def _as_user(self) -> dict[str, Any]:
        if os.geteuid() != 0:
            return {}
        user = _postgres_user()
        return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}

    def _own(self, folder: Path) -> None:
        folder.chmod(0o700)
        if os.geteuid() == 0:
            os.chown(folder, _postgres_user().pw_uid, _postgres_user().pw_gid)


def _postgres_user() -> pwd.struct_passwd:
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        raise UserError("PostgreSQL refuses to run as root, and there is no user postgres.\n  Start the server as another user.") from None


@contextlib.contextmanager
def running(options: Options) -> Iterator[tuple[Path, Callable[[], None]]]:
    """The server, up while the context lasts.

    Gives the folder of the database's socket, and a function that raises UserError once a part of the server has ended by itself. Raises
    UserError where it cannot start.
    """
    check(options)
    folder = options.folder.absolute()
    (folder / "postgres").mkdir(parents=True, exist_ok=True)
    folder.chmod(0o711 if os.geteuid() == 0 else 0o700)  # the user postgres passes through, and sees nothing
    database = Postgres(folder / "postgres")
    mlflow: subprocess.Popen[bytes] | None = None
    try:
        database.start()
        log = folder / "mlflow.log"
        log.touch(mode=0o600)
        with log.open("ab") as file:
            mlflow = subprocess.Popen(
                _command(options, database.uri, folder), stdout=file, stderr=file, start_new_session=True, env=_environment(database.uri)
            )
        server = mlflow
        _wait(lambda: _listens(options.port), server, log, "MLflow")

        def check_parts() -> None:
            database.check()
            _check(server, log, "MLflow")

        yield database.sockets, check_parts
    finally:
        _end(mlflow, signal.SIGTERM)
        database.stop()


def _command(options: Options, uri: str, folder: Path) -> Sequence[str]:
    artifacts = folder / "artifacts"
    artifacts.mkdir(mode=0o700, exist_ok=True)
    command = [sys.executable, "-m", "mlflow", "server", "--host", HOST, "--port", str(options.port), "--workers", str(options.workers)]
    command += ["--serve-artifacts", "--artifacts-destination", artifacts.as_uri(), "--backend-store-uri", uri]
    return [*command, "--allowed-hosts", f"{HOST}:{options.port},localhost:{options.port}"]


def _environment(uri: str) -> Mapping[str, str]:
    return os.environ | environment() | SERVER_VARIABLES


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=1):
        return True
    return False


def _wait(is_up: Callable[[], bool], process: "subprocess.Popen[bytes]", log: Path, name: str) -> None:
    until = time.monotonic() + START_S
    while not is_up():
        _check(process, log, name)
        if time.monotonic() > until:
            raise UserError(f"{name} did not start within {START_S:g} s; {_end_of(log)}")
        time.sleep(0.1)


def _check(process: "subprocess.Popen[bytes]", log: Path, name: str) -> None:
    if process.poll() is not None:
        raise UserError(f"{name} has ended; {_end_of(log)}")


def _end_of(log: Path) -> str:
    return "\n".join([f"the end of {log}:", *log.read_text(errors="replace").splitlines()[-10:]])


def _end(process: "subprocess.Popen[bytes] | None", number: int) -> None:
    """End a process and those that it started."""
    if process is None or process.poll() is not None:
        return
    process.send_signal(number)
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; see the module's head."""
    parser = argparse.ArgumentParser(prog="accum_sweeps.record.server", description="MLflow on PostgreSQL, for this machine.")
    parser.add_argument("--folder", type=Path, default=Path("tracking"), help="where database and artifacts are; default: %(default)s")
    parser.add_argument("--port", type=int, default=5000, help="of 127.0.0.1; default: %(default)s")
    parser.add_argument("--workers", type=int, default=2, help="processes that answer requests; default: %(default)s")
    options = Options(**vars(parser.parse_args(arguments)))

    def stop(number: int, frame: FrameType | None) -> None:
        raise SystemExit(0)

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, stop)
    try:
        with running(options) as (sockets, check_parts):
            print(f"MLflow is at {options.address}; its data are in {options.folder.absolute()}. Ctrl-C stops it.")
            print(f"In another terminal: python -m accum_sweeps +grid=adamw tracking=server tracking.uri={options.address}")
            print(f"The database: {programs() / 'psql'} -h {sockets} -U mlflow mlflow", flush=True)
            while True:
                check_parts()
                time.sleep(1)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
