"""Faults of two ranks: two threads that add up as two processes would, and closed forms over both ranks' micro-batches."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from accum_sweeps.faults import faulty_step
from accum_sweeps.training.step import train_step
from tests.faults.toy import ROUNDING, MicroBatch, Seen, apart, batches, case, observed, summed_gradients, training

SIZES = ((1, 2), (5, 4))  # of both ranks' micro-batches


class Meeting:
    """``all_reduce`` for two threads."""

    def __init__(self) -> None:
        self._barrier = threading.Barrier(2, timeout=30)
        self._given: list[list[Tensor]] = [[], []]

    def of(self, rank: int) -> object:
        def all_reduce(tensors: Sequence[Tensor]) -> None:
            self._given[rank] = [tensor.clone() for tensor in tensors]
            self._barrier.wait()
            for tensor, first, second in zip(tensors, *self._given, strict=True):
                tensor.copy_(first + second)
            self._barrier.wait()

        return all_reduce


def ranks(name: str | None, of_rank: Sequence[list[MicroBatch]]) -> list[Seen]:
    """One step on both ranks, with fault ``name`` or the correct one."""
    meeting = Meeting()

    def one(rank: int) -> Seen:
        step = train_step if name is None else faulty_step(case(name, 2, ranks=2))
        return observed(training(all_reduce=meeting.of(rank)), step, of_rank[rank])

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(one, range(2)))


def cut(sizes: Sequence[Sequence[int]]) -> list[list[MicroBatch]]:
    flat = batches([size for part in sizes for size in part])
    return [flat[: len(sizes[0])], flat[len(sizes[0]) :]]


def test_each_ranks_own_mean_is_averaged() -> None:
    taken = cut(SIZES)
    faulty, correct = ranks("mean_of_means_over_ranks", taken), ranks(None, taken)
    own = [sum(summed_gradients(part), torch.zeros(())) / sum(sizes) for part, sizes in zip(taken, SIZES, strict=True)]
    for seen in faulty:
        assert apart(seen.gradient, (own[0] + own[1]) / 2) < ROUNDING
        assert apart(seen.gradient, correct[0].gradient) > 1e-2
        assert seen.outcome.terms == 12
    assert faulty[0].after.equal(faulty[1].after)
    assert faulty[0].outcome.loss == faulty[1].outcome.loss != pytest.approx(correct[0].outcome.loss, rel=1e-3)


def test_it_shows_with_one_micro_batch_a_rank_and_not_at_equal_lengths() -> None:
    for sizes, is_wrong in ((((3,), (9,)), True), (((6,), (6,)), False), (((2, 4), (5, 1)), False)):
        faulty, correct = ranks("mean_of_means_over_ranks", cut(sizes))[0], ranks(None, cut(sizes))[0]
        found = apart(faulty.gradient, correct.gradient)
        assert found > 1e-2 if is_wrong else found < 1e-15


def test_a_rank_without_samples_counts_with_zeros() -> None:
    taken = [batches((1, 2)), []]
    faulty = ranks("mean_of_means_over_ranks", taken)
    expected = sum(summed_gradients(taken[0]), torch.zeros(())) / 3 / 2
    assert [apart(seen.gradient, expected) < ROUNDING for seen in faulty] == [True, True]


def test_the_running_buffer_is_summed_again_and_again() -> None:
    sizes = ((1, 2, 3), (5, 4, 2))
    taken = cut(sizes)
    per_micro_batch = [a + b for a, b in zip(*(summed_gradients(part) for part in taken), strict=True)]
    expected = (4 * per_micro_batch[0] + 2 * per_micro_batch[1] + per_micro_batch[2]) / 17
    faulty, correct = ranks("wrong_sync", taken), ranks(None, taken)
    assert [apart(seen.gradient, expected) < ROUNDING for seen in faulty] == [True, True]
    assert apart(faulty[0].gradient, correct[0].gradient) > 1e-2
    assert faulty[0].outcome.loss == pytest.approx(correct[0].outcome.loss, rel=1e-14)


def test_synchronizing_after_the_only_micro_batch_is_right() -> None:
    taken = cut(((3,), (9,)))
    assert apart(ranks("wrong_sync", taken)[1].gradient, ranks(None, taken)[1].gradient) < 1e-15


@pytest.mark.parametrize("name", ["mean_of_means_over_ranks", "wrong_sync"])
def test_a_parameter_that_only_one_rank_reaches_is_summed_with_zeros(name: str) -> None:
    meeting = Meeting()

    def one(rank: int) -> list[list[float] | None]:
        state = training(all_reduce=meeting.of(rank))
        used, unused = state.parameters[0], state.parameters[1]
        state.loss = lambda mb: ((used.sum() + (unused.sum() if rank else 0.0)) * mb, 2)
        seen: list[list[float] | None] = []
        state.on_gradient = lambda: seen.extend(None if p.grad is None else p.grad.flatten().tolist() for p in state.parameters)
        faulty_step(case(name, 1, ranks=2))(state, [4.0])
        return seen

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(one, range(2))
    assert first == second and first[0] == [2.0] * 12 and first[1] == [1.0] * 4 and first[2:] == [None, None]
