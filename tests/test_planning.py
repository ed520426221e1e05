"""What a plan refuses beyond single runs."""

from pathlib import Path

import pytest

from accum_sweeps.plan.config import read_config
from accum_sweeps.plan.errors import ConfigError
from accum_sweeps.planning import header, labels_of, planned_runs
from accum_sweeps.record.store import open_root
from accum_sweeps.record.sweep import open_sweep


def test_a_pair_of_cells_has_to_match_runs_of_the_grid(tmp_path: Path) -> None:
    arguments = ["+grid=smoke", f"root={tmp_path}"]
    good = read_config([*arguments, "analysis.compare=[{left:{accum:4},right:{accum:1}}]"])
    assert len(planned_runs(good, tmp_path)) == 6
    assert header(good, tmp_path)["compare"] == [{"left": {"accum": 4}, "right": {"accum": 1}}]
    with pytest.raises(ConfigError, match=r"analysis.compare.right='accum=2': no run has this value; there are 1, 4"):
        planned_runs(read_config([*arguments, "analysis.compare=[{left:{accum:4},right:{accum:2}}]"]), tmp_path)


def test_a_pair_may_name_presets_of_groups(tmp_path: Path) -> None:
    words = ["+grid=smoke", f"root={tmp_path}", "axes={optimizer:[adamw,sgd],seed:{range:2}}"]
    config = read_config([*words, "analysis.compare=[{left:{optimizer:adamw},right:{optimizer:sgd}}]"])
    assert len(planned_runs(config, tmp_path)) == 8


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["analysis.response=eval_los_final"], r"analysis.response='eval_los_final': must be one of .*did you mean eval_loss_final"),
        (["analysis.response=seed"], r"analysis.response='seed': must be one of"),
        (
            ["analysis.sign_flip=true"],
            r"analysis.sign_flip=True: could never reject with 3 seeds and 2 accumulation factors; at least 7",
        ),
        (["analysis.margin_from=before"], r"analysis.margin_from='before': no sweep is planned in "),
    ],
)
def test_what_could_not_be_judged_as_asked_is_refused_before_a_run_starts(tmp_path: Path, overrides: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        planned_runs(read_config(["+grid=smoke", f"root={tmp_path}/sweeps", *overrides]), tmp_path)


def test_a_margin_comes_from_a_sweep_of_this_root_with_other_seeds(tmp_path: Path) -> None:
    root = f"root={tmp_path}/sweeps"
    specs = planned_runs(read_config(["+grid=smoke", root]), tmp_path)
    sweep = open_sweep(open_root(tmp_path / "sweeps", create=True), "before")
    sweep.write_plan({"command": "test"}, specs, labels_of(specs))
    with pytest.raises(ConfigError, match=r"analysis.margin_from='before': has the seeds 0, 1, 2 too"):
        planned_runs(read_config(["+grid=smoke", root, "analysis.margin_from=before"]), tmp_path)
    assert planned_runs(read_config(["+grid=smoke", root, "analysis.margin_from=before", "axes={seed:{range:[5,8]}}"]), tmp_path)
