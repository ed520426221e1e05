"""transformers' own Trainer on a ragged Llama: right, and found out where the model ignores the token count that it is given."""

from pathlib import Path

import pytest

import accum_sweeps as acs
from tests.house.checkout import ROOT
from tests.ladder.trainers.hooks import audited, words

pytest.importorskip("accelerate")
llama = pytest.importorskip("tests.ladder.trainers.llama")
ANSWERS = {
    "LlamaByTrainer": "rounding",
    "Unclipped": "rounding",
    "IgnoringCount": "missing_division",
    "IgnoringCountByAdamW": "missing_division",
    "NotAccepting": "mean_of_means",
}


@pytest.mark.parametrize("name", ANSWERS)
def test_the_trainer_is_called_what_it_is(name: str) -> None:
    found = audited(getattr(llama, name)())
    assert found.answer == ANSWERS[name], words(found)


def test_float32_parts_of_a_float64_model_are_measured_and_no_fault() -> None:
    found = audited(llama.LlamaByTrainer(), accum=2)
    assert found.answer == "rounding" and found.diagnosis is not None and found.diagnosis.is_exact
    assert found.resolution is not None and 1e-8 < found.resolution < 1e-5


def test_the_division_that_the_model_misses_is_told_by_k() -> None:
    found = audited(llama.IgnoringCount(), accum=2)
    assert found.diagnosis is not None
    [finding] = found.diagnosis.findings
    assert (finding.name, finding.figures["factor"]) == ("missing_division", pytest.approx(2.0, rel=1e-5))


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true")
def test_the_readmes_example_is_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "tests/subjects/examples")
    monkeypatch.chdir(tmp_path)
    found = acs.audit("my_trainer:MyTraining", accum=[2, 4]).raise_for_fault()
    assert found.answers == {2: "rounding", 4: "rounding"}
