"""What the ranks say to each other and in which pieces they add tensors up; tests/subjects/test_second_rank.py has two real processes."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest
import torch

from accum_sweeps.training import ranks as ranks_module
from accum_sweeps.training import seeding
from accum_sweeps.training.loop import TrainingSession
from accum_sweeps.training.ranks import END, Channel, RankError, Ranks, kept_buffers
from tests.specs import make_spec
from tests.training.toy import ToyTask


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    first, second = socket.socketpair()
    yield Channel(first), Channel(second)
    first.close()
    second.close()


def test_messages_arrive_whole_and_in_order(ends: tuple[Channel, Channel]) -> None:
    here, there = ends
    here.socket.sendall(b'{"order": "st')
    threading.Timer(0.05, lambda: here.socket.sendall(b'ep"}\n{"order": "end"}\n')).start()
    assert [there.receive(10), there.receive(10)] == [{"order": "step"}, {"order": "end"}]
    assert not there.has_news


def test_a_silent_or_closed_end_gives_no_message(ends: tuple[Channel, Channel]) -> None:
    here, there = ends
    began = time.monotonic()
    assert there.receive(0.1) is None and 0.1 <= time.monotonic() - began < 5
    here.socket.close()
    assert there.has_news and there.receive() is None


def test_orders_end_with_the_run_and_with_rank_0(ends: tuple[Channel, Channel]) -> None:
    leading, following = (Ranks(rank, "cpu", end, lambda: RankError("gone")) for rank, end in enumerate(ends))
    for order in ("step", END, "step"):
        leading.lead(order)
    assert [list(following.orders()), following._channel.receive()] == [[{"order": "step"}], {"order": "step"}]
    ends[0].socket.close()
    assert list(following.orders()) == []


def test_leading_a_dead_rank_says_why(ends: tuple[Channel, Channel]) -> None:
    ends[1].socket.close()
    with pytest.raises(RankError, match="it was killed"):
        Ranks(0, "cpu", ends[0], lambda: RankError("it was killed")).lead("step")


def test_small_tensors_are_summed_together_each_dtype_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks_module, "BUCKET_BYTES", 16)
    tensors = [
        torch.zeros(size, dtype=dtype) for size, dtype in ((2, torch.float32), (1, torch.float64), (2, torch.float32), (9, torch.float32))
    ]
    buckets = [[(tensor.dtype, len(tensor)) for tensor in bucket] for bucket in ranks_module._buckets(tensors)]
    single = torch.float32
    assert buckets == [[(single, 2), (single, 2)], [(single, 9)], [(torch.float64, 1)]]
    assert list(ranks_module._buckets([])) == []


def test_rank_1_is_given_the_buffers_that_a_checkpoint_holds() -> None:
    norm = torch.nn.BatchNorm1d(3)
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), norm)
    model.register_buffer("table", torch.ones(2), persistent=False)
    running, variance, seen = kept_buffers(model)
    running += 1
    assert norm.running_mean is not None
    assert (norm.running_mean.tolist(), tuple(variance.shape), int(seen)) == ([1, 1, 1], (3,), 0)


def test_dropout_masks_differ_between_the_ranks() -> None:
    masks = []
    for rank in (0, 1, 0):
        seeding.seed_dropout(3, 7, "cpu", rank)
        masks.append(torch.rand(8).tolist())
    assert masks[0] == masks[2] != masks[1]


def test_half_a_run_is_never_trained_by_one_process_alone() -> None:
    spec = make_spec(ranks=2)
    with pytest.raises(ValueError, match="nothing to start rank 1 with"):
        list(TrainingSession(spec, ToyTask(spec)).steps())
