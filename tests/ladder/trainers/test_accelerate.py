"""A loop of Accelerate's: right when it is used rightly, and found out where it is not."""

import pytest

from tests.ladder.trainers.hooks import audited, words

pytest.importorskip("accelerate")
loops = pytest.importorskip("tests.ladder.trainers.accelerate_loops")
ANSWERS = {
    "ByAccelerate": "rounding",
    "UnpreparedScheduler": "schedule_per_micro_batch",  # accelerate#963
    "MeansByAccelerate": "mean_of_means+short_window",
}
pytestmark = pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step:UserWarning")


@pytest.mark.parametrize("name", ANSWERS)
def test_a_loop_of_accelerate_is_called_what_it_is(name: str) -> None:
    found = audited(getattr(loops, name)())
    assert found.answer == ANSWERS[name], words(found)


def test_the_rates_of_an_unprepared_scheduler_are_told() -> None:
    found = audited(loops.UnpreparedScheduler(), accum=2)
    assert found.diagnosis is not None
    [finding] = found.diagnosis.findings
    assert finding.words == "step 1 is made with a rate of 0.1; the schedule's is 0.05"
    assert finding.experiments[0].before == pytest.approx(1.0) and finding.experiments[0].after == 0
