"""Distances of final weights in units of what controls move: by hand, and what has no answer."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from accum_sweeps.analysis.load import load
from accum_sweeps.analysis.weight_ratios import weight_ratios
from accum_sweeps.record.sketches import Sketches
from accum_sweeps.record.sweep import SweepDir
from tests.analysis.roots import ENV, finish, plan
from tests.specs import make_spec

BASE = np.arange(4096, dtype=np.float64)


def moved(distance: float, place: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    weights = BASE.copy()
    weights[place] += distance
    return weights


def sweep_of(folder: Path, distances: Sequence[tuple[float, float]], kind: str = "regroup") -> SweepDir:
    """Seeds with (distance of k=4 from k=1, distance of the control of k=4 from k=4), along axes of their own."""
    weights = {}
    for seed, (far, noise) in enumerate(distances):
        weights[make_spec(seed=seed, accum=1)] = BASE
        weights[make_spec(seed=seed, accum=4)] = moved(far, 7)
        weights[make_spec(seed=seed, accum=4, control=kind)] = moved(far, 7) + moved(noise, 9) - BASE
    sweep = plan(folder, list(weights))
    for spec, final in weights.items():
        finish(sweep.root, spec, 2.0)
        Sketches({10: (final, f"{final.sum()!r}")}).save(sweep.root.run_dir(spec.run_id, ENV).sketches_path(1))
    return sweep


def ratios(sweep: SweepDir, **options: object) -> pd.DataFrame:
    return weight_ratios(sweep.root.path, load(sweep.root.path), **options)  # type: ignore[arg-type]


def test_the_ratio_is_the_geometric_mean_over_seeds_with_its_t_interval(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, [(2.0, 1.0), (8.0, 1.0), (4.0, 1.0)])
    [row] = ratios(sweep).to_dict("records")
    logs = np.log([2, 8, 4])
    half = 4.302652729749462 * np.std(logs, ddof=1) / math.sqrt(3)
    assert (row["accum"], row["reference"], row["control"], row["seeds"], row["identical"]) == (4, 1, "regroup", 3, 0)
    assert row["ratio"] == pytest.approx(4) and row["low"] == pytest.approx(4 * math.exp(-half))
    assert row["high"] == pytest.approx(4 * math.exp(half)) and row["p"] == row["p_holm"] == pytest.approx(0.07418, abs=1e-5)


def test_runs_or_controls_that_equal_their_twins_are_counted_and_left_out(tmp_path: Path) -> None:
    [row] = ratios(sweep_of(tmp_path, [(2.0, 1.0), (0.0, 1.0), (4.0, 0.0), (8.0, 1.0)])).to_dict("records")
    assert (row["seeds"], row["identical"], row["ratio"]) == (2, 2, pytest.approx(4))


def test_a_single_seed_has_a_ratio_and_no_test(tmp_path: Path) -> None:
    [row] = ratios(sweep_of(tmp_path, [(3.0, 1.5)])).to_dict("records")
    assert row["ratio"] == pytest.approx(2) and np.isnan([row["low"], row["p"], row["p_holm"]]).all()


def test_without_controls_or_with_another_kind_there_is_no_row(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, [(2.0, 1.0), (4.0, 1.0)])
    results = load(sweep.root.path)
    assert weight_ratios(sweep.root.path, results[results["control"] == "none"]).empty
    assert ratios(sweep, control="ulp_weights").empty


def test_a_run_without_sketches_is_a_seed_without_a_ratio(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, [(2.0, 1.0), (8.0, 1.0), (5.0, 1.0)])
    sweep.root.run_dir(make_spec(seed=2, accum=1).run_id, ENV).sketches_path(1).unlink()
    [row] = ratios(sweep).to_dict("records")
    assert (row["seeds"], row["ratio"]) == (2, pytest.approx(4))
