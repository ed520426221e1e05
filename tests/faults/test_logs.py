"""What is logged, and what the first update after a resume lacks."""

import pytest
import torch

from accum_sweeps.faults import faulty_step
from accum_sweeps.faults.logs import ResumeInsideWindow
from accum_sweeps.training.step import train_step
from tests.faults.toy import RAGGED, ROUNDING, apart, batches, both, case, network, observed, squares, summed_gradients, training

LAST = float(squares(network(), batches(RAGGED)[-1]).detach()) / RAGGED[-1]


@pytest.mark.parametrize("name", ["reporting", "mean_of_means+reporting", "missing_division+reporting", "lost_micro_batches+reporting"])
def test_the_last_micro_batchs_loss_is_logged(name: str) -> None:
    faulty, correct = both(name)
    assert faulty.outcome.loss == pytest.approx(LAST, rel=1e-14)
    assert abs(faulty.outcome.loss - correct.outcome.loss) > 1e-2 * correct.outcome.loss
    assert faulty.outcome.terms == 12


@pytest.mark.parametrize(("name", "strength", "factor"), [("reporting_scaled", None, 0.25), ("reporting_scaled", 4.0, 4.0)])
def test_the_logged_loss_is_scaled(name: str, strength: float | None, factor: float) -> None:
    faulty, correct = both(name, strength=strength)
    assert faulty.outcome.loss == factor * correct.outcome.loss


@pytest.mark.parametrize("name", ["reporting", "reporting_scaled"])
def test_weights_and_the_norm_are_right_whatever_is_logged(name: str) -> None:
    faulty, correct = both(name, max_norm=0.5)
    assert faulty.after.equal(correct.after) and faulty.gradient.equal(correct.gradient)
    assert faulty.outcome.values == correct.outcome.values


@pytest.mark.parametrize(("strength", "before"), [(None, 2), (0.25, 1), (0.01, 1), (1.0, 3)])
def test_the_first_update_after_a_resume_lacks_the_micro_batches_before_the_restart(strength: float | None, before: int) -> None:
    step, state, micro_batches = faulty_step(case("resume_inside_window", strength=strength)), training(), batches(RAGGED)
    assert isinstance(step, ResumeInsideWindow)
    correct = observed(training(), train_step, micro_batches)
    assert observed(state, step, micro_batches).gradient.equal(correct.gradient)
    step.resume()
    resumed = observed(training(), step, micro_batches)
    expected = sum(summed_gradients(micro_batches)[before:], torch.zeros(())) / 12
    assert apart(resumed.gradient, expected) < ROUNDING < 1e-2 < apart(expected, correct.gradient)
    assert observed(training(), step, micro_batches).gradient.equal(correct.gradient)


def test_a_resume_with_one_micro_batch_a_window_loses_nothing() -> None:
    step = faulty_step(case("resume_inside_window", 1))
    assert isinstance(step, ResumeInsideWindow)
    step.resume()
    assert observed(training(), step, batches((12,))).gradient.equal(observed(training(), train_step, batches((12,))).gradient)
