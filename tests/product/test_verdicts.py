"""Positive controls through the whole product: what is known to change training is found, what is known not to is not.

The seeds are those that come first, 0 to 7: none was chosen by its result.
"""

from pathlib import Path

import pytest

import accum_sweeps as acs
from accum_sweeps.analysis.verdict import Verdict
from tests.product.commands import Place

GRID = ("axes={seed:{range:8},accum:[1,2,4]}", "global_batch=16", "model=tiny", "data.seq_len=32", "design.control=auto", "tracking=none")


def judged(place: Place, *arguments: str) -> tuple[Verdict, str]:
    """The verdict on the one setup of a small sweep, and what the command printed."""
    output = place.type(*GRID, "sweep=s", *arguments)
    [verdict] = acs.verdict(acs.load(place.root.path, sweep="s"))
    return verdict, output


def test_correct_code_is_indistinguishable_or_equivalent(tmp_path: Path) -> None:
    verdict, output = judged(Place(tmp_path), "steps=24", "design.reruns=2")
    assert verdict.code in ("indistinguishable", "equivalent"), verdict.sentence
    assert verdict.control == "regroup" and verdict.decision is not None and verdict.decision.rounding_is_assessed
    assert "reruns identical in 6 of 6 cells" in output and "distance of final weights in units of that of regroup controls: " in output


@pytest.mark.parametrize(
    ("arguments", "control"),
    [
        (("model.norm=batchnorm", "steps=24"), "ulp_weights"),
        (("subject.mean=micro_batch", "data.lengths=geometric", "steps=24"), "ulp_weights"),
    ],
)
def test_a_real_dependence_on_the_micro_batch_is_detected(tmp_path: Path, arguments: tuple[str, ...], control: str) -> None:
    verdict, output = judged(Place(tmp_path), *arguments)
    assert verdict.code == "effect" and verdict.control == control, verdict.sentence
    assert "accumulation effect detected: " in " ".join(output.split())


def test_a_long_chaotic_training_is_told_to_shorten_the_horizon(tmp_path: Path) -> None:
    chaotic = (
        "optimizer.lr=1e-2",
        "optimizer.max_norm=null",
        "optimizer.schedule=constant",
        "steps=400",
        "dtype=amp_bf16",
        "data.seq_len=16",
    )
    arguments = [text for text in GRID if not text.startswith("data.seq_len")]
    place = Place(tmp_path)
    output = place.type(*arguments, "sweep=s", *chaotic)
    [verdict] = acs.verdict(acs.load(place.root.path, sweep="s"))
    assert verdict.code == "inconclusive" and verdict.decision is not None and verdict.decision.shorten_horizon, verdict.sentence
    assert "inconclusive: shorten the horizon" in output
