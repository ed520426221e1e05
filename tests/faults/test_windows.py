"""Windows at the end of an epoch, and the update that comes too early."""

from collections.abc import Sequence

import pytest
import torch

from accum_sweeps.faults import faulty_step
from accum_sweeps.training.step import train_step
from accum_sweeps.training.task import Step
from tests.faults.toy import ROUNDING, MicroBatch, Seen, apart, batches, both, case, observed, summed_gradients, training

K = 4
SIZES = (1, 2, 5, 4)


def windows(step: Step, taken: Sequence[list[MicroBatch]], lr: float = 0.0) -> list[Seen]:
    """``step`` on one window after the other, as the loop calls it; by default the weights stay."""
    state = training(lambda parameters: torch.optim.SGD(parameters, lr=lr))
    seen = []
    for window in taken:
        seen.append(observed(state, step, window))
        state.position += 1
    return seen


def test_the_third_update_of_five_constant_batches_is_exactly_half() -> None:
    [batch] = batches((6,))
    epoch = [[batch, batch], [batch, batch], [batch]] * 2
    seen = windows(faulty_step(case("short_window", 2)), epoch)
    losses, norms = [each.outcome.loss for each in seen], [each.outcome.values["grad_norm"] for each in seen]
    assert losses == [losses[0], losses[0], losses[0] / 2] * 2
    assert norms == [norms[0], norms[0], norms[0] / 2] * 2
    clean = [each.outcome for each in windows(train_step, epoch)]
    assert {each.loss for each in clean} == {losses[0]} and {each.values["grad_norm"] for each in clean} == {norms[0]}


def test_a_short_window_is_divided_as_if_it_were_full() -> None:
    short = batches(SIZES)[:3]
    [faulty] = windows(faulty_step(case("short_window", K)), [short])
    [correct] = windows(train_step, [short])
    assert apart(faulty.gradient, 3 / 4 * correct.gradient) < ROUNDING
    assert faulty.outcome.loss == pytest.approx(0.75 * correct.outcome.loss, rel=1e-14)


def test_means_of_means_in_a_short_window_are_divided_by_the_k_of_the_settings() -> None:
    short = batches(SIZES)[:3]
    [faulty] = windows(faulty_step(case("mean_of_means+short_window", K)), [short])
    expected = sum(g / n for g, n in zip(summed_gradients(short), SIZES, strict=False)) / 4
    assert isinstance(expected, torch.Tensor) and apart(faulty.gradient, expected) < ROUNDING


@pytest.mark.parametrize("name", ["short_window", "dropped_window", "merged_window"])
def test_full_windows_are_right(name: str) -> None:
    faulty, correct = both(name, SIZES)
    assert apart(faulty.gradient, correct.gradient) < 1e-15
    assert faulty.outcome.loss == pytest.approx(correct.outcome.loss, rel=1e-15)


@pytest.mark.parametrize("name", ["dropped_window", "merged_window"])
def test_a_short_window_makes_no_update_but_logs_its_loss(name: str) -> None:
    short = batches(SIZES)[:3]
    [faulty] = windows(faulty_step(case(name, K)), [short], lr=0.1)
    [correct] = windows(train_step, [short], lr=0.1)
    assert faulty.after.equal(faulty.before) and not correct.after.equal(correct.before)
    assert (faulty.clipped, faulty.gradients) == ([], [])
    assert (faulty.outcome.loss, faulty.outcome.terms) == (pytest.approx(correct.outcome.loss, rel=1e-15), 8)


def test_a_merged_window_is_averaged_with_the_next_one() -> None:
    full, short = batches(SIZES, seed=1), batches(SIZES)[:3]
    seen = windows(faulty_step(case("merged_window", K)), [full, short, full, full])
    gradients = summed_gradients([*short, *full])
    assert apart(seen[2].gradient, sum(gradients, torch.zeros(())) / (8 + 12)) < ROUNDING
    assert seen[2].outcome.terms == 12  # samples of this window, those before were counted
    assert apart(seen[3].gradient, seen[0].gradient) < 1e-15  # over and done with
    dropped = windows(faulty_step(case("dropped_window", K)), [full, short, full])
    assert apart(dropped[2].gradient, dropped[0].gradient) < 1e-15


def test_the_early_step_takes_what_waited_and_one_more() -> None:
    first, second = batches(SIZES), batches(SIZES, seed=1)
    seen = windows(faulty_step(case("early_step", K)), [first, second])
    assert apart(seen[0].gradient, summed_gradients(first)[0] / 1) < ROUNDING
    waited = sum(summed_gradients(first)[1:], summed_gradients(second)[0])
    assert apart(seen[1].gradient, waited / (11 + 1)) < ROUNDING
    assert [each.outcome.terms for each in seen] == [12, 12]


@pytest.mark.parametrize(("name", "window"), [("early_step", 4), ("merged_window", 3)])
def test_what_waits_is_forgotten_when_a_step_is_made_again(name: str, window: int) -> None:
    # As a comparison does that makes several steps from the same weights with one session.
    step, state, taken = faulty_step(case(name, K)), training(), batches(SIZES)
    state.position = 5
    for parameters in (None, None):
        state.parameters[0].grad = parameters
        step(state, taken[:window])
    state.position = 3
    faulty = observed(state, step, taken)
    fresh = observed(training(), faulty_step(case(name, K)), taken)
    assert len(faulty.gradient) == len(fresh.gradient)
    state = training()
    assert observed(state, step, taken).gradient.equal(fresh.gradient)


def test_what_waits_survives_a_checkpoint() -> None:
    short, full = batches(SIZES)[:3], batches(SIZES, seed=1)
    for name in ("merged_window", "early_step"):
        expected = windows(faulty_step(case(name, K)), [short, full])[1]
        state, first, second = training(lambda p: torch.optim.SGD(p, lr=0.0)), faulty_step(case(name, K)), faulty_step(case(name, K))
        first(state, short)
        state.position = 1
        second.load_state_dict(first.state_dict())  # type: ignore[attr-defined]
        kept = second.state_dict()  # type: ignore[attr-defined]
        assert kept["step"] == 1 and kept["held"]["terms"] > 0
        assert observed(state, second, full).gradient.equal(expected.gradient)
