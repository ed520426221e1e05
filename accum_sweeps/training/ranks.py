"""Two data-parallel ranks of one run: what they add up, and how rank 0 leads.

Each rank is a process with a copy of the weights and half of a step's micro-batches. Gradients, not yet divided, are summed over the
ranks once per optimizer step, with the number of terms; both ranks then make the same update. a + b = b + a in floating point too, so
the weights stay equal bit by bit. Rank 0 evaluates, records and saves; over a socket it tells rank 1 each step to be made.
"""

import contextlib
import datetime
import itertools
import json
import os
import select
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from accum_sweeps.plan.errors import UserError

RANKS = 2
BUCKET_BYTES = 1 << 25  # small tensors travel together: a sum over ranks costs a fraction of a millisecond, whatever its size
MEETING_S = 60.0
SUM_LIMIT_MIN = 30.0  # one rank may be this much slower in a step than the other
POLL_S = 1e-4
STEP, COMPARE, END = "step", "compare", "end"


class RankError(UserError):
    """The other rank failed or died; the message says how."""


class Channel:
    """One end of the socket between the ranks: a JSON object a line."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self._read = b""

    def send(self, **message: Any) -> None:
        """Send a message. Passes on OSError where the other end is closed."""
        self.socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, limit_s: float | None = None) -> dict[str, Any] | None:
        """The next message; None where there will be none, or was none for ``limit_s`` seconds."""
        until = None if limit_s is None else time.monotonic() + limit_s
        while b"\n" not in self._read:
            if not self._is_readable(None if until is None else max(0.0, until - time.monotonic())):
                return None
            try:
                received = self.socket.recv(1 << 16)
            except ConnectionError:
                received = b""
            if not received:
                return None
            self._read += received
        line, _, self._read = self._read.partition(b"\n")
        return dict(json.loads(line))

    @property
    def has_news(self) -> bool:
        """Whether a message, or the end of them, is there."""
        return b"\n" in self._read or self._is_readable(0.0)

    def _is_readable(self, seconds: float | None) -> bool:
        return bool(select.select([self.socket], [], [], seconds)[0])


class RankEnd(Protocol):
    """What one rank of two needs of the other: to add tensors up with it."""

    @property
    def rank(self) -> int:
        """0 or 1."""
        ...

    def all_reduce(self, tensors: Sequence[Tensor]) -> None:
        """Add each tensor up over the ranks, in place; both must give the same shapes and dtypes in the same order."""
        ...


class Ranks:
    """This process as ``rank`` of a run on ``device``; the other one is at the other end of ``channel``.

    ``failure`` tells why the other rank is gone. Every method raises RankError where it is.
    """

    def __init__(self, rank: int, device: str, channel: Channel, failure: Callable[[], RankError]) -> None:
        self.rank, self._device, self._channel, self._failure = rank, device, channel, failure

    @contextlib.contextmanager
    def meeting(self, file: Path) -> Iterator[None]:
        """Meet the other rank through ``file``, which only the two know, and be connected meanwhile; gloo on CPUs, nccl on GPUs."""
        store = dist.FileStore(str(file), RANKS)  # type: ignore[attr-defined]
        store.set_timeout(datetime.timedelta(seconds=MEETING_S))
        backend, limit = "nccl" if self._device == "cuda" else "gloo", datetime.timedelta(minutes=SUM_LIMIT_MIN)
        with _loopback(), self._failing():
            dist.init_process_group(backend, store=store, rank=self.rank, world_size=RANKS, timeout=limit)
        try:
            yield
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()

    def all_reduce(self, tensors: Sequence[Tensor]) -> None:
        """Add each tensor up over the ranks, in place; both must give the same shapes and dtypes in the same order."""
        for bucket in _buckets(tensors):
            flat = torch.cat([tensor.detach().reshape(-1) for tensor in bucket])
            with self._failing():
                self._wait(dist.all_reduce(flat, async_op=True))
            for tensor, values in zip(bucket, torch.split(flat, [tensor.numel() for tensor in bucket]), strict=True):
                tensor.detach().copy_(values.view(tensor.shape))

    def take_from_first(self, tensors: Sequence[Tensor]) -> None:
        """Give each tensor of rank 1 the values that it has on rank 0."""
        for tensor in tensors:
            values = tensor.detach().contiguous()
            with self._failing():
                self._wait(dist.broadcast(values, src=0, async_op=True))
            tensor.detach().copy_(values)

    def lead(self, order: str, **more: Any) -> None:
        """Rank 0: have rank 1 do ``order``."""
        try:
            self._channel.send(order=order, **more)
        except OSError as error:
            raise self._failure() from error

    def orders(self) -> Iterator[dict[str, Any]]:
        """Rank 1: what rank 0 wants, one after the other, until the run ends or rank 0 does."""
        while (message := self._channel.receive()) is not None and message["order"] != END:
            yield message

    def _wait(self, work: Any) -> None:
        """Until ``work`` is done. gloo notices by itself that the other rank is dead; a GPU would wait for it for ever."""
        while self._device == "cuda" and not work.is_completed():
            if self._channel.has_news:
                dist.distributed_c10d._abort_process_group()
                raise self._failure()
            time.sleep(POLL_S)
        work.wait()

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except RankError:
            raise
        except RuntimeError as error:
            raise self._failure() from error


def kept_buffers(model: torch.nn.Module) -> list[Tensor]:
    """The buffers that a checkpoint holds, such as running statistics: a resumed rank 1 has those of rank 0."""
    weights = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return [value for name, value in model.state_dict().items() if name not in weights and isinstance(value, Tensor)]


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """The tensors in groups of one dtype, as many in each as fit."""
    for _, same in itertools.groupby(sorted(tensors, key=lambda tensor: str(tensor.dtype)), key=lambda tensor: tensor.dtype):
        bucket: list[Tensor] = []
        size = 0
        for tensor in same:
            if bucket and size + tensor.nbytes > BUCKET_BYTES:
                yield bucket
                bucket, size = [], 0
            bucket.append(tensor)
            size += tensor.nbytes
        yield bucket


@contextlib.contextmanager
def _loopback() -> Iterator[None]:
    """Let connections that are made meanwhile use no interface but this machine's own; undo what torch does to uncaught exceptions."""
    name = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo")
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    before, hook = {key: os.environ.get(key) for key in names}, sys.excepthook
    os.environ.update(dict.fromkeys(names, name))
    try:
        yield
    finally:
        sys.excepthook = hook
        for key, value in before.items():
            if value is None:
                del os.environ[key]
            else:
                os.environ[key] = value
