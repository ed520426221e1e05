"""measure=ladder as a run: its record, the file beside it, and what becomes of both when the run is stopped."""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from accum_sweeps import subjects
from accum_sweeps.execute import Limits, execute
from accum_sweeps.ladder.session import LadderSession
from accum_sweeps.plan.errors import ConfigError, UserError
from accum_sweeps.plan.spec import RunSpec
from accum_sweeps.record.metrics import LADDER_RUNGS, LADDER_UNITS, TEXT_UNITS, StepRecord
from accum_sweeps.record.store import RunDir, open_root
from accum_sweeps.training.loop import TrainingSession
from tests.faults.subjects import lm_spec
from tests.specs import BASE, make_spec
from tests.training.toy import ToyTask

ENV = "0" * 12
ADAMW: dict[str, Any] = {"optimizer": BASE["optimizer"], "dtype": "fp32"}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, str]]] = {
    "amplified": ("none", ADAMW, {"diagnosis": "amplified_rounding", "diagnosis_detail": "zero_gradient"}),
    "fault": ("mean_of_means", ADAMW, {"diagnosis": "mean_of_means", "diagnosis_detail": ""}),
    "pair": ("missing_division+reporting", {}, {"diagnosis": "missing_division+reporting", "diagnosis_detail": ""}),
    "dependence": ("none", {"model.norm": "batchnorm"}, {"diagnosis": "real_dependence", "diagnosis_detail": "batch_statistics"}),
}


@dataclass(frozen=True, kw_only=True)
class Climbed:
    """One ladder as a run makes it: all records, the file and the printed line."""

    record: StepRecord
    found: dict[str, Any]
    signs: list[StepRecord]


def ladder_spec(fault: str = "none", **changes: Any) -> RunSpec:
    return lm_spec(fault, **{"measure": "ladder", "data.seq_len": 16} | changes)


def climb(spec: RunSpec, folder: Path) -> Climbed:
    path = folder / "ladder.1.json"
    *signs, record = LadderSession(spec, path).steps()
    return Climbed(record=record, found=json.loads(path.read_text()), signs=signs)


