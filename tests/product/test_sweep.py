"""The whole product, as a person uses it: first run, repetition, growth, loss, many at once, interruption, bad input."""

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import accum_sweeps as acs
from tests.product.commands import Place, disk_points, mlflow_points, mlflow_rows, numbers, starts

SMALL = ("+grid=smoke", "steps=4")


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A finished small sweep; tests that change it take a copy."""
    place = Place(tmp_path_factory.mktemp("done"))
    place.type(*SMALL)
    return place


@pytest.fixture
def copy(done: Place, tmp_path: Path) -> Place:
    shutil.copytree(done.folder, tmp_path / "copy")
    place = Place(tmp_path / "copy")
    # MLflow keeps the absolute address of artifacts; nothing else depends on where a root is.
    return place


def test_a_sweep_ends_with_a_table_its_files_and_the_command_for_mlflow(done: Place) -> None:
    output = done.type(*SMALL, "action=report")
    assert "lm-tiny adamw fp32" in output and "sigma_tot" in output and "results.parquet" in output
    table = acs.load(done.root.path)
    assert len(table) == 6 and set(table["status"]) == {"finished"} and set(table["accum"]) == {1, 4}
    assert table["eval_loss_final"].between(2, 6).all()
    assert mlflow_points(done.root) == disk_points(done.root, "smoke")
    assert mlflow_rows(done.root, "SELECT count(*), count(DISTINCT status) FROM runs") == [(7, 1)]


def test_typed_again_it_starts_no_training_and_a_new_seed_only_its_own_runs(copy: Place) -> None:
    before = numbers(copy.root, "smoke")
    copy.type(*SMALL)
    assert starts(copy.root, "smoke") == 6
    copy.type(*SMALL, "axes={seed:{range:4}}")
    assert starts(copy.root, "smoke") == 8
    after = numbers(copy.root, "smoke")
    assert len(after) == 8 and {key: after[key] for key in before} == before


def test_an_overlapping_sweep_of_another_name_shares_the_runs(copy: Place) -> None:
    copy.type(*SMALL, "sweep=other", "axes={seed:[2,3]}")
    assert starts(copy.root, "other") == 4
    assert len(acs.load(copy.root.path)) == 6 + 4


def test_a_lost_tracking_database_is_rebuilt_completely(copy: Place) -> None:
    before = mlflow_points(copy.root)
    finals = "SELECT r.name, m.key, m.value FROM metrics m JOIN runs r USING (run_uuid) WHERE m.key LIKE 'final/%' ORDER BY 1, 2"
    params = "SELECT r.name, p.key, p.value FROM params p JOIN runs r USING (run_uuid) ORDER BY 1, 2"
    rows = [mlflow_rows(copy.root, finals), mlflow_rows(copy.root, params)]
    (copy.root.path / "mlflow.db").unlink()
    copy.type("sweep=smoke", "action=sync")
    assert mlflow_points(copy.root) == before
    assert [mlflow_rows(copy.root, finals), mlflow_rows(copy.root, params)] == rows


def test_eight_first_starts_at_the_same_moment_end_well(tmp_path: Path) -> None:
    place = Place(tmp_path / "eight")
    with ThreadPoolExecutor(8) as pool:
        outputs = list(pool.map(lambda _: place.type(*SMALL), range(8)))
    assert all("6 finished" in output for output in outputs)
    experiments = mlflow_rows(
        place.root, "SELECT name, (SELECT count(*) FROM runs r WHERE r.experiment_id = e.experiment_id) FROM experiments e"
    )
    assert sorted(experiments) == [("Default", 0), ("accum_sweeps", 7)]
    assert mlflow_points(place.root) == disk_points(place.root, "smoke")
    assert starts(place.root, "smoke") == 6
    place.wait_until_alone()


def test_interrupted_it_says_how_to_go_on_and_goes_on(tmp_path: Path) -> None:
    place = Place(tmp_path)
    command = place.start("+grid=smoke", "steps=4000", "eval_every=0", "axes={seed:{range:2},accum:[1]}")
    wait_for_points(place)
    command.send_signal(signal.SIGINT)
    output, _ = command.communicate(timeout=60)
    assert command.returncode == 130 and "The same command goes on where it stopped" in output
    place.wait_until_alone()
    assert "running" not in place.type("sweep=smoke", "action=status").replace("0 running", "")
    logs = place.root.path.glob("runs/*/*/*/events.1.jsonl")
    events = [json.loads(line) for file in logs for line in file.read_text().splitlines()]
    assert [event["event"] for event in events if event["event"] in ("end", "released")] == ["released", "released"]


def wait_for_points(place: Place) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        with contextlib.suppress(Exception):
            if sum("metrics" in file.read_text() for file in place.root.path.glob("runs/*/*/*/events.1.jsonl")) == 2:
                return
        time.sleep(0.1)
    raise AssertionError("no run began")


def test_cancelled_from_elsewhere_it_stops_and_the_same_command_takes_that_back(tmp_path: Path) -> None:
    place = Place(tmp_path)
    arguments = ("+grid=smoke", "steps=150", "axes={seed:{range:2},accum:[1]}")
    command = place.start(*arguments)
    wait_for_points(place)
    assert "is cancelled" in place.type("sweep=smoke", "action=cancel")
    output, _ = command.communicate(timeout=60)
    assert command.returncode == 1 and "cancelled" in output
    assert "cancelled" in place.type("sweep=smoke", "action=status")
    place.type(*arguments)
    assert len(numbers(place.root, "smoke")) == 2


def test_a_plan_writes_nothing_and_counts_what_is_done(tmp_path: Path, done: Place) -> None:
    fresh = Place(tmp_path / "fresh")
    output = fresh.type(*SMALL, "action=plan")
    assert "6 runs in 1 setup\n" in output and "how long is not known" in output
    assert [path.name for path in fresh.folder.iterdir()] == ["tmp"]
    output = done.type(*SMALL, "axes={seed:{range:5}}", "action=plan")
    assert "6 finished, 4 planned" in output and "6 done in environment" in output and "to do    4 runs, about" in output


def test_all_sweeps_of_a_root_are_listed(done: Place) -> None:
    lines = done.type("action=list").splitlines()
    assert lines[2].split()[:3] == ["smoke", "6", "6"]


def test_pruning_deletes_only_what_no_plan_holds_and_only_on_yes(copy: Place) -> None:
    assert "nothing to delete" in copy.type("action=prune")
    copy.type(*SMALL, "axes={seed:[0,1]}")  # the newest plan no longer holds seed 2
    folders = set(copy.root.path.glob("runs/*/*"))
    assert "nothing was deleted" in copy.type("action=prune", answer="n\n")
    assert set(copy.root.path.glob("runs/*/*")) == folders
    assert "deleted 2" in copy.type("action=prune", answer="y\n")
    assert len(set(copy.root.path.glob("runs/*/*"))) == 4
    assert len(acs.load(copy.root.path)) == 4


def test_pruning_keeps_what_was_planned_while_it_asked(copy: Place) -> None:
    copy.type(*SMALL, "axes={seed:[0,1]}")
    prune = copy.start("action=prune", stdin=subprocess.PIPE)
    assert prune.stdout is not None
    while "no sweep's newest plan" not in prune.stdout.readline():
        pass
    copy.type(*SMALL, "sweep=other", "axes={seed:[2],accum:[4]}")
    output, _ = prune.communicate("yes\n", timeout=60)
    assert prune.returncode == 0 and "deleted 1; kept 1 that changed meanwhile" in output
    assert len(set(copy.root.path.glob("runs/*/*"))) == 5
    assert starts(copy.root, "other") == 1, "the run was not deleted below its sweep"


def test_a_run_directory_damaged_by_hand_is_named_set_aside_and_run_again(copy: Place) -> None:
    victim = next(copy.root.path.glob("runs/*/*/*/spec.json"))
    victim.write_text("{")
    output = copy.type(*SMALL)
    assert "damaged" in output and victim.parent.parent.name in output
    assert len(numbers(copy.root, "smoke")) == 6
    assert list(victim.parent.parent.glob("*.damaged-*"))


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with little room; mounting it needs root."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_stops_the_sweep_cleanly_and_room_lets_it_go_on(tiny_disk: Path, tmp_path: Path, done: Place) -> None:
    place = Place(tiny_disk)
    elsewhere = f"tracking.uri=sqlite:///{tmp_path}/mlflow.db"
    filler = tiny_disk / "filler"
    place.type(*SMALL, elsewhere, "axes={seed:[0],accum:[1]}")
    free = os.statvfs(tiny_disk)
    filler.write_bytes(b"\0" * (free.f_bavail * free.f_frsize - 150_000))
    output = place.type(*SMALL, elsewhere, code=1)
    assert "no space left" in output.lower() and "Traceback" not in output
    place.wait_until_alone()
    filler.unlink()
    place.type(*SMALL, elsewhere)
    assert numbers(place.root, "smoke") == numbers(done.root, "smoke")


BAD = [
    (["+grid=smoek"], "smoke"),
    (["+grid=smoke", "optimizer=adamv"], "adamw"),
    (["+grid=smoke", "stpes=3"], "steps"),
    (["+grid=smoke", "steps=many"], "steps='many'"),
    (["+grid=smoke", "accum=3"], "accum=3"),
    (["+grid=smoke", "axes={accum:[1,3]}"], "does not divide the batch"),
    (["+grid=smoke", "axes={seed:[]}"], "seed"),
    (["+grid=smoke", "axes={seed:[1,1]}"], "seed"),
    (["+grid=smoke", "-m", "seed=1,2"], "axes={seed:[1,2]}"),
    (["+grid=smoke", "data=text", "data.path=/nowhere"], "/nowhere"),
    (["+grid=smoke", "data.seq_len=99999999"], "99999999"),
    (["+grid=smoke", "subject=python", "subject.target=nowhere:Setup"], "nowhere"),
    (["+grid=smoke", "subject=python", "subject.target=json:JSONDecoder"], "build"),
    (["+grid=smoke", "root=/proc/x"], "root=/proc/x"),
    (["+grid=smoke", "tracking.uri=ftp://x"], "tracking.uri"),
    (["+grid=smoke", "tracking.uri=sqlite:////etc/passwd"], "/etc/passwd"),
    (["+grid=smoke", "launcher.slots=0"], "launcher.slots"),
    (["+grid=smoke", "launcher.slots=9999"], "launcher.slots"),
    (["+grid=smoke", "launcher.slots=9999", "action=plan"], "launcher.slots"),
    (["+grid=smoke", "optimizer.lr=inf"], "optimizer.lr=inf"),
    (["+grid=smoke", "device=cuda"], "device=cuda"),
    (["+grid=smoke", "reuse=maybe"], "strict"),
    (["sweep=unknown", "action=status"], "root"),
]


@pytest.mark.parametrize(("arguments", "words"), BAD, ids=[" ".join(arguments) for arguments, _ in BAD])
def test_bad_input_is_one_clear_message_before_anything_starts(tmp_path: Path, arguments: list[str], words: str) -> None:
    if "device=cuda" in arguments and shutil.which("nvidia-smi"):
        arguments = [*arguments, "launcher.slots=99"]
        words = "launcher.slots"
    place = Place(tmp_path)
    output = place.type(*arguments, code=2)
    assert words in output and "Traceback" not in output and len(output.splitlines()) <= 8
    assert not (tmp_path / "sweeps").exists()


def test_a_root_of_a_newer_release_and_an_unsuitable_database_are_refused(copy: Place) -> None:
    uri = f"tracking.uri=sqlite:///{copy.root.path}/other.db"
    shutil.copy(copy.root.path / "mlflow.db", copy.root.path / "other.db")
    with contextlib.closing(sqlite3.connect(copy.root.path / "other.db")) as connection:
        connection.execute("UPDATE alembic_version SET version_num = 'ffffffffffff'")
        connection.commit()
    assert "newer MLflow" in copy.type(*SMALL, uri, code=2)
    (copy.root.path / "root.json").write_text('{"layout_version": 2}')
    assert "newer release" in copy.type(*SMALL, code=2)


def test_an_unreachable_server_only_lags_and_is_told_by_the_exit_code(tmp_path: Path) -> None:
    place = Place(tmp_path)
    output = place.type(*SMALL, "tracking=server", "tracking.uri=http://127.0.0.1:9", code=3)
    assert "6 finished" in output and "lags behind" in output and "action=sync" in output
    assert "MLflow is behind by" in place.type("sweep=smoke", "action=status", "tracking=server", "tracking.uri=http://127.0.0.1:9")
    place.type("sweep=smoke", "action=sync")
    assert mlflow_points(place.root) == disk_points(place.root, "smoke")
