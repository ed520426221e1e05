"""Controls change rounding only: the same rows, another partition or order; weights and gradients moved by one ULP."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from accum_sweeps.plan.spec import RunSpec
from accum_sweeps.training.controls import move_one_ulp, partition
from accum_sweeps.training.loop import TrainingSession
from tests.specs import make_spec
from tests.training.toy import ToyTask

CUTS = ["regroup", "order", "permute"]


def parts_of(step: int = 1, **changes: object) -> list[list[int]]:
    return [part.tolist() for part in partition(make_spec(**changes), step)]


def sets(parts: Sequence[Sequence[int]]) -> set[frozenset[int]]:
    return {frozenset(part) for part in parts}


def test_without_a_control_the_batch_is_cut_in_order() -> None:
    assert parts_of(accum=4, global_batch=8) == [[0, 1], [2, 3], [4, 5], [6, 7]]


@settings(max_examples=60, deadline=None)
@given(exponents=st.tuples(st.integers(0, 4), st.integers(0, 4)), control=st.sampled_from(["none", *CUTS]), step=st.integers(1, 50))
def test_every_control_uses_every_row_once_in_parts_of_equal_length(exponents: tuple[int, int], control: str, step: int) -> None:
    accum, micro_batch = 2 ** exponents[0], 2 ** exponents[1]
    parts = parts_of(step, accum=accum, global_batch=accum * micro_batch, control=control)
    assert [len(part) for part in parts] == [micro_batch] * accum
    assert sorted(row for part in parts for row in part) == list(range(accum * micro_batch))


@pytest.mark.parametrize("step", range(1, 30))
def test_regroup_is_another_partition(step: int) -> None:
    plain, regrouped = parts_of(accum=2, global_batch=4), parts_of(step, accum=2, global_batch=4, control="regroup")
    assert sets(regrouped) != sets(plain)


@pytest.mark.parametrize("step", range(1, 30))
def test_order_takes_the_same_micro_batches_in_another_order(step: int) -> None:
    plain, ordered = parts_of(accum=2, global_batch=4), parts_of(step, accum=2, global_batch=4, control="order")
    assert ordered == plain[::-1]


@pytest.mark.parametrize("step", range(1, 30))
def test_order_does_more_than_swap_the_first_two_whose_sum_would_be_the_same(step: int) -> None:
    ordered = [part[0] for part in parts_of(step, accum=4, global_batch=4, control="order")]
    assert sorted(ordered) == [0, 1, 2, 3]
    assert ordered[2:] != [2, 3]


@pytest.mark.parametrize("step", range(1, 30))
def test_order_over_two_ranks_does_more_than_swap_ranks_or_the_first_two_of_a_rank(step: int) -> None:
    spec = make_spec(accum=2, ranks=2, global_batch=4, control="order")
    of_rank = [[int(part[0]) for part in partition(spec, step, rank=rank)] for rank in (0, 1)]
    assert sorted(of_rank[0] + of_rank[1]) == [0, 1, 2, 3]
    assert sets(of_rank) != {frozenset({0, 1}), frozenset({2, 3})}


@pytest.mark.parametrize("control", ["none", *CUTS])
def test_two_ranks_take_halves_of_what_one_rank_takes(control: str) -> None:
    spec, one = (make_spec(accum=accum, ranks=ranks, global_batch=12, control=control) for accum, ranks in ((3, 2), (6, 1)))
    halves = [partition(spec, 4, rank=rank) for rank in (0, 1)]
    assert [len(half) for half in halves] == [3, 3]
    assert [part.tolist() for half in halves for part in half] == [part.tolist() for part in partition(one, 4)]


def test_a_short_last_window_may_leave_the_second_rank_without_rows() -> None:
    spec = make_spec(accum=2, ranks=2, global_batch=8)
    assert [[part.tolist() for part in partition(spec, 1, 5, rank)] for rank in (0, 1)] == [[[0, 1], [2, 3]], [[4]]]
    assert [[part.tolist() for part in partition(spec, 1, 3, rank)] for rank in (0, 1)] == [[[0, 1], [2]], []]


@pytest.mark.parametrize("step", range(1, 30))
def test_permute_keeps_the_members_and_changes_every_order(step: int) -> None:
    plain, permuted = parts_of(accum=2, global_batch=4), parts_of(step, accum=2, global_batch=4, control="permute")
    assert permuted == [part[::-1] for part in plain]


@pytest.mark.parametrize("accum", [1, 8])
def test_regroup_without_another_partition_changes_the_order(accum: int) -> None:
    plain = parts_of(accum=accum, global_batch=8)
    assert all(parts_of(step, accum=accum, global_batch=8, control="regroup") != plain for step in range(1, 20))


@pytest.mark.parametrize("control", CUTS)
def test_cuts_are_keyed_by_seed_and_step_and_not_by_replicate(control: str) -> None:
    def cut(step: int, **changes: object) -> list[list[int]]:
        return parts_of(step, accum=4, control=control, **changes)

    assert cut(1) == cut(1, replicate=1)
    assert len({repr(cut(step, seed=seed)) for step in (1, 2) for seed in (0, 1)}) == 4


def test_a_factor_that_does_not_divide_is_refused_with_the_numbers() -> None:
    spec = make_spec(accum=4)
    object.__setattr__(spec, "accum", 3)
    with pytest.raises(ValueError, match="accum=3 does not divide the 16 rows"):
        partition(spec, 1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_every_entry_moves_to_a_neighbour(dtype: torch.dtype) -> None:
    before = torch.randn(1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)
    after = before.clone()
    move_one_ulp([after], seed=1)
    up = torch.nextafter(before, torch.full_like(before, torch.inf))
    down = torch.nextafter(before, torch.full_like(before, -torch.inf))
    assert bool(((after == up) | (after == down)).all())
    assert 400 < int((after == up).sum()) < 600


def test_zeros_and_non_finite_entries_stay() -> None:
    values = torch.tensor([0.0, torch.inf, -torch.inf])
    move_one_ulp([values], seed=1)
    assert values.tolist() == [0.0, np.inf, -np.inf]


def test_entries_that_do_not_lie_one_after_the_other_move_too() -> None:
    transposed = torch.ones(3, 4).T
    move_one_ulp([transposed], seed=1)
    assert bool((transposed != 1).all())
    assert float((transposed - 1).abs().max()) <= 2.0**-23


def first_weights(spec: RunSpec) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in TrainingSession(spec, ToyTask(spec)).training.parameters])


def test_ulp_weights_moves_the_initial_weights_and_nothing_else() -> None:
    plain, moved = first_weights(make_spec()), first_weights(make_spec(control="ulp_weights"))
    relative = ((moved - plain) / plain).abs()
    assert 2.0**-25 < float(relative.min()) and float(relative.max()) <= 2.0**-23
    assert torch.equal(moved, first_weights(make_spec(control="ulp_weights", replicate=1)))
    assert torch.equal(plain, first_weights(make_spec(control="ulp_grads")))


def test_ulp_grads_moves_the_gradient_that_the_optimizer_sees_at_every_step() -> None:
    def seen(control: str) -> list[torch.Tensor]:
        spec = make_spec(control=control, accum=4, dtype="fp64", **{"optimizer.lr": 0.0})
        session, gradients = TrainingSession(spec, ToyTask(spec)), []
        session.training.optimizer.register_step_pre_hook(
            lambda *_: gradients.append(torch.cat([p.grad.flatten().clone() for p in session.training.parameters if p.grad is not None]))
        )
        for _ in session.steps():
            pass
        return gradients

    relative = [((moved - plain) / plain).abs() for plain, moved in zip(seen("none"), seen("ulp_grads"), strict=True)]
    assert len(relative) == 10
    assert all(2.0**-54 < float(r.min()) and float(r.max()) <= 2.0**-52 for r in relative)
