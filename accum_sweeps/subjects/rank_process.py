"""The process of rank 1: makes the steps that rank 0 asks for, run after run, and ends with it.

Started by ``subjects.second_rank``. For each run it gets rank 0's output and a JSON line with the specification, the current folder,
the checkpoint to continue from and where to meet. It answers ``ready``, later ``ended``; or ``failure`` with what went wrong, and is
no more after that.
"""

import contextlib
import ctypes
import os
import signal
import socket
import sys
import traceback
from pathlib import Path

import torch

from accum_sweeps.plan.errors import UserError
from accum_sweeps.plan.spec import from_dict
from accum_sweeps.subjects import session
from accum_sweeps.subjects.second_rank import LEFT_TO_RANK_0
from accum_sweeps.training.loop import TrainingSession
from accum_sweeps.training.process import settle
from accum_sweeps.training.ranks import Channel, RankError, Ranks

PR_SET_PDEATHSIG = 1
FAILED = 1


def main(descriptor: int, parent: int) -> None:
    """Serve the socket ``descriptor`` of rank 0, the process ``parent``, until it is closed."""
    _end_with(parent)
    for number in LEFT_TO_RANK_0:
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, LEFT_TO_RANK_0)
    channel = Channel(socket.socket(fileno=descriptor))
    while _takes_output(channel):
        try:
            _run(channel)
        except BaseException as error:
            traceback.print_exc()
            with contextlib.suppress(OSError):
                channel.send(failure=str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}")
            os._exit(FAILED)  # at once: rank 0 may wait for this one in a sum
        _print_to([os.open(os.devnull, os.O_WRONLY)] * 2)  # the log of a run that is over belongs to others


def _end_with(parent: int) -> None:
    """Be killed when the parent dies (Linux), whatever this process is at; elsewhere the closed socket tells, between steps."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(FAILED)


def _takes_output(channel: Channel) -> bool:
    """Print where rank 0 prints for the run that comes now; False where none comes any more."""
    try:
        received, descriptors, _, _ = socket.recv_fds(channel.socket, 1, 2)
    except ConnectionError:
        return False
    if received:
        _print_to(descriptors)
    return bool(received)


def _print_to(descriptors: list[int]) -> None:
    sys.stdout.flush(), sys.stderr.flush()
    for standard, descriptor in zip((1, 2), descriptors, strict=True):
        os.dup2(descriptor, standard)
    for descriptor in set(descriptors):
        os.close(descriptor)


def _run(channel: Channel) -> None:
    message = channel.receive()
    if message is None:
        return
    os.chdir(message["folder"])
    spec = from_dict(message["run"])
    settle(spec.setup)
    if spec.setup.device == "cuda":
        torch.cuda.set_device(1)  # rank 0 is on the first of the slot's two
    made = session(spec, Path(), 0)
    assert isinstance(made, TrainingSession)
    if message["checkpoint"]:
        made.load(Path(message["checkpoint"]))
    channel.send(ready=True)
    ranks = Ranks(1, spec.setup.device, channel, lambda: RankError("rank 0 is gone"))
    with ranks.meeting(Path(message["meeting"])):
        made.follow(ranks)
        channel.send(ended=True)
