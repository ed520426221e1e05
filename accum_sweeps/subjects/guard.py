"""Runs a program and ends it, with all its descendants, when its worker asks for that or is dead.

    python guard.py GRACE_S PROGRAM [ARGUMENT ...]

Started as a file, in a session of its own, by a worker that holds the other end of standard input. A byte from there is a
request: TERM, and KILL after GRACE_S seconds. Without a byte the end of input means that the worker is dead: KILL at once, as
another worker may take the run over. Ends with the program's exit code, 128 + n after signal n. Standard library only: it starts
in a few milliseconds.
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
POLL_S = 0.01
KILL_S = 5.0
REQUEST = b"."
NOT_STARTED = 127  # what a shell returns for a program that is not there


def main(grace_s: float, argv: list[str]) -> int:
    """Run ``argv`` until it ends or is to end; afterwards nothing of it is left."""
    _adopt_orphans()
    ended, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    # Handlers, not SIG_IGN: the program must not inherit that it ignores a signal.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    try:
        program = subprocess.Popen(argv, stdin=subprocess.DEVNULL)
    except OSError as error:
        print(f"{argv[0]}: {error.strerror}", file=sys.stderr)
        return NOT_STARTED
    while program.poll() is None:
        ready, _, _ = select.select([0, ended], [], [])
        if ended in ready:
            os.read(ended, 1024)
        if 0 in ready:
            _terminate(program, grace_s if os.read(0, 1) else 0)
    _kill_descendants(program)
    return program.returncode if program.returncode >= 0 else 128 - program.returncode


def _terminate(program: subprocess.Popen[bytes], grace_s: float) -> None:
    """TERM to the process group, so that the program can save what it has; KILL what is left after ``grace_s`` seconds."""
    if grace_s:
        os.killpg(0, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while _children(program) and time.monotonic() < deadline:
        time.sleep(POLL_S)
        _reap()
    _kill_descendants(program)


def _adopt_orphans() -> None:
    """Become the parent of descendants whose parent dies (Linux), so that they can be found."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _kill_descendants(program: subprocess.Popen[bytes]) -> None:
    """Kill whatever the program left running, those it had put into sessions of their own included."""
    deadline = time.monotonic() + KILL_S
    while (children := _children(program)) and time.monotonic() < deadline:
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(POLL_S)
        _reap()


def _reap() -> None:
    """Take note of children that ended, adopted ones included."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _children(program: subprocess.Popen[bytes]) -> list[int]:
    try:
        return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    except OSError:  # not Linux: nothing was adopted either
        return [program.pid] if program.poll() is None else []


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2:]))
