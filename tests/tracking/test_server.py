"""The program that starts MLflow on PostgreSQL: what it says, whom it lets in, what it leaves."""

import contextlib
import http.client
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tracking.conftest import TrackingServer, free_port


def answer(server: TrackingServer, host: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request("GET", "/ajax-api/2.0/mlflow/experiments/get?experiment_id=0", headers={"Host": host})
    with contextlib.closing(connection):
        return connection.getresponse().status


def test_it_says_where_it_is_and_what_to_type(server: TrackingServer) -> None:
    first, second, third = server.told
    assert first.startswith(f"MLflow is at {server.uri}; ") and str(server.folder) in first
    assert f"tracking=server tracking.uri={server.uri}" in second
    command = third.removeprefix("The database: ").split()
    assert subprocess.run([*command, "-Atc", "SELECT 6 * 7"], capture_output=True, text=True, check=True).stdout == "42\n"


def test_other_names_than_its_own_are_refused(server: TrackingServer) -> None:
    assert answer(server, f"127.0.0.1:{server.port}") == answer(server, f"localhost:{server.port}") == 200
    assert answer(server, "somewhere.example") == 403


def test_it_listens_on_loopback_alone_and_the_database_on_no_network(server: TrackingServer) -> None:
    ours = server.descendants
    listening = [line.split() for path in ("tcp", "tcp6") for line in Path(f"/proc/net/{path}").read_text().splitlines()[1:]]
    inodes = {words[9]: words[1] for words in listening if words[3] == "0A"}
    found = set()
    for pid in ours:
        with contextlib.suppress(OSError):
            for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                target = str(descriptor.readlink())
                if target.startswith("socket:[") and target[8:-1] in inodes:
                    found.add(inodes[target[8:-1]])
    assert found == {f"0100007F:{server.port:04X}"}
    assert stat.S_IMODE(Path(server.sockets).stat().st_mode) == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_nobody_else_reads_anything_of_it(server: TrackingServer) -> None:
    places = [server.folder / "postgres/data/base", server.folder / "artifacts", server.folder / "mlflow.log", Path(server.sockets)]
    for place in places:
        assert place.exists()
        asked = subprocess.run(
            ["cat" if place.is_file() else "ls", str(place)],
            user="nobody",
            group="nogroup",
            extra_groups=[],
            capture_output=True,
            check=False,
        )
        assert asked.returncode != 0 and b"Permission denied" in asked.stderr


def test_ctrl_c_stops_both_and_a_second_start_goes_on_with_the_same_data(server: TrackingServer, tmp_path: Path) -> None:
    before = server.descendants
    [(made,)] = server.query("SELECT creation_time FROM experiments WHERE experiment_id = 0")
    assert server.stop(signal.SIGINT) == 0
    assert [
        words for pid, words in before.items() if Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes()
    ] == []
    server.start()
    assert server.query("SELECT creation_time FROM experiments WHERE experiment_id = 0") == [(made,)]


def started(*arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "accum_sweeps.record.server", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=os.environ | variables, check=False)


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = started("--folder", str(tmp_path / "server"), "--port", str(port))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"--port {port} cannot be used: Address already in use.\n  Give another one.\n"
    assert not (tmp_path / "server").exists()


def test_a_database_that_does_not_start_is_told_with_the_end_of_its_log(server: TrackingServer) -> None:
    folder = server.folder.parent / "other"
    data = folder / "postgres/data"
    data.mkdir(parents=True)
    (data / "PG_VERSION").write_text("9\n")  # of another version than the installed one
    done = started("--folder", str(folder), "--port", str(free_port()))
    assert done.returncode == 2 and "PostgreSQL has ended; the end of" in done.stderr and "Traceback" not in done.stderr
