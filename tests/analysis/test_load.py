"""From a root with known runs to the table: every value, every status, and what is wrong with a source."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from accum_sweeps.analysis.export import write_tables
from accum_sweeps.analysis.load import DamagedRunWarning, load, trajectories
from accum_sweeps.analysis.table import known_columns
from accum_sweeps.analysis.tidy import TableWarning
from accum_sweeps.analysis.verdict import verdict
from accum_sweeps.plan.errors import UserError
from tests.analysis.roots import ENV, OTHER_ENV, claim, finish, plan, start
from tests.specs import make_spec

SPECS = [make_spec(seed=seed, accum=k) for seed in range(3) for k in (1, 4)]


def test_a_finished_run_is_a_row_with_its_settings_and_values(tmp_path: Path) -> None:
    sweep = plan(tmp_path, [make_spec(accum=4, seed=3, seed_data=9)])
    spec = make_spec(accum=4, seed=3, seed_data=9)
    finish(sweep.root, spec, {"eval_loss_final": 2.5, "tokens": 640, "wall_s": 1.5}, losses=[3.0, 2.75, 2.5])
    [row] = load(tmp_path).to_dict("records")
    assert (row["run_id"], row["env_id"], row["sweep"], row["setup_id"]) == (spec.run_id, ENV, "demo", spec.setup.setup_id)
    assert (row["setup"], row["cell"]) == ("lm fp32 lr=0.001", "lm fp32 lr=0.001 k=4")
    assert (row["model"], row["model.norm"], row["optimizer.lr"], row["optimizer.betas"]) == ("tiny", "rmsnorm", 1e-3, "[0.9,0.95]")
    assert (row["accum"], row["micro_batch"], row["global_batch"], row["seed"], row["seed_data"], row["seed_init"]) == (4, 4, 16, 3, 9, 3)
    assert (row["status"], row["attempt"], row["steps"], row["steps_done"], row["tokens"]) == ("finished", 1, 10, 3, 640)
    assert (row["eval_loss_final"], row["wall_s"], row["git_commit"]) == (2.5, 1.5, "c0ffee")
    assert pd.isna(row["diverged_step"]) and np.isnan(row["train_loss_final"]) and (row["revision"], row["spec_version"]) == (1, 1)


def test_dtypes_do_not_depend_on_what_is_there(tmp_path: Path) -> None:
    sweep = plan(tmp_path, SPECS)
    nothing = load(tmp_path)
    for spec in SPECS:
        finish(sweep.root, spec, {"eval_loss_final": 2.0, "tokens": 10})
    done = load(tmp_path)
    assert list(nothing.columns) == list(done.columns)
    assert nothing.dtypes.to_dict() == done.dtypes.to_dict()
    assert {str(name): str(dtype) for name, dtype in done.dtypes.items()} == {name: known_columns()[str(name)].dtype for name in done}


def test_every_status_is_a_row(tmp_path: Path) -> None:
    specs = [make_spec(seed=seed) for seed in range(6)]
    sweep = plan(tmp_path, specs)
    finish(sweep.root, specs[0], 2.0)
    finish(sweep.root, specs[1], {"diverged_step": 2}, status="diverged", losses=[1.0, float("nan")])
    start(sweep.root, specs[2], [1.0])
    start(sweep.root, specs[3], [1.0])
    with sweep.root.run_dir(specs[3].run_id, ENV).writer(1) as writer:
        writer.failed(1, "ValueError: no")
    claim(sweep.root, specs[4], pid_start=1)
    frame = load(tmp_path)
    assert frame["status"].tolist() == ["finished", "diverged", "running", "failed", "lost", "planned"]
    assert frame["diverged_step"].tolist() == [pd.NA, 2, pd.NA, pd.NA, pd.NA, pd.NA]
    assert frame["error"].isna().tolist() == [True, True, True, False, False, True] and frame["error"][3] == "ValueError: no"
    assert frame["env_id"].isna().tolist() == [False] * 5 + [True]
    sweep.set_cancelled(True)
    assert load(tmp_path)["status"].tolist() == ["finished", "diverged", "running", "failed", "cancelled", "cancelled"]


def test_a_run_done_in_two_environments_has_two_rows(tmp_path: Path) -> None:
    sweep = plan(tmp_path, SPECS)
    finish(sweep.root, SPECS[0], 2.0)
    finish(sweep.root, SPECS[0], 2.1, env_id=OTHER_ENV)
    finish(sweep.root, SPECS[1], 2.2)
    start(sweep.root, SPECS[1], env_id=OTHER_ENV, attempt=2)
    frame = load(tmp_path).query("status == 'finished'")
    found = frame[["accum", "env_id", "eval_loss_final"]].to_numpy().tolist()
    assert found == [[1, ENV, 2.0], [1, OTHER_ENV, 2.1], [4, ENV, 2.2]]


def test_runs_of_older_revisions_stay_once_they_are_done(tmp_path: Path) -> None:
    sweep = plan(tmp_path, SPECS)
    finish(sweep.root, SPECS[0], 2.0)
    plan(tmp_path, [make_spec(seed=7)])
    frame = load(tmp_path)
    assert frame["seed"].tolist() == [7, 0] and frame["revision"].tolist() == [2, 1]
    assert frame["status"].tolist() == ["planned", "finished"]


def test_an_older_plan_that_is_damaged_is_named_and_left_out(tmp_path: Path) -> None:
    sweep = plan(tmp_path, SPECS)
    plan(tmp_path, [make_spec(seed=7)])
    (sweep.path / "plan.1.jsonl").write_text("{")
    with pytest.warns(DamagedRunWarning, match=r"plan.1.jsonl is damaged"):
        assert load(tmp_path)["seed"].tolist() == [7]


def test_damage_in_another_environment_is_told_too(tmp_path: Path) -> None:
    sweep = plan(tmp_path, SPECS)
    finish(sweep.root, SPECS[0], 2.0)
    finish(sweep.root, SPECS[0], 2.0, env_id=OTHER_ENV)
    (sweep.root.run_dir(SPECS[0].run_id, OTHER_ENV).path / "spec.json").write_text("{")
    with pytest.warns(DamagedRunWarning, match=OTHER_ENV):
        assert load(tmp_path).query("status == 'finished'")["env_id"].tolist() == [ENV]


def test_all_sweeps_of_a_root_or_one(tmp_path: Path) -> None:
    sweep = plan(tmp_path, SPECS[:2], "a")
    plan(tmp_path, SPECS[1:3], "b")
    finish(sweep.root, SPECS[1], 2.0)
    assert load(tmp_path)["sweep"].tolist() == ["a", "a", "b", "b"]
    assert load(tmp_path, sweep="b")["seed"].tolist() == [0, 1]
    pd.testing.assert_frame_equal(load(tmp_path / "sweeps" / "b"), load(tmp_path, sweep="b"))
    assert len(trajectories(tmp_path)) == 2


def test_points_come_with_step_key_value_and_time(tmp_path: Path) -> None:
    sweep = plan(tmp_path, SPECS)
    finish(sweep.root, SPECS[0], 2.0, losses=[3.0, float("inf")])
    start(sweep.root, SPECS[1], [4.0])
    frame = trajectories(tmp_path)
    assert frame["run_id"].tolist() == [SPECS[0].run_id] * 2 + [SPECS[1].run_id]
    assert frame["step"].tolist() == [1, 2, 1] and frame["key"].tolist() == ["train_loss"] * 3
    assert frame["value"].tolist() == [3.0, float("inf"), 4.0]
    assert frame["time"][1] == pd.Timestamp(1_700_000_000_002, unit="ms", tz="UTC")


def test_only_points_that_count_are_points(tmp_path: Path) -> None:
    sweep = plan(tmp_path, SPECS)
    start(sweep.root, SPECS[0], [3.0, 2.9, 2.8])
    with sweep.root.run_dir(SPECS[0].run_id, ENV).writer(2) as writer:
        writer.start(1, 2)
        writer.metrics(3, {"train_loss": 2.7})
        writer.end("finished", 3, {"eval_loss_final": 2.0})
    assert trajectories(tmp_path)["value"].tolist() == [3.0, 2.9, 2.7]
    assert load(tmp_path)["attempt"][0] == 2


def test_a_damaged_directory_is_named_and_set_aside(tmp_path: Path) -> None:
    sweep = plan(tmp_path, SPECS)
    for spec in SPECS[:4]:
        finish(sweep.root, spec, 2.0)
    (sweep.root.run_dir(SPECS[0].run_id, ENV).path / "spec.json").write_text("{")
    (sweep.root.run_dir(SPECS[1].run_id, ENV).path / "env.json").unlink()
    with sweep.root.run_dir(SPECS[2].run_id, ENV).events_path(1).open("a") as file:
        file.write("not an event\n")
    with pytest.warns(DamagedRunWarning) as caught:
        frame = load(tmp_path)
    messages = [str(warning.message) for warning in caught]
    assert len(messages) == 3 and all(spec.run_id in message for spec, message in zip(SPECS, messages, strict=False))
    assert frame["status"].tolist()[:4] == ["failed", "failed", "finished", "finished"]
    assert frame["eval_loss_final"].isna().tolist()[:4] == [True, True, False, False]
    assert frame["error"][0].startswith("damaged: ")


def test_half_a_line_is_no_damage(tmp_path: Path) -> None:
    sweep = plan(tmp_path, SPECS)
    start(sweep.root, SPECS[0], [3.0])
    with sweep.root.run_dir(SPECS[0].run_id, ENV).events_path(1).open("a") as file:
        file.write('{"event":"metr')
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(trajectories(tmp_path)) == 1 and load(tmp_path)["status"][0] == "running"


def test_values_of_the_users_subject_become_columns(tmp_path: Path) -> None:
    subject = {"kind": "python", "name": "mine", "target": "m:C", "args": {"depth": 3, "rate": 0.5, "head": {"bias": True}}}
    plan(tmp_path, [make_spec(subject=subject), make_spec(subject={**subject, "args": {"depth": 4}})])
    frame = load(tmp_path)
    assert frame["subject.args.depth"].tolist() == [3, 4] and frame["subject"].tolist() == ["mine", "mine"]
    assert frame["subject.args.rate"].isna().tolist() == [False, True] and str(frame["subject.args.head.bias"].dtype) == "boolean"


def test_strings_stored_without_arrow_give_the_same_table(tmp_path: Path) -> None:
    sweep = plan(tmp_path, SPECS)
    for spec in SPECS:
        finish(sweep.root, spec, 2.0)
    expected = load(tmp_path)
    with pd.option_context("mode.string_storage", "python"):
        for frame in (load(tmp_path), load(write_tables(sweep).results_path)):
            pd.testing.assert_frame_equal(frame, expected, check_dtype=False, check_column_type=False)
            assert [each.sentence for each in verdict(frame)] == [each.sentence for each in verdict(expected)]


def test_a_root_that_cannot_be_written_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = plan(tmp_path, SPECS)
    start(sweep.root, SPECS[0])

    def refuse(folder: Path) -> float:
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr("accum_sweeps.analysis.scan.file_system_now", refuse)
    assert load(tmp_path)["status"][0] == "running"


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    sweep = plan(tmp_path, SPECS)
    for number, spec in enumerate(SPECS[:5]):
        finish(sweep.root, spec, {"eval_loss_final": 2 + number / 7, "tokens": 10}, status="diverged" if number == 4 else "finished")
    write_tables(sweep)
    return sweep.path


@pytest.mark.parametrize("name", ["results.parquet", "results.csv"])
def test_exported_files_are_the_same_table(exported: Path, name: str) -> None:
    pd.testing.assert_frame_equal(load(exported / name), load(exported))
    pd.testing.assert_frame_equal(load(exported / name, sweep="demo"), load(exported))


def test_an_exported_trajectory_is_the_same_table(exported: Path) -> None:
    pd.testing.assert_frame_equal(trajectories(exported / "trajectories.parquet"), trajectories(exported.parent.parent))


def test_what_is_no_source_is_named(tmp_path: Path, exported: Path) -> None:
    other, text, empty = tmp_path / "other.parquet", tmp_path / "notes.txt", tmp_path / "empty"
    pd.DataFrame({"a": [1]}).to_parquet(other)
    text.write_text("hello")
    empty.mkdir()
    (tmp_path / "broken.csv").write_bytes(b"")
    cases = [
        (tmp_path / "nowhere", "nowhere: no such file or folder"),
        (empty, "there is no sweep root here"),
        (text, r"notes.txt: must be one of .csv, .parquet"),
        (other, "lacks the columns run_id"),
        (tmp_path / "broken.csv", "broken.csv: cannot be read as a table"),
    ]
    for source, message in cases:
        with pytest.raises(UserError, match=message):
            load(source)
    with pytest.raises(UserError, match="is no table of trajectories"):
        trajectories(exported / "results.parquet")
    with pytest.raises(UserError, match="cannot be read as a Parquet file"):
        trajectories(text)
    for source in (tmp_path, exported / "results.csv"):
        with pytest.raises(UserError, match="did you mean demo"):
            load(source, sweep="demos")


def test_a_root_without_a_sweep_says_how_to_start_one(tmp_path: Path) -> None:
    plan(tmp_path, SPECS).path.joinpath("plan.1.jsonl").unlink()
    with pytest.raises(UserError, match="no sweep is planned in this root yet"):
        load(tmp_path)


def named(path: Path, **names: Any) -> list[list[object]]:
    found = load(path, accum="k", seed="s", response="loss", **names)
    return found[["accum", "seed", "loss"]].to_numpy(dtype=object).tolist()


TEXTS = {
    "plain.csv": "k,s,loss\n1,0,2.5\n4,0,2.625\n",
    "comments.csv": "# from a paper\n# in nats\nk,s,loss\n1,0,2.5\n4,0,2.625\n",
    "semicolons.csv": "k;s;loss\n1;0;2.5\n4;0;2.625\n",
    "tabs.tsv": "k\ts\tloss\n1\t0\t2.5\n4\t0\t2.625\n",
    "spaces.csv": "k, s, loss\n1, 0, 2.5\n4, 0, 2.625\n",
    "windows.csv": "\ufeffk,s,loss\r\n1,0,2.5\r\n4,0,2.625\r\n",
    "quotes.csv": '"k","s","loss"\n"1","0","2.5"\n"4","0","2.625"\n',
    "floats.csv": "k,s,loss\n1.0,0.0,2.5\n4.0,0.0,2.625e0\n",
    "blank_lines.csv": "k,s,loss\n\n1,0,2.5\n\n4,0,2.625\n\n",
    "wide.csv": 'k,s,note,loss\n1,0,"a, b",2.5\n4,0,,2.625\n',
}


@pytest.mark.parametrize("name", TEXTS)
def test_any_text_table_is_read_by_the_names_of_its_columns(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(TEXTS[name], encoding="utf-8", newline="")
    assert named(tmp_path / name) == [[1, 0, 2.5], [4, 0, 2.625]]
    assert set(load(tmp_path / name, accum="k", seed="s", response="loss")["setup"]) == {name.partition(".")[0]}


@pytest.mark.parametrize("dtype", [None, "category", object, "string", "str"])
def test_any_parquet_file_is_read_by_the_names_of_its_columns(tmp_path: Path, dtype: Any) -> None:
    frame = pd.DataFrame({"k": [1, 4], "s": [0, 0], "loss": [2.5, 2.625]})
    (frame if dtype is None else frame.astype(dtype)).to_parquet(tmp_path / "a.parquet")
    assert named(tmp_path / "a.parquet") == [[1, 0, 2.5], [4, 0, 2.625]]


def test_no_digit_of_a_text_table_is_lost(tmp_path: Path) -> None:
    values = [0.1 + 0.2, 13.26832732791897, 5e-99, 2.0**0.5]
    (tmp_path / "a.csv").write_text("k,s,loss\n" + "".join(f"1,{s},{value!r}\n" for s, value in enumerate(values)))
    assert [row[2] for row in named(tmp_path / "a.csv")] == values


def test_what_is_wrong_in_a_file_is_named_with_its_row(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("k,s,loss\n1,0,2.5\nfp32,0,2.6\n")
    with pytest.raises(UserError, match=r"a.csv: column 'k', row 2: 'fp32' is no accumulation factor; allowed are positive whole numbers"):
        named(tmp_path / "a.csv")
    (tmp_path / "ragged.csv").write_text("k,s,loss\n1,0,2.5\n1,0,2.5,7,8\n")
    with pytest.raises(UserError, match=r"ragged.csv: cannot be read as a table \(.*line 3"):
        named(tmp_path / "ragged.csv")
    with pytest.raises(UserError, match=r"sweep='x': .*a.csv holds no sweeps"):
        named(tmp_path / "a.csv", sweep="x")


def test_a_roots_columns_have_their_names(exported: Path) -> None:
    with pytest.raises(UserError, match="seed='seed_data': the columns of a root or sweep have their names already"):
        load(exported, seed="seed_data")
    with pytest.raises(UserError, match=r"response='eval_los_final'.*did you mean eval_loss_final"):
        load(exported, response="eval_los_final")
    for file in ("results.parquet", "results.csv"):
        with pytest.warns(TableWarning, match="taken from the columns of that name: accum, seed, replicate, status"):
            regrouped = load(exported / file, setup="dtype", response="eval_loss_final", control="control")
        assert set(regrouped["setup"]) == {"dtype=fp32"} and regrouped["status"].tolist() == load(exported)["status"].tolist()
