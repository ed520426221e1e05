"""What dispatching itself costs: claims a second, and a sweep of 20,000 empty runs.

    python tests/benchmarks/bench_dispatch.py [empty runs]

Budgets: at least 200 claims/s; a dispatcher of at most 300 MiB. Whole commands are timed in bench_peers.py.
This module also is the engine of the empty runs: their workers import it by name.
"""

import multiprocessing
import os
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from accum_sweeps.jobs.claims import take
from accum_sweeps.jobs.dispatch import dispatch
from accum_sweeps.jobs.order import Group
from accum_sweeps.jobs.resources import read_resources
from accum_sweeps.plan.spec import RunSpec
from accum_sweeps.record.store import RunDir, open_root
from accum_sweeps.record.sweep import open_sweep
from tests.specs import make_spec


def start(group: Group) -> tuple[str, dict[str, Any]]:
    """Engine of the empty runs: nothing to prepare."""
    return "e" * 12, {}


def limits(run_limit_s: float | None, **settings: Any) -> None:
    """Engine of the empty runs: nothing to bound."""


def execute(spec: RunSpec, run_dir: RunDir, attempt: int, *_: Any, **__: Any) -> str:
    """Engine of the empty runs: the shortest directory that counts as finished."""
    run_dir.path.mkdir(exist_ok=True)
    run_dir.events_path(attempt).write_text('{"event":"end","time":1,"step":1,"status":"finished","final":{}}\n')
    return "finished"


def _take_all(path: Path, runs: list[str]) -> None:
    root = open_root(path)
    for run in runs:
        take(root, run, 0, {"env_id": "e" * 12, "dispatch": "d", "expiry_s": 60.0})


def claims_per_second(folder: Path, processes: int = 8, runs: int = 1000) -> float:
    """Claims made in a second by processes that race for the same runs."""
    open_root(folder, create=True)
    ids = [f"{number:020x}" for number in range(runs)]
    racers = [multiprocessing.Process(target=_take_all, args=(folder, ids)) for _ in range(processes)]
    began = time.perf_counter()
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    return runs / (time.perf_counter() - began)


def empty_runs(folder: Path, runs: int) -> None:
    """Time a run and memory of a dispatcher whose workers have nothing to compute."""
    setup = make_spec(steps=2).setup
    streams = ("seed", "seed_init", "seed_data", "seed_dropout")
    specs = (RunSpec(setup=setup, accum=1, control="none", replicate=0, **dict.fromkeys(streams, seed)) for seed in range(runs))
    sweep = open_sweep(open_root(folder, create=True), "empty")
    plan = sweep.write_plan({"command": "bench"}, specs, {setup.setup_id: "empty"})
    began = time.perf_counter()
    result = dispatch(sweep.root, sweep, plan, read_resources({}), engine="tests.benchmarks.bench_dispatch")
    wall = time.perf_counter() - began
    assert result.counts == {"finished": runs}, result
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{runs} empty runs: {wall:.1f} s, {wall / runs * 1e3:.2f} ms a run; dispatcher {memory:.0f} MiB (budget 300)", flush=True)


def main() -> None:
    """Print the figures."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["TMPDIR"], tempfile.tempdir = name, name  # cores of our own: nothing else of ours is waited for
        print(f"claims: {claims_per_second(folder / 'claims'):.0f}/s by 8 racing processes (budget 200)", flush=True)
        empty_runs(folder / "empty", int(sys.argv[1]) if len(sys.argv) > 1 else 20_000)


if __name__ == "__main__":
    main()
