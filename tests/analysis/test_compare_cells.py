"""Two cells against each other: which runs are paired, what is told of them, in numbers known beforehand."""

from pathlib import Path

import numpy as np
import pytest

import accum_sweeps as acs
from accum_sweeps.analysis.compare_cells import compare
from accum_sweeps.analysis.load import load
from accum_sweeps.analysis.pair_tables import pair_tables, render_pairs, write_pair_tables
from accum_sweeps.plan.errors import ConfigError
from accum_sweeps.plan.spec import RunSpec
from accum_sweeps.record.sketches import Sketches, TensorSketches
from accum_sweeps.record.sweep import SweepDir
from tests.analysis.roots import ENV, OTHER_ENV, finish, plan, start
from tests.specs import make_spec

LEFT, RIGHT = {"accum": 4}, {"accum": 2}
PAIR = {"left": LEFT, "right": RIGHT}
BASE = np.ones(4096)


def keep_sketches(sweep: SweepDir, spec: RunSpec, moved: float, step: int = 10, env_id: str = ENV) -> None:
    """Weights of two tensors: ``moved`` from BASE in one place of each, 3 and 4 times."""
    whole, tensors = BASE.copy(), np.ones((2, 512))
    whole[0] += 5 * moved
    tensors[:, 0] += np.array([3.0, 4.0]) * moved
    hashes = (f"a{moved}", f"b{moved}")
    by_tensor = TensorSketches(("a", "b"), np.array([600, 9]), tensors, hashes)
    Sketches({1: (BASE, "start"), step: (whole, f"{moved}")}, {1: by_tensor, step: by_tensor}).save(
        sweep.root.run_dir(spec.run_id, env_id).sketches_path(1)
    )


@pytest.fixture
def sweep(tmp_path: Path) -> SweepDir:
    """Seeds 0 and 1; k=4 is 0.5 from k=2 in seed 0 and equal to it in seed 1; one pair is not finished."""
    specs = [make_spec(accum=k, seed=seed) for seed in (0, 1, 2) for k in (4, 2)]
    sweep = plan(tmp_path, specs)
    for spec in specs[:4]:
        finish(sweep.root, spec, 2.0 + 0.01 * spec.accum)
        keep_sketches(sweep, spec, 0.5 if (spec.accum, spec.seed) == (4, 0) else 0.0)
    start(sweep.root, specs[4])
    finish(sweep.root, specs[5], 2.0)
    return sweep


def test_finished_runs_are_paired_by_seed_with_distances_and_losses(sweep: SweepDir) -> None:
    table = compare(sweep.root.path, left=LEFT, right=RIGHT)
    assert table[["accum", "other_accum", "seed"]].to_numpy().tolist() == [[4, 2, 0], [4, 2, 1]]
    assert table["distance"].tolist() == [2.5, 0.0]
    assert table["relative_distance"].tolist() == [2.5 / 64, 0.0]
    assert table["sum_of_norms"].tolist() == [1.5 + 2.0, 0.0]
    assert table["is_equal"].tolist() == [False, True]
    assert table["eval_loss_difference"].tolist() == pytest.approx([0.02, 0.02], rel=1e-12)


def test_runs_of_different_lengths_are_compared_after_the_last_step_of_each(tmp_path: Path) -> None:
    short, long = make_spec(), make_spec(steps=20, global_batch=8)
    sweep = plan(tmp_path, [short, long])
    for spec, moved, step in ((short, 0.5, 10), (long, 0.0, 20)):
        finish(sweep.root, spec, 2.0)
        keep_sketches(sweep, spec, moved, step)
    table = compare(tmp_path, left={"steps": 10, "global_batch": 16}, right={"steps": 20, "global_batch": 8})
    assert table[["step", "other_step", "distance"]].to_numpy().tolist() == [[10, 20, 2.5]]


