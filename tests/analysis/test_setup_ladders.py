"""A setup's ladder beside its verdict: found by equal settings, told in the text and on the page, and never judged as a training."""

import math
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import pytest

from accum_sweeps.analysis import summary
from accum_sweeps.analysis.judged import Judged, judge_table
from accum_sweeps.analysis.ladders import LADDER_COLUMNS, faults_found, ladders, setup_ladders
from accum_sweeps.analysis.load import load
from accum_sweeps.analysis.report import render_report
from accum_sweeps.plan.design import Design
from accum_sweeps.plan.judging import Judging
from accum_sweeps.plan.spec import RunSpec
from tests.analysis.roots import finish, plan, start
from tests.specs import make_spec

RIGHT = {"diagnosis": "amplified_rounding", "diagnosis_detail": "sign_flips"}
WRONG = {"diagnosis": "missing_division+reporting", "diagnosis_detail": ""}
FOUND = {"ladder_gradient": 1.6e-7, "ladder_gradient_floor": 5.4e-7}


def planned(dtype: str, **changes: object) -> list[RunSpec]:
    runs = (make_spec(dtype=dtype, seed=seed, accum=k, **changes) for seed in range(3) for k in (1, 4))
    return list(Design(ladder=True).complete(runs))


def results(root: Path, answers: Mapping[str, Mapping[str, str] | None], **changes: object) -> pd.DataFrame:
    """The table of a sweep with one setup for each dtype; None: its ladder is not done."""
    specs = [spec for dtype in answers for spec in planned(dtype, **changes)]
    sweep = plan(root, specs)
    for spec in specs:
        texts = answers[spec.setup.dtype]
        if spec.setup.measure == "training":
            finish(sweep.root, spec, 2.0 + 0.1 * spec.seed + 1e-4 * spec.accum * (spec.seed - 1))
        elif texts is None:
            start(sweep.root, spec)
        else:
            start(sweep.root, spec)
            with sweep.root.run_dir(spec.run_id, "0123456789ab").writer(1) as writer:
                writer.end("finished", 1, {f"{name}_final": value for name, value in FOUND.items()}, texts)
    return load(root)


def judged(frame: pd.DataFrame) -> Judged:
    return judge_table(frame, Judging())


def page(found: Judged) -> str:
    return render_report(found, facts={}, curves=None, distances=None)


def test_each_setup_has_the_ladder_of_its_own_settings(tmp_path: Path) -> None:
    frame = results(tmp_path, {"fp32": RIGHT, "bf16": WRONG, "fp64": None})
    found = {frame.loc[frame["setup_id"] == setup_id, "dtype"].iloc[0]: each for setup_id, each in setup_ladders(frame).items()}
    assert {dtype: (each.answer, each.status, each.accum) for dtype, each in found.items()} == {
        "fp32": ("amplified_rounding", "finished", 4),
        "bf16": ("missing_division+reporting", "finished", 4),
        "fp64": ("", "running", 4),
    }
    assert found["bf16"].faults == ("missing_division", "reporting") and found["fp32"].faults == found["fp64"].faults == ()
    assert found["fp32"].words == (
        "ladder at k=4: right, only rounding, which the optimizer makes large (sign_flips); gradient 1.6e-07 from that of one batch, "
        "rounding up to 5.4e-07"
    )
    assert found["fp64"].words == "ladder at k=4: running" and math.isnan(found["fp64"].gradient)
    table = ladders(frame)
    assert tuple(table.columns) == LADDER_COLUMNS and len(table) == 3
    assert set(table["setup_id"]) == set(frame.loc[frame["measure"] == "training", "setup_id"])


def test_settings_in_which_a_ladder_differs_do_not_part_it_from_its_setup_and_all_others_do(tmp_path: Path) -> None:
    frame = results(tmp_path, {"fp32": RIGHT}, probe_tensors=True)
    [setup_id] = setup_ladders(frame)
    for column, value in (("optimizer.lr", 0.5), ("steps", 11), ("optimizer.betas", "[0.5, 0.9]"), ("threads", 2)):
        other = frame.copy()
        other[column] = other[column].mask(other["measure"] == "ladder", value)
        assert setup_ladders(other) == {}, column
    trainings = frame[frame["measure"] == "training"]
    assert setup_ladders(trainings) == {} and ladders(trainings).empty and list(setup_ladders(frame)) == [setup_id]


def test_a_finished_ladder_goes_before_one_of_another_environment_that_failed(tmp_path: Path) -> None:
    frame = results(tmp_path, {"fp32": RIGHT})
    failed = frame[frame["measure"] == "ladder"].assign(env_id="ba9876543210", status="failed", diagnosis=None)
    for order in ([frame, failed], [failed, frame]):
        [found] = setup_ladders(pd.concat(order, ignore_index=True)).values()
        assert (found.answer, found.status) == ("amplified_rounding", "finished")


def test_the_text_tells_of_the_ladder_below_its_verdict_and_judges_trainings_alone(tmp_path: Path) -> None:
    frame = results(tmp_path, {"fp32": RIGHT, "bf16": WRONG})
    found = judged(frame)
    blocks = [" ".join(block.split()) for block in summary.render(found).split("\n\n")[1:]]
    assert len(blocks) == len(found.opening) == 2
    right, wrong = (block for block in blocks)
    assert right.endswith("ladder at k=4: " + setup_ladders(frame)[found.opening[0].setup_id].words.partition(": ")[2])
    assert "ladder at k=4: WRONG: missing_division and reporting; gradient 1.6e-07" in wrong
    assert found.left_out == judged(frame[frame["measure"] == "training"]).left_out


def test_the_page_opens_with_the_fault_and_shows_each_answer(tmp_path: Path) -> None:
    text = page(judged(results(tmp_path, {"fp32": RIGHT, "bf16": WRONG})))
    assert "The accumulation is wrong in 1 of 2 setups: the ladder found missing_division and reporting." in text
    assert '<span class="code effect">missing_division+reporting</span>' in text and ">amplified_rounding</span>" in text
    assert text.index("The accumulation is wrong") < text.index("<nav>") and 'href="audit.html"' in text


def test_a_page_without_ladders_or_faults_does_not_speak_of_them(tmp_path: Path) -> None:
    frame = results(tmp_path, {"fp32": RIGHT})
    assert "accumulation is wrong" not in page(judged(frame))
    assert "audit.html" not in page(judged(frame[frame["measure"] == "training"]))


@pytest.mark.parametrize(("fault", "expected"), [("none", ["missing_division", "reporting"]), ("missing_division", [])])
def test_a_fault_that_is_trained_with_on_purpose_is_not_found_but_built_in(tmp_path: Path, fault: str, expected: list[str]) -> None:
    frame = results(tmp_path, {"fp32": WRONG}, fault=fault)
    assert faults_found(frame) == expected
    assert faults_found(frame[frame["measure"] == "ladder"]) == ["missing_division", "reporting"]  # an audit was asked for it
