"""What a sweep's ladders found, as a person gets it: their pages, a table where they are many, and the faults that nobody built in."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from accum_sweeps.analysis.audit_page import render
from accum_sweeps.analysis.ladders import audits, faults_found, is_ladder, render_first_fault, render_ladders
from accum_sweeps.analysis.load import load
from accum_sweeps.execute import Limits, execute
from accum_sweeps.plan.spec import RunSpec
from accum_sweeps.record.store import RunDir, open_root
from tests.analysis.roots import ENV, claim, plan
from tests.faults.subjects import lm_spec
from tests.specs import BASE

CLIMBED: dict[str, tuple[str, dict[str, Any]]] = {
    "right": ("none", {"dtype": "fp32"}),
    "amplified": ("none", {"dtype": "fp32", "optimizer": BASE["optimizer"]}),
    "dependent": ("none", {"model.norm": "batchnorm"}),
    "mean": ("mean_of_means", {}),
    "pair": ("missing_division+reporting", {}),
}
ANSWERS = ["rounding", "amplified_rounding", "real_dependence", "mean_of_means", "missing_division+reporting"]


def ladder_spec(fault: str, **changes: Any) -> RunSpec:
    return lm_spec(fault, **{"measure": "ladder", "data.seq_len": 16} | changes)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of the ladders of CLIMBED, and one more that has not begun."""
    path = tmp_path_factory.mktemp("root")
    specs = [ladder_spec(fault, **changes) for fault, changes in CLIMBED.values()]
    sweep = plan(path, [*specs, ladder_spec("none", dtype="bf16")])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda descriptor: None)
        for spec in specs:
            claim(sweep.root, spec)
            assert execute(spec, sweep.root.run_dir(spec.run_id, ENV), 1, {}, Limits()) == "finished"
    return path


@pytest.fixture(scope="module")
def results(root: Path) -> pd.DataFrame:
    """Its results, the finished ladders in the order of CLIMBED and then the one that is not."""
    frame = load(root)
    order = {ladder_spec(fault, **changes).run_id: place for place, (fault, changes) in enumerate(CLIMBED.values())}
    return frame.sort_values("run_id", key=lambda ids: ids.map(order), na_position="last").reset_index(drop=True)


@pytest.fixture
def rows(results: pd.DataFrame) -> Callable[..., pd.DataFrame]:
    """The rows of the named ladders."""

    def of(*names: str) -> pd.DataFrame:
        return results.loc[[list(CLIMBED).index(name) for name in names]]

    return of


@pytest.fixture
def damage(root: Path, results: pd.DataFrame) -> Any:
    """Changes the file of a ladder until the test is over."""
    before: dict[Path, str] = {}

    def to(name: str, change: Callable[[str], str | None]) -> None:
        path = folder(root, results, name).ladder_path(1)
        before.setdefault(path, path.read_text())
        text = change(before[path])
        if text is None:
            path.unlink()
        else:
            path.write_text(text)

    yield to
    for path, text in before.items():
        path.write_text(text)


def folder(root: Path, results: pd.DataFrame, name: str) -> RunDir:
    return open_root(root).run_dir(results["run_id"][list(CLIMBED).index(name)], ENV)


def answers(found: list[Mapping[str, Any]]) -> list[str]:
    return [each["answer"] for each in found]


# --- the audits and their files --------------------------------------------------------------------------------------------


def test_the_audits_are_those_of_the_finished_ladders_in_the_order_of_the_table(root: Path, results: pd.DataFrame) -> None:
    assert list(results["status"]) == ["finished"] * 5 + ["planned"] and is_ladder(results).all()
    assert answers(audits(root, results)) == ANSWERS == list(results["diagnosis"][:5])
    assert answers(audits(root, results[::-1])) == ANSWERS[::-1]
    assert audits(root, results.assign(measure="training")) == []


