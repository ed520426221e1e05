"""A trainer that makes several steps by itself is called clean when it is right, and its faults are called by their names."""

import pytest

from tests.ladder.trainers import loops
from tests.ladder.trainers.hooks import audited, words

CLEAN = ["Loop", "Quiet", "Dropping", "Clipping", "ClippingEachTensor", "ClippingEachElement", "InClosure", "Concatenating", "OwnSgd"]


@pytest.mark.parametrize("name", CLEAN)
def test_a_right_trainer_is_not_accused(name: str) -> None:
    found = audited(getattr(loops, name)())
    assert found.answer == "rounding", words(found)


FAULTY = {
    "MeanOfMeans": "mean_of_means",
    "Undivided": "missing_division",
    "UndividedAndClipped": "missing_division",
    "UndividedByOwnSgd": "missing_division",
    "TwiceDivided": "double_division",
    "OneTermLess": "wrong_divisor",
    "SchedulingEach": "schedule_per_micro_batch",
    "UpdatingEach": "early_step",
    "DroppingLast": "dropped_window",
    "ShortByK": "short_window",
    "ClippingEach": "clip_per_micro_batch",
    "LosingFirst": "lost_micro_batches",
    "LoggingLast": "reporting",
}


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step:UserWarning")
@pytest.mark.parametrize("name", FAULTY)
def test_a_fault_of_a_trainer_is_called_by_its_name(name: str) -> None:
    found = audited(getattr(loops, name)())
    assert found.answer == FAULTY[name], words(found)
    assert found.diagnosis is not None and all(each.experiments for each in found.diagnosis.findings)


def test_a_trainer_that_never_sees_a_short_window_is_not_judged_by_one() -> None:
    assert audited(loops.ShortByKSays()).answer == "rounding"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Idle", "train changes no weight"),
        ("OwnAdam", "train moves the weights, but not by the optimizer that it is given"),
        ("Shuffling", "train takes the micro-batches in another order"),
        ("TwoEpochs", "in 2 epochs"),
        ("Random", "the loss draws random numbers in eval mode as well"),
    ],
)
def test_what_cannot_be_seen_is_said(name: str, told: str) -> None:
    found = audited(getattr(loops, name)())
    assert found.answer == "not_observable" and told in found.remark


@pytest.mark.parametrize("name", ["Normalizing", "ClippedByOwnSgd"])
def test_a_hidden_length_is_no_divisor(name: str) -> None:
    found = audited(getattr(loops, name)())
    assert found.answer == "rounding" and "a division that is missing, wrong or made twice is not observable" in found.remark
    assert found.diagnosis is not None and not found.diagnosis.findings