def test_runs_of_different_environments_are_not_paired_unless_the_device_is_what_differs(tmp_path: Path) -> None:
    specs = [make_spec(accum=4), make_spec(accum=2), make_spec(accum=2, device="cuda")]
    sweep = plan(tmp_path, specs)
    for spec, env_id in zip(specs, (ENV, OTHER_ENV, OTHER_ENV), strict=True):
        finish(sweep.root, spec, 2.0, env_id=env_id)
    with pytest.raises(ConfigError, match="they differ in env_id"):
        compare(tmp_path, left=LEFT, right=RIGHT)
    devices = compare(tmp_path, left={"device": "cpu", "accum": 4}, right={"device": "cuda", "accum": 2})
    assert devices[["env_id", "other_env_id"]].to_numpy().tolist() == [[ENV, OTHER_ENV]]


def test_a_table_is_enough_for_the_losses_and_the_root_adds_the_weights(sweep: SweepDir) -> None:
    results = load(sweep.root.path)
    assert compare(results, left=LEFT, right=RIGHT)["distance"].isna().all()
    assert compare(results, left=LEFT, right=RIGHT, root=sweep.root.path)["distance"].tolist() == [2.5, 0.0]
    assert compare(sweep.path, left=LEFT, right=RIGHT)["distance"].tolist() == [2.5, 0.0]
    assert acs.compare is compare


def test_cells_that_match_no_runs_are_refused(sweep: SweepDir) -> None:
    with pytest.raises(ConfigError, match=r"right='accum=3': no run has this value; there are 4, 2"):
        compare(sweep.root.path, left={"accum": 4}, right={"accum": 3})


def test_the_text_gives_counts_and_means_by_setup(sweep: SweepDir) -> None:
    text = render_pairs(pair_tables(sweep.root.path, load(sweep.root.path), [PAIR]))
    assert text.splitlines()[-4:] == [
        "accum=4 against accum=2",
        "  pairs  equal  relative distance  sum of norms  eval loss  setup",
        "      2      1             0.0195          1.75      +0.02  lm fp32 lr=0.001",
        "  not finished, or done in different environments: 1 more pair of runs",
    ]
    assert max(map(len, text.splitlines())) <= 100


def test_setups_are_told_apart_and_without_sketches_the_weights_are_unknown(tmp_path: Path) -> None:
    specs = [make_spec(accum=k, dtype=dtype) for dtype in ("fp32", "fp64") for k in (4, 2)]
    sweep = plan(tmp_path, specs)
    for spec in specs:
        finish(sweep.root, spec, 2.0)
    lines = render_pairs(pair_tables(tmp_path, load(tmp_path), [PAIR])).splitlines()
    assert [line.split() for line in lines[-2:]] == [["1", "?", "-", "-", "0", "lm", dtype, "lr=0.001"] for dtype in ("fp32", "fp64")]


def test_the_tables_are_written_beside_the_results(sweep: SweepDir) -> None:
    tables = pair_tables(sweep.root.path, load(sweep.root.path), [PAIR, {"left": {"seed": 0}, "right": {"seed": 1}}])
    assert tables.pairs["pair"].tolist() == ["accum=4 against accum=2"] * 2 + ["seed=0 against seed=1"] * 2
    assert tables.tensors.query("pair == 'accum=4 against accum=2'")["distance"].tolist() == [1.5, 2.0, 0.0, 0.0]
    paths = write_pair_tables(sweep.path, tables)
    assert {label: path.name for label, path in paths.items()} == {"pairs": "pairs.csv", "by tensor": "pair_tensors.csv"}
    assert paths["pairs"].read_text().splitlines()[0].startswith("pair,run_id,env_id,setup")
    assert len(paths["by tensor"].read_text().splitlines()) == 1 + 4 * 2


def test_pairs_that_are_planned_only_are_counted(tmp_path: Path) -> None:
    specs = [make_spec(accum=k, seed=seed) for seed in (0, 1) for k in (4, 2)]
    sweep = plan(tmp_path, specs)
    for spec in specs[:3]:
        finish(sweep.root, spec, 2.0)
    tables = pair_tables(tmp_path, load(tmp_path), [PAIR])
    assert (len(tables.pairs), tables.missing) == (1, {"accum=4 against accum=2": 1})
