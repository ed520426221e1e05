"""Sweeps with data-parallel ranks through the command: same numbers as one rank, and no process left however they end."""

import contextlib
import json
import os
import signal
import time
from pathlib import Path

import pytest

import accum_sweeps as acs
from accum_sweeps.plan.errors import UserError
from tests.product.commands import Place, numbers

SMALL = ("+grid=smoke", "sweep=ranks", "model.width=32", "model.ffn_width=64", "data.seq_len=32", "tracking=none")


def test_a_sweep_over_ranks_gives_the_same_numbers_by_workers_and_inline(tmp_path: Path) -> None:
    arguments = (*SMALL, "steps=4", "eval_every=0", "axes={seed:[0],accum:[1,2],ranks:[1,2]}")
    place, inline = Place(tmp_path / "local"), Place(tmp_path / "inline")
    assert "4 finished" in place.type(*arguments)
    table = acs.load(place.root.path).set_index(["ranks", "accum"])
    run_ids = table["run_id"].to_dict()
    assert table["micro_batch"].to_dict() == {(1, 1): 8, (1, 2): 4, (2, 1): 4, (2, 2): 2}
    assert table["tokens"].nunique() == 1, "the tokens of both ranks"
    # Two micro-batches by one process or by two: the same sums, and a + b = b + a.
    found = numbers(place.root, "ranks")
    assert found[run_ids[2, 1]] == found[run_ids[1, 2]]
    inline.type(*arguments, "launcher=inline")
    assert numbers(inline.root, "ranks") == found
    place.wait_until_alone()
    inline.wait_until_alone()


def test_fewer_slots_than_ranks_are_refused_when_the_sweep_is_planned(tmp_path: Path) -> None:
    output = Place(tmp_path).type(*SMALL, "ranks=2", "launcher.slots=1", code=2)
    assert "ranks=2: takes 2 slots" in output and "Traceback" not in output and not (tmp_path / "sweeps").exists()


@pytest.mark.timeout(600)
def test_killed_and_interrupted_it_leaves_nobody_behind_and_ends_as_if_undisturbed(tmp_path: Path) -> None:
    launcher = ("launcher.checkpoint_every=5", "launcher.max_attempts=9")
    arguments = (*SMALL, "steps=300", "eval_every=0", "ranks=2", "axes={seed:[0],accum:[2]}", *launcher)
    place, calm = Place(tmp_path / "killed"), Place(tmp_path / "calm")
    command = place.start(*arguments)
    os.kill(rank_1(place, attempt=1), signal.SIGKILL)
    second = rank_1(place, attempt=2)
    os.kill(second, signal.SIGTERM)  # changes nothing: rank 0 decides
    worker = int(Path(f"/proc/{second}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(worker, signal.SIGKILL)
    rank_1(place, attempt=3)
    assert second not in place.processes()
    command.send_signal(signal.SIGINT)
    output, _ = command.communicate(timeout=120)
    assert command.returncode == 130, output
    assert "rank 1, the second process of the run, was killed by SIGKILL" in output
    place.wait_until_alone()

    place.type(*arguments)
    calm.type(*arguments)
    assert numbers(place.root, "ranks") == numbers(calm.root, "ranks")
    place.wait_until_alone()


def rank_1(place: Place, attempt: int, limit_s: float = 120.0) -> int:
    """The process of rank 1, once the attempt has saved a checkpoint."""
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        with contextlib.suppress(OSError, ValueError, UserError):
            [events] = place.root.path.glob(f"runs/*/*/*/events.{attempt}.jsonl")
            if any(json.loads(line)["event"] == "checkpoint" for line in events.read_text().splitlines()):
                [pid] = [pid for pid, command in place.processes().items() if "rank_process" in command]
                return pid
        time.sleep(0.05)
    raise AssertionError(f"attempt {attempt} did not get far enough")
