"""Positive controls through the whole product: what is known to change training is found, what is known not to is not.

The seeds are those that come first, 0 to 7: none was chosen by its result.
"""

import shutil
from pathlib import Path

import pytest

import accum_sweeps as acs
from accum_sweeps.analysis.verdict import Verdict
from tests.product.commands import Place, mlflow_rows

EXAMPLES = Path(__file__).parents[1] / "subjects/examples"

SMALL = (
    "global_batch=16",
    "model=tiny",
    "model.layers=1",
    "model.width=32",
    "data.seq_len=32",
    "design.control=auto",
    "tracking=none",
    "sweep=s",
)


def judged(place: Place, *arguments: str) -> tuple[Verdict, str]:
    """The verdict on the one setup of a small sweep, and what the command printed, as one line."""
    names = [text.partition("=")[0] for text in arguments]
    output = place.type(*(text for text in SMALL if text.partition("=")[0] not in names), *arguments)
    [verdict] = acs.verdict(acs.load(place.root.path, sweep="s"))
    return verdict, " ".join(output.split())


def test_correct_code_is_indistinguishable_or_equivalent(tmp_path: Path) -> None:
    verdict, output = judged(Place(tmp_path), "axes={seed:{range:8},accum:[1,2,4]}", "steps=24", "design.reruns=2")
    assert verdict.code in ("indistinguishable", "equivalent"), verdict.sentence
    assert verdict.control == "regroup" and verdict.decision is not None and verdict.decision.rounding_is_assessed
    assert "ladder at k=4: right, only rounding" in output
    assert "reruns identical in 6 of 6 cells" in output and "distance of final weights in units of that of regroup controls: " in output


@pytest.mark.parametrize(
    ("arguments", "ladder"),
    [
        (("model.norm=batchnorm",), "right, but what is trained depends on how a batch is cut (batch_statistics)"),
        (("subject.mean=micro_batch", "data.lengths=geometric"), "WRONG: mean_of_means"),
    ],
)
def test_a_real_dependence_on_the_micro_batch_is_detected(tmp_path: Path, arguments: tuple[str, ...], ladder: str) -> None:
    verdict, output = judged(Place(tmp_path), "axes={seed:{range:8},accum:[1,4,8]}", "steps=60", "optimizer.lr=1e-2", *arguments)
    assert verdict.code == "effect" and verdict.control == "ulp_weights", verdict.sentence
    assert "-> accumulation effect detected shift against k=1 at " in output
    assert "so more than rounding of the kind that the controls have" in output
    assert f"ladder at k=4: {ladder}" in output


def test_a_wrong_step_of_ones_own_is_named_beside_the_verdict_and_by_the_exit_code(tmp_path: Path) -> None:
    place = Place(tmp_path)
    shutil.copy(EXAMPLES / "mine.py", tmp_path)
    own = ("subject=python", "subject.target=mine:Mine", "global_batch=8", "steps=6", "eval_every=0", "design.control=auto", "sweep=s")
    said = place.type(*own, "axes={seed:{range:3},accum:[1,4]}", code=4)
    output = " ".join(said.split())
    assert "sweep s: 10 runs in 1 setup " in output  # six trainings, three controls, the ladder
    assert "ladder at k=4: WRONG: mean_of_means; gradient 0." in output and "Wrong: mean_of_means." in output and "audit " in output
    results = acs.load(place.root.path)
    [found] = acs.ladders(results).to_dict("records")
    assert (found["answer"], found["accum"], found["status"]) == ("mean_of_means", 4, "finished")
    assert found["setup_id"] in set(results.loc[results["measure"] == "training", "setup_id"]) and found["gradient"] > 1e3 * found["floor"]
    page = (place.root.path / "sweeps/s/report.html").read_text()
    assert "The accumulation is wrong: the ladder found mean_of_means." in page
    assert mlflow_rows(place.root, "SELECT value FROM tags WHERE key = 'diagnosis'") == [("mean_of_means",)]
    assert place.type(*own, "axes={seed:{range:3},accum:[1,4]}", code=4).count("WRONG") == 1  # typed again: the same answer


def test_a_fault_that_is_trained_with_on_purpose_is_told_and_is_no_failure(tmp_path: Path) -> None:
    axes = ("axes={seed:{range:2},dtype:[fp32,fp64],accum:[1,2]}", "steps=2", "eval_every=0", "probe_steps=[]")
    place = Place(tmp_path)
    output = " ".join(place.type(*SMALL, *axes, "fault=missing_division", "optimizer=sgd").split())
    assert output.count("ladder at k=2: WRONG: missing_division") == 2
    assert {found["answer"] for found in acs.ladders(acs.load(place.root.path)).to_dict("records")} == {"missing_division"}


def test_a_long_chaotic_training_is_told_to_shorten_the_horizon(tmp_path: Path) -> None:
    chaotic = ("steps=400", "dtype=amp_bf16", "optimizer.lr=1e-2", "optimizer.max_norm=null", "optimizer.schedule=constant")
    small = ("axes={seed:{range:4},accum:[1,2]}", "global_batch=8", "data.seq_len=16", "model.width=64", "model.layers=2", "eval_every=0")
    verdict, output = judged(Place(tmp_path), *small, *chaotic)
    assert verdict.code == "inconclusive" and verdict.decision is not None and verdict.decision.shorten_horizon, verdict.sentence
    assert "-> inconclusive: shorten the horizon no shift detected" in output
