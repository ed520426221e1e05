"""What a plan refuses beyond single runs."""

from pathlib import Path

import pytest

from accum_sweeps.plan.config import read_config
from accum_sweeps.plan.errors import ConfigError
from accum_sweeps.planning import header, planned_runs


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
