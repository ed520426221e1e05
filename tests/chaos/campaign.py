"""The fault campaign: sweeps on the real cluster and server, each struck once, ended by the same command, compared with undisturbed ones.

    python -m tests.chaos.campaign [--rounds 200] [--seed 1]

A round is a sweep of four runs by ``launcher=slurm launcher.wait=true tracking=server``; an event of ``tests.chaos.events`` strikes at
a random moment, is made good some seconds later, and the same command is typed until it says that all is done. At the end: the bits of
every run are those of a calm local sweep, every point is in MLflow exactly once, no run is RUNNING there, no job and no process is left.
Every second round has a node whose clock is three minutes ahead. Needs root, and what the tests of SLURM and of the tracking server need.
"""

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from accum_sweeps.record.mlflow_points import run_samples
from accum_sweeps.record.state import run_state
from accum_sweeps.record.sweep import open_sweep
from tests.chaos.events import EVENTS, Scene, until_something_computes
from tests.product.commands import Place, numbers
from tests.slurm.cluster import Cluster, wait_for
from tests.tracking.conftest import TrackingServer

GRID = ("+grid=smoke", "steps=60", "eval_every=20", "design.ladder=false", "launcher.checkpoint_every=7", "launcher.stop_grace_s=10")
CLUSTER = (
    "launcher=slurm",
    "launcher.wait=true",
    "launcher.poll_s=1",
    "launcher.heartbeat_s=0.5",
    "launcher.expiry_s=3",
    "launcher.mem_gb=1",
)
# In front of a worker: on the second node Python's clock is three minutes ahead. The file system keeps its own, as a file server does.
SKEW = """#!/bin/sh
[ "$SLURMD_NODENAME" = n1 ] || export PYTHONPATH="$(dirname "$0"):$PYTHONPATH"
exec "$@"
"""
AHEAD = """
import time

own, own_ns = time.time, time.time_ns
time.time, time.time_ns = lambda: own() + 180, lambda: own_ns() + 180 * 10**9
"""
MOST_TIMES = 6  # that the command is typed in a round
LONGEST_S = 180.0  # that a command may take
ROOT_MB = 400
EXPERIMENT = "chaos"


@dataclass
class Result:
    """Rounds by event, how often the command had to be typed, and what was lost (nothing, one hopes)."""

    rounds: Counter[str] = field(default_factory=Counter)
    typed: Counter[int] = field(default_factory=Counter)
    losses: list[str] = field(default_factory=list)


def axes(number: int) -> str:
    return f"axes={{seed:{{range:[{2 * number},{2 * number + 2}]}},accum:[1,4]}}"


def one_round(number: int, place: Place, cluster: Cluster, server: TrackingServer, rng: random.Random, result: Result) -> None:
    """Plan, strike, heal, and type the same command until it says that all is done."""
    event, name = EVENTS[number % len(EVENTS)], f"round{number}"
    arguments = [*GRID, *CLUSTER, axes(number), f"sweep={name}", "tracking=server", f"tracking.uri={server.uri}"]
    arguments.append(f"tracking.experiment={EXPERIMENT}")
    if number % 2:
        arguments.append(f"launcher.container={_skewed(place)}")
    scene = Scene(cluster, server, place.folder / "sweeps/sweeps" / name, rng)
    command = place.start(*arguments)
    if rng.random() < 0.8:
        until_something_computes(scene)
    time.sleep(rng.uniform(0.0, 3.0))
    heal = event(scene)
    time.sleep(rng.uniform(0.5, 2.0))
    heal()
    output, times = _output(command), 1
    while command.returncode != 0 and times < MOST_TIMES:
        command = place.start(*arguments)
        output, times = _output(command), times + 1
    if command.returncode != 0:
        result.losses.append(f"{name} ({event.__name__}) does not end well: {output[-2000:]}")
    result.rounds[event.__name__] += 1
    result.typed[times] += 1


def _skewed(place: Place) -> Path:
    """A program that starts another one with the clock of its node."""
    path = place.folder / "skew/start"
    if not path.exists():
        path.parent.mkdir()
        path.write_text(SKEW)
        path.chmod(0o755)
        (path.parent / "sitecustomize.py").write_text(AHEAD)
    return path


def _output(command: "subprocess.Popen[str]") -> str:
    """What the command prints until it ends; one that does not end is stopped."""
    try:
        return command.communicate(timeout=LONGEST_S)[0]
    except subprocess.TimeoutExpired:
        command.kill()
        return f"no end within {LONGEST_S:g} s\n{command.communicate()[0]}"


