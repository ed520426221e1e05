"""What has nothing to do with accumulation is not called a fault of it, and what has no name is given none."""

import pytest

from accum_sweeps.plan.errors import UserError
from tests.ladder.trainers import awkward_loops as loops
from tests.ladder.trainers.hooks import audited, words
from tests.ladder.trainers.loops import Loop

ANSWERS = {
    "BatchNorm": "real_dependence",
    "Frozen": "rounding",
    "Clamped": "rounding",
    "Wrapped": "rounding",
    "SkippingLong": "rounding",
    "InBfloat16": "rounding",
    "UndividedInBfloat16": "missing_division",
    "WithAdamW": "rounding",
    "UndividedWithAdamW": "missing_division",
    "Unscheduled": "rounding",
    "Stale": "unknown_fault",
    "EverySecond": "unknown_fault",
    "TwoUpdates": "unknown_fault",
    "HalfOfTheLast": "lost_micro_batches",
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_awkward_trainer_is_called_what_it_is(name: str) -> None:
    found = audited(getattr(loops, name)())
    assert found.answer == ANSWERS[name], words(found)


def test_noise_on_gradients_hides_small_faults_and_is_none() -> None:
    found = audited(loops.Noisy())
    assert found.answer == "below_floor" and "of its gradient is rounding" in found.remark
    assert "is given the same length" not in found.remark


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("OtherLoss", "of its gradient is not of the batch and the method loss: it minimizes another loss"),
        ("Unscheduled", "its learning rates are not those of the scheduler that it is given"),
        ("WithAdamW", "the optimizer is the class's own: its learning rates are not looked into"),
    ],
)
def test_what_was_not_looked_into_is_said(name: str, told: str) -> None:
    found = audited(getattr(loops, name)())
    assert told in found.remark
    assert (found.answer == "not_observable") == (name == "OtherLoss")


def test_losses_that_fit_no_window_are_refused() -> None:
    with pytest.raises(UserError, match="losses, but made"):
        audited(loops.OneLossMore())


def test_settings_that_a_trainer_would_miss_are_refused() -> None:
    with pytest.raises(UserError, match=r"ema=0\.9 has no effect on a class with the method train"):
        audited(Loop(), ema=0.9)
