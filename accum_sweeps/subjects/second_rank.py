"""Rank 0's hold on the process of rank 1: started with the first run that needs it, kept for the next one, never left behind.

It ends with the socket to it, that is with this process, however this one dies, and is killed when a step fails: it may wait in
the middle of a sum then. Starting it costs an import of torch.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from accum_sweeps.plan.spec import RunSpec
from accum_sweeps.training.ranks import END, Channel, RankError, Ranks

# Whoever stops a run asks rank 0, which saves it; where all processes of a job get the signal, rank 1 leaves it to that one.
LEFT_TO_RANK_0 = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2)
ANSWER_S = 10.0

_kept: list["_Process"] = []


@contextlib.contextmanager
def second_rank(spec: RunSpec, checkpoint: Path | None) -> Iterator[Ranks]:
    """This process as rank 0 of ``spec``, and rank 1 in another process beside it, both standing where ``checkpoint`` was saved.

    Raises RankError where rank 1 fails or dies.
    """
    process = _usable()
    ranks = Ranks(0, spec.setup.device, process.channel, process.failure)
    with tempfile.TemporaryDirectory(prefix="accum_sweeps-ranks-") as folder:
        meeting = Path(folder) / "meeting"
        try:
            process.begin(spec, checkpoint, meeting)
            with ranks.meeting(meeting):
                yield ranks
                process.finish()
        except GeneratorExit:  # stopped between two steps
            if not process.finishes():
                end()
            raise
        except BaseException:
            end()
            raise


def end() -> None:
    """End the process of rank 1, if there is one."""
    while _kept:
        _kept.pop().kill()


def _usable() -> "_Process":
    if _kept and not _kept[0].is_alive:
        end()
    if not _kept:
        _kept.append(_Process())
    return _kept[0]


class _Process:
    def __init__(self) -> None:
        mine, other = socket.socketpair()
        arguments = f"{other.fileno()}, {os.getpid()}"
        program = f"import sys; sys.path[:] = {sys.path!r}; from accum_sweeps.subjects.rank_process import main; main({arguments})"
        # Blocked here, the signals stay blocked there until it has handlers for them. A session of its own has no terminal.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, LEFT_TO_RANK_0)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-c", program], pass_fds=[other.fileno()], stdin=subprocess.DEVNULL, start_new_session=True
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            other.close()
        self.channel = Channel(mine)

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def begin(self, spec: RunSpec, checkpoint: Path | None, meeting: Path) -> None:
        """Have it prepare the run, printing where this process prints now; returns when it has."""
        try:
            socket.send_fds(self.channel.socket, [b"."], [1, 2])
            saved = str(checkpoint) if checkpoint else None
            self.channel.send(run=spec.to_dict(), folder=str(Path.cwd()), checkpoint=saved, meeting=str(meeting))
        except OSError as error:
            raise self.failure() from error
        if "ready" not in (answer := self.channel.receive() or {}):
            raise self.failure(str(answer.get("failure", "")))

    def finish(self) -> None:
        """The run is over: rank 1 waits for the next one. RankError where something was wrong at the end."""
        try:
            self.channel.send(order=END)
        except OSError as error:
            raise self.failure() from error
        if "ended" not in (answer := self.channel.receive(ANSWER_S) or {}):
            raise self.failure(str(answer.get("failure", "")))

    def finishes(self) -> bool:
        try:
            self.finish()
        except RankError:
            return False
        return True

    def failure(self, said: str = "") -> RankError:
        """Why rank 1 cannot go on: ``said`` by itself or read here, else how it died."""
        said = said or str((self.channel.receive(ANSWER_S) or {}).get("failure", ""))
        if said:
            return RankError(f"rank 1: {said}")
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(ANSWER_S)
        code = self._process.returncode
        if code is None:
            return RankError("rank 1 does not answer")
        how = f"was killed by {signal.Signals(-code).name}" if -code in set(signal.Signals) else f"ended with exit code {code}"
        return RankError(f"rank 1, the second process of the run, {how}")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self.channel.socket.close()
