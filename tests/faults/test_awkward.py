"""Awkward steps with every fault: losses that are not finite, micro-batches without terms, parameters that no loss reaches."""

import math

import pytest
import torch

from accum_sweeps.faults import faulty_step
from accum_sweeps.plan.faults import FAULTS
from accum_sweeps.training.step import train_step
from tests.faults.toy import batches, case, observed, squares, training

ELSEWHERE = ("wrong_divisor", "auxiliary_scale", "replay_randomness")  # need a subject of their own
ANYWHERE = [name for name in FAULTS if name not in ELSEWHERE]
LAST_IS_LOGGED = [name for name in ANYWHERE if name == "reporting" or name.endswith("+reporting")]


@pytest.mark.parametrize("name", ANYWHERE)
@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_no_update_where_a_loss_is_not_finite(name: str, bad: float) -> None:
    micro_batches = batches((1, 2, 5, 4))
    micro_batches[0][1][0] = bad
    state = training(max_norm=0.5, lr_factor=lambda step: 1.0 / step)
    seen = observed(state, faulty_step(case(name)), micro_batches)
    assert seen.after.equal(seen.before)
    assert math.isfinite(seen.outcome.loss) == (name in LAST_IS_LOGGED)  # who logs the last one does not see it


@pytest.mark.parametrize("name", ANYWHERE)
def test_a_micro_batch_without_terms_makes_its_own_mean_not_a_number_and_harms_no_sum(name: str) -> None:
    micro_batches = batches((2, 3, 1, 4))
    state = training(max_norm=0.5, lr_factor=lambda step: 1.0 / step)
    state.loss = lambda mb: (squares(state.model, mb) * (len(mb[0]) != 1), len(mb[0]) if len(mb[0]) != 1 else 0)
    seen = observed(state, faulty_step(case(name)), micro_batches)
    takes_own_means = name.startswith(("mean_of_means", "missing_division")) and name != "mean_of_means_over_ranks"
    assert seen.outcome.terms == 9
    is_logged_right = name in LAST_IS_LOGGED
    assert math.isfinite(seen.outcome.loss) == (not takes_own_means or is_logged_right)
    # Who logs the last one's loss makes the update all the same; the next loss is not a number then, and ends the run.
    assert bool(seen.after.isfinite().all()) == (not takes_own_means or not is_logged_right)


@pytest.mark.parametrize("name", ANYWHERE)
def test_a_step_without_a_single_term_is_refused(name: str) -> None:
    state = training(lr_factor=lambda step: 1.0)
    state.loss = lambda mb: (squares(state.model, mb) * 0, 0)
    with pytest.raises(ValueError, match="the micro-batches of optimizer step 1 hold no term"):
        faulty_step(case(name))(state, batches((1, 2, 5, 4)))


@pytest.mark.parametrize("name", ANYWHERE)
@pytest.mark.parametrize("accumulator", [None, torch.float64])
def test_a_parameter_that_no_loss_reaches_keeps_no_gradient(name: str, accumulator: torch.dtype | None) -> None:
    state = training(accumulator=accumulator)
    bias = state.parameters[-1]
    state.loss = lambda mb: (state.parameters[0].sum() * float(mb[1].sum()), len(mb[0]))
    seen: list[object] = []
    state.on_gradient = lambda: seen.append(bias.grad)
    faulty_step(case(name))(state, batches((1, 2, 5, 4)))
    assert seen == [None]


@pytest.mark.parametrize("name", ANYWHERE)
def test_gradients_from_before_a_step_are_dropped_and_the_correct_step_is_not_touched(name: str) -> None:
    states = [training(max_norm=0.5, lr_factor=lambda step: 1.0 / step) for _ in range(3)]
    for p in states[1].parameters:
        p.grad = torch.full_like(p, 7.0)
    first, second = (observed(state, faulty_step(case(name)), batches((1, 2, 5, 4))) for state in states[:2])
    assert first.after.equal(second.after)
    assert math.isfinite(observed(states[2], train_step, batches((1, 2, 5, 4))).outcome.loss)