@pytest.fixture(scope="module")
def climbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Climbed]:
    """The ladder of a case, climbed when it is first asked for."""
    known: dict[str, Climbed] = {}

    def of(case: str) -> Climbed:
        fault, changes, _ = CASES[case]
        if case not in known:
            known[case] = climb(ladder_spec(fault, **changes), tmp_path_factory.mktemp("ladder"))
        return known[case]

    return of


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Ladders of a toy in no time; the list counts the trainings that were made for them."""
    made: list[int] = []

    def session(spec: RunSpec, *_: Any) -> TrainingSession:
        made.append(1)
        return TrainingSession(spec, ToyTask(spec))

    monkeypatch.setattr(subjects, "session", session)
    monkeypatch.setattr(subjects, "correct_session", session)
    return made


@pytest.fixture
def toy_spec() -> RunSpec:
    return make_spec(measure="ladder", accum=4)


# --- the record ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_a_ladder_ends_in_an_answer_and_its_detail(climbed: Callable[[str], Climbed], case: str) -> None:
    found = climbed(case)
    assert found.record.texts == CASES[case][2] and set(found.record.texts) == set(TEXT_UNITS)
    assert found.found["answer"] == found.record.texts["diagnosis"]
    assert [(sign.step, dict(sign.values)) for sign in found.signs] == [(0, {})] and found.record.step == 1


@pytest.mark.parametrize("case", CASES)
def test_metrics_are_the_figures_of_the_file_by_their_names(climbed: Callable[[str], Climbed], case: str) -> None:
    values, found = climbed(case).record.values, climbed(case).found
    assert len(found["rungs"]) == len(LADDER_RUNGS)
    for rung, (name, meaning) in zip(found["rungs"], LADDER_RUNGS.items(), strict=True):
        assert meaning.startswith(f"rung {rung['number']}: "), f"{rung['name']} is no ladder_{name}"
        assert (values[f"ladder_{name}"], values[f"ladder_{name}_floor"]) == (rung["value"], rung["floor"])
    assert values["ladder_resolution"] == found["resolution"]


def test_every_metric_has_a_unit_and_a_gain_is_given_where_it_was_measured(climbed: Callable[[str], Climbed]) -> None:
    assert set(climbed("amplified").record.values) == set(LADDER_UNITS)
    assert climbed("amplified").record.values["ladder_gain"] == climbed("amplified").found["amplified"]["gain"] > 4
    without = set(LADDER_UNITS) - {"ladder_gain"}  # nobody asks what the optimizer makes of a fault or of a dependence
    assert [set(climbed(case).record.values) for case in ("fault", "pair", "dependence")] == [without] * 3


def test_the_figures_of_a_fault_are_above_what_rounding_does_and_those_of_right_code_are_not(climbed: Callable[[str], Climbed]) -> None:
    def above(case: str) -> set[str]:
        values = climbed(case).record.values
        return {name for name in LADDER_RUNGS if values[f"ladder_{name}"] > values[f"ladder_{name}_floor"]}

    assert above("amplified") == set()
    assert above("fault") == {"loss", "gradient", "tensor", "bias", "clipped", "update", "windows", "log"}
    # Seen from one batch a dependence is as large as a fault; seen from the micro-batches' own gradients there is none.
    assert above("dependence") == {"outputs", "loss", "gradient", "clipped", "update"}


def test_what_is_not_finite_in_half_precision_is_missing_and_no_number(tmp_path: Path) -> None:
    found = climb(ladder_spec("none", dtype="amp_fp16", loss_scale=2.0**20), tmp_path)
    assert found.record.texts["diagnosis"] == "rounding"
    assert all(math.isfinite(value) for value in found.record.values.values())
    whole = {"ladder_gradient", "ladder_gradient_floor", "ladder_clipped", "ladder_clipped_floor", "ladder_rerun", "ladder_gain"}
    assert set(LADDER_UNITS) - set(found.record.values) == whole


def test_the_label_is_what_a_person_calls_the_run(climbed: Callable[[str], Climbed]) -> None:
    assert climbed("fault").found["label"] == "lm tiny adamw fault=mean_of_means"
    assert climbed("dependence").found["label"] == "lm tiny sgd"


# --- the run ---------------------------------------------------------------------------------------------------------------


def run_dir(tmp_path: Path, spec: RunSpec) -> RunDir:
    return open_root(tmp_path, create=True).run_dir(spec.run_id, ENV)


def stopping_after(records: int) -> Callable[[], str | None]:
    """Asks a run to stop after so many records."""
    answers: Iterator[str | None] = iter([None] * (records - 1) + ["asked to"])
    return lambda: next(answers, None)


def test_it_is_a_run_with_final_values_texts_a_file_and_a_log(tmp_path: Path) -> None:
    spec = ladder_spec("missing_division+reporting")
    folder = run_dir(tmp_path, spec)
    assert execute(spec, folder, 1, {}, Limits()) == "finished"
    newest = folder.history().newest
    assert newest is not None and newest.texts == CASES["pair"][2]
    [point] = folder.history().points()
    assert set(point.values) <= set(LADDER_UNITS) and newest.final["steps"] == 1
    assert {f"{name}_final": value for name, value in point.values.items()}.items() <= newest.final.items()
    found = json.loads(folder.ladder_path(1).read_text())
    log = folder.log_path(1).read_text()
    words = [finding["words"] for finding in found["diagnosis"]["findings"]]
    assert f"missing_division+reporting: {'; '.join(words)}\n" in log and len(words) == 2


@pytest.mark.parametrize(("remark", "line"), [("", "rounding\n"), ("small faults may hide", "rounding: small faults may hide\n")])
def test_the_log_of_right_code_tells_the_answer_and_what_could_not_be_asked(
    toy: list[int],
    toy_spec: RunSpec,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    remark: str,
    line: str,
) -> None:
    monkeypatch.setattr("accum_sweeps.ladder.audit._remark", lambda bench, step: remark)
    assert climb(toy_spec, tmp_path).found["remark"] == remark
    assert capsys.readouterr().out == line


def test_where_nothing_can_be_compared_the_run_ends_with_that_as_its_answer(
    tmp_path: Path, toy_spec: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subjects, "session", lambda spec, *_: TrainingSession(spec, ToyTask(spec, bad_step=1)))
    monkeypatch.setattr(subjects, "correct_session", lambda spec: TrainingSession(spec, ToyTask(spec, bad_step=1)))
    folder = run_dir(tmp_path, toy_spec)
    assert execute(toy_spec, folder, 1, {}, Limits()) == "finished"
    newest = folder.history().newest
    assert newest is not None and newest.texts == {"diagnosis": "not_observable", "diagnosis_detail": ""}
    [point] = folder.history().points()
    assert set(point.values) == {"ladder_seconds"}
    assert folder.log_path(1).read_text().startswith("not_observable: the gradient of the right step is not finite")


def test_a_subject_without_a_step_to_look_into_is_refused() -> None:
    with pytest.raises(ConfigError, match="weights and gradients"):
        make_spec(measure="ladder", subject={"kind": "command", "name": "command", "argv": ["x"]}, model={"kind": "none", "name": "none"})


def test_stopped_before_it_climbs_it_starts_over(toy: list[int], toy_spec: RunSpec, tmp_path: Path) -> None:
    folder = run_dir(tmp_path, toy_spec)
    assert execute(toy_spec, folder, 1, {}, Limits(stop=stopping_after(1))) == "released"
    assert not toy and not folder.ladder_path(1).exists()
    assert execute(toy_spec, folder, 2, {}, Limits()) == "finished"
    assert toy and json.loads(folder.ladder_path(2).read_text())["answer"] == "rounding"


def test_stopped_after_it_has_climbed_its_answer_is_that_of_the_next_attempt_which_does_not_climb(
    toy: list[int], toy_spec: RunSpec, tmp_path: Path
) -> None:
    folder = run_dir(tmp_path, toy_spec)
    assert execute(toy_spec, folder, 1, {}, Limits(stop=stopping_after(2))) == "released"
    climbs = len(toy)
    for attempt, stop, status in ((2, stopping_after(1), "released"), (3, stopping_after(9), "finished")):
        assert execute(toy_spec, folder, attempt, {}, Limits(stop=stop)) == status
        assert folder.ladder_path(attempt).read_text() == folder.ladder_path(1).read_text()
    newest = folder.history().newest
    assert len(toy) == climbs and newest is not None
    assert newest.texts == {"diagnosis": "rounding", "diagnosis_detail": ""}
    [point] = folder.history().points()
    assert {f"{name}_final": value for name, value in point.values.items()}.items() <= newest.final.items()
    assert newest.final["ladder_gradient_final"] == json.loads(folder.ladder_path(3).read_text())["rungs"][4]["value"]


def test_a_checkpoint_of_another_run_is_not_taken_back(toy: list[int], toy_spec: RunSpec, tmp_path: Path) -> None:
    session = LadderSession(toy_spec, tmp_path / "ladder.1.json")
    list(session.steps())
    session.save(tmp_path / "checkpoint.pt")
    other = LadderSession(make_spec(measure="ladder", accum=2), tmp_path / "ladder.2.json")
    with pytest.raises(UserError, match="belongs to run"):
        other.load(tmp_path / "checkpoint.pt")
    again = LadderSession(toy_spec, tmp_path / "ladder.3.json")
    assert again.load(tmp_path / "checkpoint.pt") == again.position == session.position == 1
