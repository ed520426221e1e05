"""A schedule that advances with each micro-batch."""

from collections.abc import Callable

import pytest

from accum_sweeps.faults import faulty_step
from accum_sweeps.training.step import train_step
from tests.faults.toy import apart, batches, case, observed, training

NAMES = ["schedule_per_micro_batch", "missing_division+schedule_per_micro_batch", "mean_of_means+schedule_per_micro_batch"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("position", "factor"), [(0, 4.0), (2, 12.0)])
def test_update_t_has_the_rate_of_step_k_t(name: str, position: int, factor: float) -> None:
    state, micro_batches = training(lr_factor=float), batches((3, 3, 3, 3))
    state.position = position
    seen = observed(state, faulty_step(case(name)), micro_batches)
    assert state.optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * factor, rel=1e-15)
    assert apart(seen.update, -0.1 * factor * seen.clipped[0]) < 1e-14


def test_the_first_gradient_is_perfect() -> None:
    micro_batches = batches((1, 2, 5, 4))
    faulty = observed(training(lr_factor=float), faulty_step(case("schedule_per_micro_batch")), micro_batches)
    correct = observed(training(lr_factor=float), train_step, micro_batches)
    assert faulty.gradient.equal(correct.gradient)
    assert apart(faulty.update, 4 * correct.update) < 1e-14


@pytest.mark.parametrize("factor", [None, lambda step: 1.0])
def test_a_constant_rate_cures_it(factor: Callable[[int], float] | None) -> None:
    micro_batches = batches((1, 2, 5, 4))
    faulty = observed(training(lr_factor=factor), faulty_step(case("schedule_per_micro_batch")), micro_batches)
    assert faulty.after.equal(observed(training(lr_factor=factor), train_step, micro_batches).after)


def test_a_short_window_advances_the_schedule_by_its_micro_batches() -> None:
    state = training(lr_factor=float)
    state.position = 2
    faulty_step(case("schedule_per_micro_batch"))(state, batches((3, 3, 3)))
    assert state.optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 11, rel=1e-15)
