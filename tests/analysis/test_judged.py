"""A table judged whole: which responses, with which margins, and what is said to be left out."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from accum_sweeps.analysis.judged import Judged, judge_table
from accum_sweeps.analysis.load import load
from accum_sweeps.analysis.margin import MarginSource
from accum_sweeps.plan.errors import UserError
from accum_sweeps.plan.judging import Judging
from tests.analysis.roots import ENV, table
from tests.analysis.test_weight_ratios import sweep_of
from tests.specs import make_spec

DRAWN = np.random.default_rng(11)
BASE = 2 + 0.1 * DRAWN.standard_normal(6)


def runs(**columns: Any) -> pd.DataFrame:
    frame = table({k: (BASE + 1e-4 * DRAWN.standard_normal(6)).tolist() for k in (1, 2, 4)}, control="none", replicate=0, **columns)
    return frame.assign(train_loss_area=3 * frame["eval_loss_final"], eval_perplexity_final=np.exp(frame["eval_loss_final"]))


def judged(frame: pd.DataFrame, **judging: Any) -> Judged:
    return judge_table(frame, Judging(**judging))


def test_the_opening_response_comes_first_and_those_of_every_sweep_follow() -> None:
    assert list(judged(runs()).verdicts) == ["eval_loss_final", "train_loss_area"]
    assert list(judged(runs(), response="train_loss_area").verdicts) == ["train_loss_area", "eval_loss_final"]
    assert list(judged(runs().assign(train_loss_area=np.nan)).verdicts) == ["eval_loss_final"]
    found = judged(runs(), margins={"eval_perplexity_final": 0.1})
    assert list(found.verdicts) == ["eval_loss_final", "train_loss_area", "eval_perplexity_final"]
    assert found.opening[0].response == "eval_loss_final" and list(found.components) == list(found.verdicts)


def test_a_margin_belongs_to_its_response_and_the_others_take_that_of_the_reference_arm() -> None:
    source = MarginSource(words="fixed in the plan", is_late=False)
    found = judge_table(runs(), Judging(margins={"eval_loss_final": 0.25}), margin_source=source)
    loss, area = (verdicts[0].margin for verdicts in found.verdicts.values())
    assert (loss.value, loss.source) == (0.25, "fixed in the plan")
    assert area.value is not None and area.source.endswith("SD of the reference arm (6 seeds)")


def test_scale_of_the_response_changes_no_code() -> None:
    found = judged(runs())
    assert [verdicts[0].code for verdicts in found.verdicts.values()] == ["equivalent"] * 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda f: f.assign(status=f["status"].mask(f["seed"] == 0, "failed")), "failed runs: 3"),
        (
            lambda f: f.assign(eval_loss_final=f["eval_loss_final"].mask(f["seed"] == 0)),
            "lm: 3 finished runs without a finite eval_loss_final",
        ),
        (lambda f: f.assign(status=f["status"].mask(f["seed"] == 0, "failed")), "lm: 1 of 6 seeds is incomplete"),
        (
            lambda f: pd.concat([f, f.query("seed < 2").assign(replicate=1, eval_loss_final=2.5)]),
            "lm: reruns of 6 of 18 cells count for the components; the paired tests use each cell's first run",
        ),
        (
            lambda f: pd.concat([f, f.query("accum > 1").assign(control="regroup"), f.query("seed == 1").assign(control="permute")]),
            "lm: permute controls are not mixed with those of kind regroup, so they are not used",
        ),
        (
            lambda f: f.assign(env_id=np.where((f["accum"] == 4) & (f["seed"] == 3), "b", "a")),
            "lm: seed 3 was run in several environments; only the one with most arms is compared",
        ),
    ],
)
def test_what_is_left_out_is_said(change: object, words: str) -> None:
    assert any(sentence.startswith(words) for sentence in judged(change(runs())).left_out)  # type: ignore[operator]


def test_of_a_complete_table_nothing_is_left_out() -> None:
    complete = pd.concat([runs(), runs().query("accum > 1").assign(control="regroup")])
    assert judged(complete).left_out == ()


def test_a_response_that_is_not_there_is_named() -> None:
    with pytest.raises(UserError, match=r"response='eval_los_final': .*did you mean eval_loss_final"):
        judged(runs(), response="eval_los_final")


def test_a_damaged_file_of_sketches_leaves_the_verdict(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, [(2.0, 1.0), (8.0, 1.0), (4.0, 1.0)])
    results = load(sweep.root.path)
    whole = judge_table(results, Judging(), root=sweep.root.path)
    assert len(whole.weights) == 1 and whole.left_out == ()
    path = sweep.root.run_dir(make_spec(seed=1, accum=4).run_id, ENV).sketches_path(1)
    path.write_bytes(path.read_bytes()[:100])
    found = judge_table(results, Judging(), root=sweep.root.path)
    assert found.weights.empty and found.opening[0].code == whole.opening[0].code
    assert len(found.left_out) == 1 and found.left_out[0].startswith(f"distances of final weights: {path}: cannot be read")