DAMAGES: dict[str, Callable[[str], str | None]] = {
    "torn": lambda text: text[: len(text) // 2],
    "empty": lambda text: "",
    "gone": lambda text: None,
    "another": lambda text: "{}",
    "a list": lambda text: f"[{text}]",
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_file_is_left_out_and_its_answer_is_still_told(root: Path, rows: Any, damage: Any, kind: str) -> None:
    damage("mean", DAMAGES[kind])
    both = rows("right", "mean")
    assert answers(audits(root, both)) == ["rounding"]
    text = render_ladders(root, both)
    assert text.startswith("2 ladders, by answer:") and "Right." not in text, "no page would stand for the one that is gone"
    assert any(line.split()[:3] == ["mean_of_means", "1"] for line in text.splitlines())
    assert render_first_fault(root, both) == "" and faults_found(rows("mean")) == ["mean_of_means"]


# --- as text ---------------------------------------------------------------------------------------------------------------


def test_few_ladders_are_told_by_their_pages(root: Path, rows: Any) -> None:
    four = rows("mean", "right", "dependent", "amplified")
    pages = [render(each) for each in audits(root, four)]
    assert render_ladders(root, four) == "\n\n\n".join(pages) and len(set(pages)) == 4


def test_many_ladders_are_told_by_their_number_for_each_answer_and_a_line_each(root: Path, results: pd.DataFrame) -> None:
    twice = pd.concat([results, results[results["diagnosis"] == "rounding"]], ignore_index=True)
    head, counts, lines = table(render_ladders(root, twice))
    assert head == "6 ladders, by answer:"
    assert counts[0] == ["rounding", "2"] and {tuple(each) for each in counts[1:]} == {(answer, "1") for answer in ANSWERS[1:]}
    assert lines[0] == ["setup", "k", "answer", "gradient", "rounding"] and len(lines) == 7
    by_answer = {next(word for word in line if word in ANSWERS): line for line in lines[1:]}
    assert by_answer["amplified_rounding"][-3] == "zero_gradient" and by_answer["real_dependence"][-3] == "batch_statistics"
    figures = results.set_index("diagnosis")[["ladder_gradient_final", "ladder_gradient_floor_final"]]
    for answer in ANSWERS:
        assert by_answer[answer][-2:] == [f"{value:.3g}" for value in figures.loc[answer]]
        assert (float(by_answer[answer][-2]) > float(by_answer[answer][-1])) == (answer not in ("rounding", "amplified_rounding"))


def table(text: str) -> tuple[str, list[list[str]], list[list[str]]]:
    """The first line, the words of the counts, and those of the table."""
    above, below = text.split("\n\n")
    head, *counts = above.splitlines()
    return head, [line.split() for line in counts], [line.split() for line in below.splitlines()]


def test_what_could_not_be_observed_is_a_dash_in_the_table(root: Path, results: pd.DataFrame) -> None:
    blind = results.assign(diagnosis="not_observable", diagnosis_detail=None, ladder_gradient_final=float("nan"))
    without = blind.drop(columns=["ladder_gradient_floor_final", "diagnosis_detail"])  # as where no ladder of a sweep could be climbed
    assert {tuple(line[-4:]) for line in table(render_ladders(root, without))[2][1:]} == {("4", "not_observable", "-", "-")}


def test_before_any_is_finished_their_number_is_told(root: Path, results: pd.DataFrame) -> None:
    assert render_ladders(root, results[5:]) == "No ladder is finished yet: 1 run."
    assert render_ladders(root, results.assign(status="running")) == "No ladder is finished yet: 6 runs."


def test_the_first_fault_is_told_by_its_page_and_further_ones_by_their_number(root: Path, results: pd.DataFrame, rows: Any) -> None:
    assert render_first_fault(root, rows("right", "amplified", "dependent")) == ""
    [page] = audits(root, rows("pair"))
    assert render_first_fault(root, rows("right", "pair")) == render(page)
    assert (
        render_first_fault(root, rows("pair", "mean"))
        == f"{render(page)}\n\n1 other ladder found a fault too; the audit page has them all."
    )
    three = pd.concat([results, rows("pair")])
    assert "Wrong: mean_of_means." in render_first_fault(root, three)
    assert "2 other ladders found a fault too" in render_first_fault(root, three)


# --- the faults of an exit code --------------------------------------------------------------------------------------------


def test_a_fault_that_was_asked_for_as_an_axis_is_none_that_is_found(results: pd.DataFrame, rows: Any) -> None:
    assert faults_found(results) == [] and faults_found(rows("mean", "pair")) == []
    assert faults_found(rows("pair")) == ["missing_division", "reporting"], "an audit of one faulty configuration was asked for it"


def test_a_fault_that_nobody_built_in_is_found_and_nothing_else_is(results: pd.DataFrame, rows: Any) -> None:
    own = results.assign(fault="none")
    assert faults_found(own) == ["mean_of_means", "missing_division", "reporting"]
    assert faults_found(rows("right", "amplified", "dependent")) == []
    assert faults_found(own.assign(diagnosis="unknown_fault")) == ["unknown_fault"]
    assert faults_found(own.assign(diagnosis=None)) == faults_found(own.assign(status="failed")) == []


def test_a_table_without_ladders_has_no_fault_and_none_of_its_rows_is_one(results: pd.DataFrame) -> None:
    trainings = results.assign(measure="training")
    assert not is_ladder(trainings).any() and faults_found(trainings) == []
    of_others = trainings.drop(columns="measure")
    assert list(is_ladder(of_others)) == [False] * 6 and is_ladder(of_others).index.equals(of_others.index)
