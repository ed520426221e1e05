"""Distances between runs, from sketches with known contents."""

from pathlib import Path

import numpy as np
import pytest

from accum_sweeps.analysis.distances import distances, reference_pairs
from accum_sweeps.analysis.load import load
from accum_sweeps.plan.errors import UserError
from accum_sweeps.record.sketches import Sketches
from accum_sweeps.record.sweep import SweepDir
from tests.analysis.roots import ENV, finish, plan
from tests.specs import make_spec

ONE, FOUR, OTHER = make_spec(), make_spec(accum=4), make_spec(seed=1, accum=4)
BASE = np.arange(4096, dtype=np.float64)


@pytest.fixture
def sweep(tmp_path: Path) -> SweepDir:
    sweep = plan(tmp_path, [ONE, FOUR, OTHER])
    moved = BASE.copy()
    moved[7] += 3.0
    for spec, late in ((ONE, BASE), (FOUR, moved), (OTHER, 2 * BASE)):
        finish(sweep.root, spec, 2.0)
        by_step = {1: (BASE, "same"), 10: (late, spec.run_id)}
        Sketches(by_step).save(sweep.root.run_dir(spec.run_id, ENV).sketches_path(1))
    return sweep


def test_distances_by_hand(sweep: SweepDir) -> None:
    frame = distances(sweep.root.path, [(FOUR.run_id, ENV, ONE.run_id, ENV)])
    assert frame["step"].tolist() == [1, 10]
    assert frame["distance"].tolist() == [0.0, 3.0]
    assert frame["relative_distance"].tolist() == [0.0, 3.0 / np.linalg.norm(BASE)]
    assert frame["is_equal"].tolist() == [True, False]


def test_any_two_runs_can_be_compared(sweep: SweepDir) -> None:
    frame = distances(sweep.root.path, [(OTHER.run_id, ENV, ONE.run_id, ENV), (ONE.run_id, ENV, ONE.run_id, ENV)])
    assert frame.query("step == 10")["relative_distance"].tolist() == pytest.approx([1.0, 0.0])


def test_pairs_are_made_of_the_same_seed_and_environment(sweep: SweepDir) -> None:
    pairs = reference_pairs(load(sweep.root.path))
    assert pairs[["run_id", "other_run_id", "accum", "seed"]].values.tolist() == [[FOUR.run_id, ONE.run_id, 4, 0]]
    frame = distances(sweep.root.path, pairs)
    assert frame[["accum", "seed", "step", "distance"]].to_numpy().tolist() == [[4, 0, 1, 0.0], [4, 0, 10, 3.0]]
    assert reference_pairs(load(sweep.root.path), reference=4)["run_id"].tolist() == [ONE.run_id]


def test_a_run_without_sketches_gives_no_row(sweep: SweepDir) -> None:
    sweep.root.run_dir(ONE.run_id, ENV).sketches_path(1).unlink()
    frame = distances(sweep.root.path, [(FOUR.run_id, ENV, ONE.run_id, ENV), (FOUR.run_id, ENV, "f" * 20, ENV)])
    assert frame.empty and "relative_distance" in frame


def test_a_damaged_file_is_named(sweep: SweepDir) -> None:
    path = sweep.root.run_dir(ONE.run_id, ENV).sketches_path(1)
    path.write_bytes(b"PK damaged")
    with pytest.raises(UserError, match=r"sketches.1.npz: cannot be read as sketches"):
        distances(sweep.root.path, [(FOUR.run_id, ENV, ONE.run_id, ENV)])


def test_weights_of_norm_zero_have_no_relative_distance(sweep: SweepDir) -> None:
    run_dir = sweep.root.run_dir(ONE.run_id, ENV)
    Sketches({10: (np.zeros(4096), "zero")}).save(run_dir.sketches_path(1))
    [row] = distances(sweep.root.path, [(FOUR.run_id, ENV, ONE.run_id, ENV)]).to_dict("records")
    assert row["distance"] > 0 and np.isnan(row["relative_distance"])
