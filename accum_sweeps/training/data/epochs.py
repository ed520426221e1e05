"""Epochs: a fixed set of rows, in a new order each epoch, cut into windows of one optimizer step each.

Every answer is a pure function of the step (counted from 1) and the data seed.
"""

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from accum_sweeps.training import seeding

RowNumbers = NDArray[np.intp]


@dataclass(frozen=True, kw_only=True)
class Epochs:
    """``rows`` rows in windows of ``global_batch``.

    Where ``global_batch`` does not divide ``rows``, ``last_window=short`` makes a window of what is left of an epoch, and
    ``drop`` leaves it out: other rows in each epoch, as the order changes. ``is_shuffled=False``: always the order of the data.
    """

    rows: int
    global_batch: int
    last_window: str
    seed: int
    is_shuffled: bool = True

    @property
    def windows(self) -> int:
        """Optimizer steps of an epoch."""
        whole, rest = divmod(self.rows, self.global_batch)
        return whole + (rest > 0 and self.last_window == "short")

    def size(self, step: int) -> int:
        """How many rows optimizer step ``step`` has: ``global_batch``, or fewer in a short last window."""
        return len(self.chosen(step))

    def chosen(self, step: int) -> RowNumbers:
        """The row numbers, 0 to ``rows`` - 1, of optimizer step ``step``; within an epoch no row comes twice."""
        epoch, window = divmod(step - 1, self.windows)
        start = window * self.global_batch
        return self._order(epoch)[start : start + self.global_batch]

    def _order(self, epoch: int) -> RowNumbers:
        return _shuffled(self.seed, epoch, self.rows) if self.is_shuffled else np.arange(self.rows)


@functools.lru_cache(maxsize=4)
def _shuffled(seed: int, epoch: int, rows: int) -> RowNumbers:
    return seeding.generator("data", seed, "epoch", epoch).permutation(rows)
