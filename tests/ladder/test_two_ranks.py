"""Two ranks in two threads of this process: the bits that two processes give, and an error of one of them ends both."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from accum_sweeps.ladder.oracle import Oracle
from accum_sweeps.ladder.two_ranks import RankPair
from accum_sweeps.subjects import second_rank
from accum_sweeps.training import controls
from accum_sweeps.training.loop import TrainingSession
from accum_sweeps.training.step import train_step
from accum_sweeps.training.task import Training
from tests.faults.subjects import lm_spec, session
from tests.specs import make_spec
from tests.training.toy import ToyTask


@pytest.fixture(scope="module", autouse=True)
def nothing_left() -> Iterator[None]:
    """The process of rank 1 is shared by the tests of this file."""
    yield
    second_rank.end()


def weights_of(training: Training) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in training.model.named_parameters()}


def parts_of(spec: Any, of: TrainingSession) -> list[Any]:
    return [part for rank in range(2) for part in controls.partition(spec, 1, of.task.rows(1), rank)]


@pytest.mark.parametrize(
    "change", [{}, {"dtype": "amp_fp16"}, {"dtype": "bf16", "accumulator": "fp32"}, {"model.norm": "batchnorm"}], ids=str
)
def test_three_steps_are_bit_by_bit_those_of_two_processes(change: dict[str, Any]) -> None:
    spec = lm_spec("none", ranks=2, accum=2, **{"dtype": "fp32", "steps": 3} | change)
    run, losses, weights = session(spec), [], []
    for record in run.steps():
        losses.append(record.values["train_loss"])
        weights.append(weights_of(run.training))
    seen = [seen for _, seen in Oracle(spec).sequence(3)]
    assert [each.loss for each in seen] == losses
    for each, expected in zip(seen, weights, strict=True):
        assert each.after.keys() == expected.keys() and all(torch.equal(each.after[name], expected[name]) for name in expected)


def test_the_ranks_see_other_rows_and_end_with_the_same_weights() -> None:
    spec = lm_spec("none", ranks=2, accum=2)
    pair = RankPair(session(spec), session(spec))
    task, oracle = pair.first.task, Oracle(spec)
    parts = oracle.parts()
    assert sorted(row for part in parts for row in part.tolist()) == list(range(8)) and len(parts) == 4
    micro_batches = task.split(task.batch(1), parts)
    before = weights_of(pair.first.training)
    pair.make_step(1, micro_batches[:2], micro_batches[2:])
    first, second = weights_of(pair.first.training), weights_of(pair.second.training)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not all(torch.equal(first[name], before[name]) for name in first)


def test_both_ranks_compute_with_as_many_threads_as_the_run() -> None:
    spec, seen = make_spec(ranks=2, accum=2), []

    def step(training: Training, micro_batches: list[Any]) -> Any:
        seen.append((threading.get_ident(), torch.get_num_threads()))
        return train_step(training, micro_batches)

    pair = RankPair(*(TrainingSession(spec, ToyTask(spec), step) for _ in range(2)))
    micro_batches = pair.first.task.split(pair.first.task.batch(1), parts_of(spec, pair.first))
    pair.make_step(1, micro_batches[:2], micro_batches[2:])
    assert len({thread for thread, _ in seen}) == 2 and {number for _, number in seen} == {torch.get_num_threads()}


class OnlyThereError(Exception):
    """What goes wrong on one rank."""


def failing(rank: int, moment: str) -> RankPair:
    """Two toys of which ``rank`` fails, before the gradients are summed or after."""
    spec = make_spec(ranks=2, accum=2)

    def step(training: Training, micro_batches: list[Any]) -> Any:
        outcome = train_step(training, micro_batches) if moment == "after" else None
        if training is pair_sessions[rank].training:
            raise OnlyThereError(f"rank {rank}")
        return outcome or train_step(training, micro_batches)

    pair_sessions = [TrainingSession(spec, ToyTask(spec), step) for _ in range(2)]
    return RankPair(*pair_sessions)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("rank", [0, 1])
def test_the_error_of_one_rank_is_raised_and_the_other_does_not_wait(rank: int, moment: str) -> None:
    pair = failing(rank, moment)
    task = pair.first.task
    micro_batches = task.split(task.batch(1), parts_of(make_spec(ranks=2, accum=2), pair.first))
    for _ in range(2):  # nor is the pair spoiled by it
        with pytest.raises(OnlyThereError, match=f"rank {rank}"):
            pair.make_step(1, micro_batches[:2], micro_batches[2:])
    assert threading.active_count() == 1 + sum(thread.daemon for thread in threading.enumerate())
