"""Curves over steps, by hand: means of losses, medians of distances, bands, pairs."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from accum_sweeps.analysis.load import load, trajectories
from accum_sweeps.analysis.series import MOST_POINTS, setup_curves, sketch_distances
from accum_sweeps.record.sketches import Sketches
from accum_sweeps.record.sweep import SweepDir
from tests.analysis.roots import ENV, finish, plan
from tests.specs import make_spec

BASE = np.zeros(4096) + 1.0
NORM = 64.0


@pytest.fixture
def sweep(tmp_path: Path) -> SweepDir:
    """Two seeds at k=1 and k=4, a control of the k=4 of seed 0, a rerun of its k=1; weights moved by the number given."""
    specs = {
        (seed, k, control, replicate): make_spec(seed=seed, accum=k, control=control, replicate=replicate)
        for seed, k, control, replicate in [
            (0, 1, "none", 0),
            (0, 4, "none", 0),
            (1, 1, "none", 0),
            (1, 4, "none", 0),
            (0, 4, "regroup", 0),
            (0, 1, "none", 1),
        ]
    }
    sweep = plan(tmp_path, specs.values())
    for (seed, k, control, _), spec in specs.items():
        finish(sweep.root, spec, 2.0, losses=[3.0 + seed + k, float("nan") if (seed, k) == (1, 4) else 2.0 + seed])
        moved = BASE.copy()
        moved[0] += {("none", 1): 0.0, ("none", 4): 0.64 * (seed + 1), ("regroup", 4): 0.64 + 1.28}[control, k]
        Sketches({1: (BASE, "same"), 2: (moved, spec.run_id)}).save(sweep.root.run_dir(spec.run_id, ENV).sketches_path(1))
    return sweep


def test_losses_are_means_over_seeds_of_what_is_finite(sweep: SweepDir) -> None:
    results = load(sweep.root.path)
    curves = setup_curves(results, results["setup_id"][0], trajectories(sweep.root.path), None)
    one, four = curves.losses["train_loss"]
    assert (one.accum, one.runs, four.accum, four.runs) == (1, 2, 4, 2)  # neither the rerun nor the control
    assert one.middle.tolist() == [4.5, 2.5] and four.middle.tolist() == [7.5, 2.0]
    assert (one.low.tolist(), one.high.tolist()) == ([4.0, 2.0], [5.0, 3.0])
    assert curves.apart == () and curves.rounding is None and set(curves.losses) == {"train_loss"}


def test_distances_are_medians_over_seeds_and_the_band_is_that_of_controls_and_twins(sweep: SweepDir) -> None:
    results = load(sweep.root.path)
    apart = sketch_distances(sweep.root.path, results)
    curves = setup_curves(results, results["setup_id"][0], None, apart)
    [four] = curves.apart
    assert four.step.tolist() == [1, 2] and four.middle.tolist() == pytest.approx([0.0, 0.015])  # 0.64 and 1.28, over 64
    assert four.high.tolist() == pytest.approx([0.0, 0.02]) and four.runs == 2
    assert curves.rounding is not None and curves.rounding.runs == 1 and curves.controls == ("regroup",)
    twin = np.sqrt(NORM**2 + 2 * 0.64 + 0.64**2)
    assert curves.rounding.middle.tolist() == pytest.approx([0.0, 1.28 / twin])


def test_the_reference_can_be_another_arm(sweep: SweepDir) -> None:
    found = sketch_distances(sweep.root.path, load(sweep.root.path), reference=4)
    assert set(found.loc[found["control"] == "none", "accum"]) == {1}


def test_another_setup_has_curves_of_its_own(sweep: SweepDir) -> None:
    results = load(sweep.root.path)
    curves = setup_curves(results, "other", trajectories(sweep.root.path), sketch_distances(sweep.root.path, results))
    assert curves.losses == {} and curves.apart == ()


def test_a_table_without_runs_ids_has_no_curves(sweep: SweepDir) -> None:
    results = load(sweep.root.path).drop(columns=["run_id"])
    assert setup_curves(results, results["setup_id"][0], trajectories(sweep.root.path), None).losses == {}


def test_very_long_curves_are_thinned_and_keep_both_ends() -> None:
    steps = 10 * MOST_POINTS + 7
    results = pd.DataFrame([{"setup_id": "x", "run_id": "r", "env_id": "e", "accum": 1}])
    points = pd.DataFrame(
        {"run_id": "r", "env_id": "e", "step": range(1, steps + 1), "key": "train_loss", "value": np.arange(steps, dtype=float)}
    )
    [curve] = setup_curves(results, "x", points, None).losses["train_loss"]
    assert len(curve.step) <= MOST_POINTS and (curve.step[0], curve.step[-1]) == (1, steps)
    assert (curve.middle == curve.step - 1).all()
