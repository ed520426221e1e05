"""What dispatching costs: claims a second, short runs against bare loops, and a sweep of 20,000 empty runs.

    python tests/benchmarks/bench_dispatch.py [empty runs]

Budgets: at least 200 claims/s; the whole command, MLflow included, within 1.65 times the bare loops for 16 runs of 0.2 s
and 1.5 times for 64 (at most 6.5 s and 13 s where the bare loops take 4.0 s and 8.7 s); a dispatcher of at most 300 MiB.
This module also is the engine of the empty runs: their workers import it by name.
"""

import multiprocessing
import os
import resource
import subprocess
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

STEPS, RUN_S = 60, 0.2
BARE = f"""
import json, sys, time
import torch
for run in range(int(sys.argv[1])):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    with open(f"{{sys.argv[2]}}.{{run}}", "w") as file:
        for step in range({STEPS}):
            until = time.perf_counter() + {RUN_S / STEPS}
            optimizer.zero_grad()
            loss = model(torch.ones(4, 4)).pow(2).sum()
            loss.backward()
            optimizer.step()
            file.write(json.dumps({{"step": step, "loss": loss.item()}}) + "\\n")
            while time.perf_counter() < until:
                pass
"""
HOOK = f"""
import time
import torch

class Busy:
    def build(self, config, seeds):
        return torch.nn.Linear(4, 1)

    def batch(self, step, seed):
        self.until = time.perf_counter() + {RUN_S / STEPS}
        return torch.ones(4, 4)

    def loss(self, model, samples):
        total = model(samples).pow(2).sum()
        while time.perf_counter() < self.until:
            pass
        return total, len(samples)
"""


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


def bare_s(folder: Path, runs: int) -> float:
    """Wall time of the loops alone in two processes, start included."""
    began = time.perf_counter()
    halves = [subprocess.Popen([sys.executable, "-c", BARE, str(runs // 2), str(folder / f"bare{n}")]) for n in range(2)]
    for half in halves:
        half.wait()
    return time.perf_counter() - began


def command_s(folder: Path, runs: int) -> float:
    """Wall time of the whole command: plan, workers, MLflow, tables, report."""
    (folder / "busy_hook.py").write_text(HOOK)
    arguments = ["subject=python", "subject.target=busy_hook:Busy", f"steps={STEPS}", "global_batch=4", "launcher.slots=2"]
    axes = f"axes={{seed:{{range:{runs // 2}}},accum:[1,2]}}"
    command = [sys.executable, "-m", "accum_sweeps", *arguments, axes, f"sweep=short{runs}", f"root={folder / 'root'}"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2]), "OMP_NUM_THREADS": "1"}
    began = time.perf_counter()
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise SystemExit(ended.stdout + ended.stderr)
    return time.perf_counter() - began


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
        for runs, budget in ((16, 1.65), (64, 1.5)):
            bare, ours = bare_s(folder, runs), command_s(folder, runs)
            print(
                f"{runs} runs of {RUN_S} s: bare {bare:.1f} s, command {ours:.1f} s, ratio {ours / bare:.2f} (budget {budget})", flush=True
            )
        empty_runs(folder / "empty", int(sys.argv[1]) if len(sys.argv) > 1 else 20_000)


if __name__ == "__main__":
    main()
