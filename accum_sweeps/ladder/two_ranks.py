"""Two data-parallel ranks within this process: what they sum, they sum over two threads.

A comparison of one step needs no second process, only the same sums: a + b = b + a, so both ranks see the same bits.
"""

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from accum_sweeps.training.loop import TrainingSession
from accum_sweeps.training.ranks import RANKS
from accum_sweeps.training.task import StepOutcome


class RankPair:
    """``first`` and ``second`` as the two ranks of a run. Dropout from torch's global stream, which threads share, is not repeatable."""

    def __init__(self, first: TrainingSession, second: TrainingSession) -> None:
        self.first, self.second = first, second
        self._barrier = threading.Barrier(RANKS)
        self._given: list[list[Tensor]] = [[], []]
        for rank, session in enumerate((first, second)):
            session.join(_Rank(rank, self))

    def make_step(self, number: int, of_first: list[Any], of_second: list[Any]) -> StepOutcome:
        """One optimizer step of both ranks with these micro-batches; what rank 0 reports."""
        training, other = self.first.training, self.second.training
        other.position, other.scaler = training.position, _same_scaler(training.scaler, training.parameters[0].device.type)
        self._barrier.reset()
        with ThreadPoolExecutor(RANKS) as pool:
            threads = torch.get_num_threads()
            made = [
                pool.submit(self._made, session, number, micro_batches, threads)
                for session, micro_batches in ((self.first, of_first), (self.second, of_second))
            ]
        _raise_first(made)
        return made[0].result()

    def _made(self, session: TrainingSession, number: int, micro_batches: list[Any], threads: int) -> StepOutcome:
        torch.set_num_threads(threads)  # a new thread has the machine's number, and other threads round otherwise
        try:
            return session.make_step(number, micro_batches)
        except BaseException:
            self._barrier.abort()  # the other rank would wait for ever
            raise

    def all_reduce(self, rank: int, tensors: Sequence[Tensor]) -> None:
        """Add each tensor up over both ranks, in place."""
        self._given[rank] = [tensor.detach().clone() for tensor in tensors]
        self._barrier.wait()
        for tensor, own, other in zip(tensors, self._given[rank], self._given[1 - rank], strict=True):
            tensor.detach().copy_(own + other)
        self._barrier.wait()


@dataclass(frozen=True)
class _Rank:
    """One end of a pair, as a session knows it."""

    rank: int
    pair: RankPair

    def all_reduce(self, tensors: Sequence[Tensor]) -> None:
        self.pair.all_reduce(self.rank, tensors)


def _same_scaler(scaler: torch.amp.GradScaler | None, device: str) -> torch.amp.GradScaler | None:
    return None if scaler is None else torch.amp.GradScaler(device, init_scale=scaler.get_scale())


def _raise_first(made: Sequence[Future[StepOutcome]]) -> None:
    """Raise what went wrong: not that the other rank was left alone by it."""
    errors = [error for future in made if (error := future.exception())]
    for error in sorted(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
        raise error