def compared(rounds: int, place: Place, calm: Place, server: TrackingServer) -> Iterator[str]:
    """What differs from the calm sweep, and from what MLflow is to have."""
    calm.type(*GRID, f"axes={{seed:{{range:{2 * rounds}}},accum:[1,4]}}", "sweep=calm", "tracking=none", limit_s=3600)
    expected = numbers(calm.root, "calm")
    for number in range(rounds):
        name = f"round{number}"
        states = {run.run_id: run_state(place.root, run.run_id).status for run in open_sweep(place.root, name).read_plan().runs}
        if set(states.values()) != {"finished"}:
            yield f"{name}: {states}"
            continue
        found = numbers(place.root, name)
        yield from (f"{name}: {run} has other numbers than undisturbed" for run in found if found[run] != expected[run])
        yield from _in_mlflow(place, server, name)


def _in_mlflow(place: Place, server: TrackingServer, name: str) -> Iterator[str]:
    rows = server.query(
        "SELECT i.value, m.key, m.step, m.timestamp FROM metrics m JOIN runs r USING (run_uuid) JOIN tags i USING (run_uuid) "
        f"JOIN tags s USING (run_uuid) WHERE i.key = 'run_id' AND s.key = 'sweep' AND s.value = '{name}' AND r.lifecycle_stage = 'active'"
    )
    wanted = []
    for run in open_sweep(place.root, name).read_plan().runs:
        state = run_state(place.root, run.run_id)
        kept = run_samples(place.root.run_dir(run.run_id, state.env_id).history(), 60).samples
        wanted += [(run.run_id, sample.key, sample.step, sample.time_ms) for sample in kept]
    if sorted(rows) != sorted(wanted):
        yield f"{name}: MLflow has {len(rows)} points ({len(set(rows))} different ones), {len(wanted)} are to be there"


def campaign(folder: Path, rounds: int, seed: int) -> Result:
    """All of it, in ``folder``, whose ``sweeps`` are on a small file system of their own."""
    rng, result = random.Random(seed), Result()
    place, calm = Place(folder / "struck"), Place(folder / "calm")
    server, cluster = TrackingServer(folder / "server"), Cluster(folder / "cluster")
    before = dict(os.environ)
    with _small_disk(place.folder / "sweeps"):
        try:
            server.start()
            cluster.start()
            os.environ.update(cluster.environment)
            for number in range(rounds):
                began = time.monotonic()
                one_round(number, place, cluster, server, rng, result)
                words = f"round {number + 1} of {rounds}: {EVENTS[number % len(EVENTS)].__name__}, {time.monotonic() - began:.0f} s"
                print(f"{words}; lost {len(result.losses)}", file=sys.stderr, flush=True)
            wait_for(lambda: not cluster.jobs(), f"jobs are left: {cluster.jobs()}", 90)
            result.losses += compared(rounds, place, calm, server)
            running = server.query("SELECT count(*) FROM runs WHERE status = 'RUNNING' AND lifecycle_stage = 'active'")
            result.losses += [f"{count} runs are RUNNING in MLflow" for (count,) in running if count]
            place.wait_until_alone()
        finally:
            os.environ.clear()
            os.environ.update(before)
            cluster.close()
            server.stop()
    return result


@contextlib.contextmanager
def _small_disk(folder: Path) -> Iterator[None]:
    """A file system of ROOT_MB at ``folder``, so that filling it harms nobody else."""
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={ROOT_MB}m,mode=0700", "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def main() -> int:
    """Print the result; exit code 1 where something was lost."""
    parser = argparse.ArgumentParser(description="The fault campaign.")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that nothing is left running
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="accum_sweeps_chaos_") as temporary:
        folder = Path(temporary)
        folder.chmod(0o711)
        result = campaign(folder, given.rounds, given.seed)
    events = ", ".join(f"{name} {count}" for name, count in sorted(result.rounds.items()))
    typed = ", ".join(f"{times}: {count}" for times, count in sorted(result.typed.items()))
    print(f"{given.rounds} rounds in {(time.monotonic() - began) / 60:.0f} min: {events}")
    print(f"rounds by how often the command was typed: {typed}")
    print(f"losses: {len(result.losses)}")
    print("\n".join(result.losses))
    return 1 if result.losses else 0


if __name__ == "__main__":
    sys.exit(main())
