"""Workers and dispatchers are killed at random, again and again; the same command always mends it, bit for bit."""

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from accum_sweeps.record.state import is_alive
from tests.product.commands import Place, disk_points, mlflow_points, mlflow_rows, numbers

ROUNDS = int(os.environ.get("KILL_ROUNDS", "30"))
ARGUMENTS = ("+grid=smoke", "sweep=killed", "steps=60", "launcher.checkpoint_every=7", "launcher.stop_grace_s=10")
SIGNALS = (signal.SIGTERM, signal.SIGKILL)


def axes(seeds: int) -> str:
    return f"axes={{seed:{{range:{seeds}}},optimizer:[adamw,sgd],accum:[1,4]}}"


def living_workers(place: Place) -> Iterator[int]:
    for journal in (place.folder / "sweeps/sweeps/killed/workers").glob("*.jsonl"):
        for line in journal.read_text().splitlines():
            event = json.loads(line)
            if event["event"] in ("job", "worker") and is_alive(event["pid"], event["pid_start"]):
                yield event["pid"]


def wait_for_workers(place: Place, command: "subprocess.Popen[str]") -> None:
    """However busy the machine is: until something computes, or the command has ended."""
    until = time.monotonic() + 60
    while command.poll() is None and not any(living_workers(place)):
        assert time.monotonic() < until, "no worker came"
        time.sleep(0.1)


@pytest.mark.timeout(1200)
def test_killed_at_random_and_typed_again_it_ends_as_if_undisturbed(tmp_path: Path) -> None:
    rng = random.Random(20261130)
    place, calm = Place(tmp_path / "killed"), Place(tmp_path / "calm")
    seeds, victims = 2, {"dispatcher": 0, "worker": 0}
    for _ in range(ROUNDS):
        command = place.start(*ARGUMENTS, axes(seeds))
        if rng.random() < 0.7:  # others are killed while they start
            wait_for_workers(place, command)
        time.sleep(rng.uniform(0.0, 4.0))
        if command.poll() == 0:  # all done before anything was killed: more to do next time
            seeds += 1
        workers = list(living_workers(place))
        if workers and rng.random() < 0.5:
            os.kill(rng.choice(workers), rng.choice(SIGNALS))
            time.sleep(rng.uniform(0.0, 2.0))
            victims["worker"] += 1
        elif command.poll() is None:
            victims["dispatcher"] += 1
        if command.poll() is None:
            command.send_signal(rng.choice(SIGNALS))
        output, _ = command.communicate(timeout=60)
        assert command.returncode != 2, output
        place.wait_until_alone()
    assert min(victims.values()) >= ROUNDS // 5, victims

    place.type(*ARGUMENTS, axes(seeds))
    calm.type(*ARGUMENTS, axes(seeds))
    assert numbers(place.root, "killed") == numbers(calm.root, "killed")
    assert mlflow_points(place.root) == disk_points(place.root, "killed")
    assert mlflow_rows(place.root, "SELECT DISTINCT status FROM runs") == [("FINISHED",)]
    place.wait_until_alone()
