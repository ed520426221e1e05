import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from accum_sweeps.subjects import guard


def start(*argv: str, grace_s: float = 5) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-I", "-S", guard.__file__, str(grace_s), *argv]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def close(process: subprocess.Popen[bytes]) -> int:
    assert process.stdin is not None
    process.stdin.close()
    return process.wait(20)


def ask(process: subprocess.Popen[bytes]) -> int:
    assert process.stdin is not None
    process.stdin.write(guard.REQUEST)
    process.stdin.flush()
    return close(process)


def wait_for(path: Path) -> str:
    deadline = time.monotonic() + 20
    while not (path.exists() and path.read_text().endswith("\n")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return path.read_text()


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", 137), ("kill -TERM $$", 143)])
def test_the_programs_end_is_passed_on(script: str, code: int) -> None:
    process = start("sh", "-c", script)
    assert process.wait(20) == code
    close(process)


def test_a_program_that_is_stopped_may_save_first(tmp_path: Path) -> None:
    script = "trap 'sleep 0.2; echo saved > saved; exit 0' TERM; echo ready > ready; while true; do sleep 0.01; done"
    process = start("sh", "-c", f"cd {tmp_path}; {script}")
    wait_for(tmp_path / "ready")
    ask(process)
    assert (tmp_path / "saved").read_text() == "saved\n"


def test_a_program_that_ignores_the_request_is_killed(tmp_path: Path) -> None:
    process = start("sh", "-c", f"trap '' TERM; echo $$ > {tmp_path}/pid; while true; do sleep 0.01; done", grace_s=0.3)
    pid = int(wait_for(tmp_path / "pid"))
    began = time.monotonic()
    ask(process)
    assert time.monotonic() - began >= 0.3
    assert not psutil.pid_exists(pid)


def test_a_program_whose_worker_is_gone_has_no_time_to_write_anything(tmp_path: Path) -> None:
    script = f"trap 'echo saved > {tmp_path}/saved; exit 0' TERM; echo ready > {tmp_path}/ready; while true; do sleep 0.01; done"
    process = start("sh", "-c", script)
    wait_for(tmp_path / "ready")
    close(process)
    assert not (tmp_path / "saved").exists()


@pytest.mark.parametrize("end", ["close", "ask", "exit"])
def test_nothing_is_left_not_even_a_grandchild_in_a_session_of_its_own(tmp_path: Path, end: str) -> None:
    last = "exit 0" if end == "exit" else "wait"
    process = start(
        "sh", "-c", f"setsid sh -c 'trap \"\" TERM; echo $$ > {tmp_path}/pid; sleep 60; sleep 60' & sleep 0.3; {last}", grace_s=0.3
    )
    pid = int(wait_for(tmp_path / "pid"))
    ask(process) if end == "ask" else close(process)
    assert not psutil.pid_exists(pid)


def test_a_killed_worker_leaves_no_program(tmp_path: Path) -> None:
    program = f"import os, time; open('{tmp_path}/pid', 'w').write(f'{{os.getpid()}}\\n'); time.sleep(60)"
    worker = (
        "import subprocess, sys\n"
        f"subprocess.Popen([sys.executable, '-I', '-S', {guard.__file__!r}, '5', sys.executable, '-c', {program!r}],"
        " stdin=subprocess.PIPE, start_new_session=True).wait()"
    )
    process = subprocess.Popen([sys.executable, "-c", worker])
    program_process = psutil.Process(int(wait_for(tmp_path / "pid")))
    guard_process = program_process.parent()
    assert guard_process is not None
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    psutil.wait_procs([program_process, guard_process], timeout=20)
    assert not program_process.is_running() and not guard_process.is_running()


def test_signals_to_the_whole_job_do_not_end_the_guard_before_its_program(tmp_path: Path) -> None:
    script = f"trap 'echo saved > {tmp_path}/saved; exit 7' TERM; echo ready > {tmp_path}/ready; while true; do sleep 0.01; done"
    process = start("sh", "-c", script)
    wait_for(tmp_path / "ready")
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait(20) == 7
    assert (tmp_path / "saved").exists()
    close(process)
