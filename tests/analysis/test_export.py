"""Tables on disk: up to date, built on what is there, whole or absent."""

from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

from accum_sweeps.analysis import outcomes, scan
from accum_sweeps.analysis.export import read_earlier, write_tables
from accum_sweeps.analysis.load import load, trajectories
from accum_sweeps.record.sweep import SweepDir
from tests.analysis.roots import ENV, OTHER_ENV, finish, plan, start
from tests.specs import make_spec

SPECS = [make_spec(seed=seed, accum=k) for seed in range(2) for k in (1, 4)]


@pytest.fixture
def sweep(tmp_path: Path) -> SweepDir:
    sweep = plan(tmp_path, SPECS)
    finish(sweep.root, SPECS[0], 2.0)
    finish(sweep.root, SPECS[1], {"diverged_step": 2}, status="diverged", losses=[1.0, float("nan")])
    start(sweep.root, SPECS[2], [5.0])
    return sweep


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The runs whose directories are read."""
    found: list[str] = []
    real = outcomes.read_outcomes

    def counted(root: object, run_id: str, now: float | None = None) -> object:
        found.append(run_id)
        return real(root, run_id, now)  # type: ignore[arg-type]

    monkeypatch.setattr(scan, "read_outcomes", counted)
    return found


def test_tables_hold_results_and_points(sweep: SweepDir) -> None:
    tables = write_tables(sweep)
    assert tables.problems == ()
    assert tables.results["status"].tolist() == ["finished", "diverged", "running", "planned"]
    pd.testing.assert_frame_equal(pd.read_parquet(tables.results_path), tables.results)
    assert len(tables.csv_path.read_text().splitlines()) == 5
    assert pd.read_parquet(tables.trajectories_path)["step"].tolist() == [1, 2, 1, 2, 1]
    for path in (tables.results_path, tables.trajectories_path):
        schema = pq.read_schema(path)
        assert schema.metadata[b"schema_version"] == b"1"
        assert all(field.metadata[b"meaning"] for field in schema)


def test_values_named_like_a_config_group_stay_in_the_table(sweep: SweepDir) -> None:
    finish(sweep.root, SPECS[3], {"eval_loss_final": 2.0, "model.norm_out_final": 0.5, "data.seconds_final": 3.0, "model.norm": 7.0})
    for _ in range(2):  # the second table is built on the first
        results = write_tables(sweep).results
        assert results.columns.is_unique
        assert results[["model.norm_out_final", "data.seconds_final"]].to_numpy(dtype=float)[3].tolist() == [0.5, 3.0]
        assert set(results["model.norm"]) == {"rmsnorm"}, "a setting keeps its column"


def test_what_is_done_is_not_read_again(sweep: SweepDir, reads: list[str]) -> None:
    first = write_tables(sweep)
    assert reads == [spec.run_id for spec in SPECS]
    reads.clear()
    second = write_tables(sweep)
    assert reads == [SPECS[2].run_id, SPECS[3].run_id]
    pd.testing.assert_frame_equal(second.results, first.results)
    reads.clear()
    load(sweep.root.path)
    assert reads == [SPECS[2].run_id, SPECS[3].run_id]


def test_later_runs_are_added_and_points_of_running_ones_replaced(sweep: SweepDir) -> None:
    write_tables(sweep)
    with sweep.root.run_dir(SPECS[2].run_id, ENV).writer(1) as writer:
        writer.metrics(2, {"train_loss": 4.0})
        writer.end("finished", 2, {"eval_loss_final": 3.0})
    finish(sweep.root, SPECS[3], 3.5)
    tables = write_tables(sweep)
    assert tables.results["status"].tolist() == ["finished", "diverged", "finished", "finished"]
    points = pd.read_parquet(tables.trajectories_path)
    assert points.groupby("run_id")["step"].apply(list).to_dict() == {spec.run_id: [1, 2] for spec in SPECS}
    sweep_again = write_tables(sweep)
    pd.testing.assert_frame_equal(sweep_again.results, tables.results)


def test_building_on_earlier_tables_gives_what_a_full_scan_gives(sweep: SweepDir) -> None:
    write_tables(sweep)
    finish(sweep.root, SPECS[3], 3.5)
    built = write_tables(sweep)
    points = trajectories(built.trajectories_path)
    for path in (built.results_path, built.csv_path, built.trajectories_path):
        path.unlink()
    afresh = write_tables(sweep)
    pd.testing.assert_frame_equal(afresh.results, built.results)
    order = ["run_id", "env_id", "step", "key"]
    full = trajectories(afresh.trajectories_path)
    words = {"run_id": str, "env_id": str, "key": str}
    expected, found = (frame.astype(words).sort_values(order, ignore_index=True) for frame in (full, points))
    pd.testing.assert_frame_equal(found, expected)


def test_nothing_new_leaves_the_points_file_alone(sweep: SweepDir) -> None:
    with sweep.root.run_dir(SPECS[2].run_id, ENV).writer(1) as writer:
        writer.end("finished", 1, {"eval_loss_final": 3.0})
    finish(sweep.root, SPECS[3], 3.5)
    path = write_tables(sweep).trajectories_path
    before = path.stat().st_ino
    write_tables(sweep)
    assert path.stat().st_ino == before


def test_a_removed_directory_is_planned_again(sweep: SweepDir) -> None:
    write_tables(sweep)
    folder = sweep.root.run_folder(SPECS[0].run_id)
    folder.rename(folder.with_name("gone"))
    tables = write_tables(sweep)
    assert tables.results["status"].tolist() == ["planned", "diverged", "running", "planned"]
    assert tables.results["eval_loss_final"].isna().all()
    assert SPECS[0].run_id not in set(pd.read_parquet(tables.trajectories_path)["run_id"])


def test_a_second_environment_is_seen_although_the_first_is_known(sweep: SweepDir) -> None:
    write_tables(sweep)
    finish(sweep.root, SPECS[0], 2.25, env_id=OTHER_ENV)
    assert write_tables(sweep).results.query("seed == 0 and accum == 1")["eval_loss_final"].tolist() == [2.0, 2.25]


@pytest.mark.parametrize("damage", ["results", "trajectories", "other export"])
def test_tables_that_cannot_be_built_on_are_made_anew(sweep: SweepDir, damage: str) -> None:
    first = write_tables(sweep)
    points = trajectories(first.trajectories_path)
    if damage == "other export":
        old = first.trajectories_path.read_bytes()
        finish(sweep.root, SPECS[3], 3.5)
        write_tables(sweep)
        first.trajectories_path.write_bytes(old)
    else:
        (first.results_path if damage == "results" else first.trajectories_path).write_bytes(b"PAR1 damaged")
    again = write_tables(sweep)
    assert len(trajectories(again.trajectories_path)) == len(points) + (2 if damage == "other export" else 0)
    assert again.results["status"].tolist()[:3] == ["finished", "diverged", "running"]


def test_a_table_of_another_version_is_not_built_on(sweep: SweepDir) -> None:
    path = write_tables(sweep).results_path
    table = pq.read_table(path)
    assert read_earlier(path) is not None
    pq.write_table(table.replace_schema_metadata({**table.schema.metadata, b"schema_version": b"99"}), path)
    assert read_earlier(path) is None and read_earlier(path.with_name("none.parquet")) is None
    assert write_tables(sweep).results["status"].tolist() == ["finished", "diverged", "running", "planned"]


def test_a_failed_write_leaves_the_earlier_tables(sweep: SweepDir, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = write_tables(sweep)
    before = {path.name: path.read_bytes() for path in sorted(sweep.path.iterdir()) if path.is_file()}
    finish(sweep.root, SPECS[3], 3.5)

    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("accum_sweeps.analysis.trajectories._table", no_space)
    with pytest.raises(OSError, match="No space left"):
        write_tables(sweep)
    assert {path.name: path.read_bytes() for path in sorted(sweep.path.iterdir()) if path.is_file()} == before
    assert tables.results_path.exists()


def test_damage_is_named_in_the_result(sweep: SweepDir) -> None:
    path = sweep.root.run_dir(SPECS[0].run_id, ENV).path
    (path / "spec.json").write_text("[]")
    [problem] = write_tables(sweep).problems
    assert str(path) in problem


def test_memory_of_the_points_is_bounded_by_batches(sweep: SweepDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accum_sweeps.analysis.trajectories.ROWS_A_BATCH", 2)
    path = write_tables(sweep).trajectories_path
    assert pq.ParquetFile(path).num_row_groups == 3
    finish(sweep.root, SPECS[3], 3.5)
    points = pd.read_parquet(write_tables(sweep).trajectories_path)
    assert sorted(points.groupby("run_id").size().tolist()) == [1, 2, 2, 2]
