"""How long a large sweep's report takes, tables included, and how much memory.

    python tests/benchmarks/bench_report.py [runs] [points a run]

The budget: 5,000 runs in at most 20 s and 1 GB, in the process of its own that a sweep ends with. Figures are of one run on one machine.
"""

import itertools
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from accum_sweeps.plan.spec import RunSpec, canonical
from accum_sweeps.record.sketches import Sketches
from accum_sweeps.record.store import RootDir, open_root
from accum_sweeps.record.sweep import SweepDir, open_sweep
from tests.specs import make_spec

ENV = "0123456789ab"
ARMS, SEEDS = (1, 2, 4, 8), 8
A_SETUP = SEEDS * (2 * len(ARMS) - 1)  # every accumulated run has a control
NOISE = 1e-4


def make_root(path: Path, runs: int, points: int) -> SweepDir:
    """A planned and finished sweep of about so many ``runs``, sketched twice each, written without syncing."""
    root = open_root(path, create=True)
    setups = max(1, round(runs / A_SETUP))
    cells = [(k, "none") for k in ARMS] + [(k, "regroup") for k in ARMS[1:]]
    places = list(itertools.product(range(setups), range(SEEDS), cells))
    specs = [make_spec(seed=seed, accum=k, control=control, **{"optimizer.lr": 1e-4 * (1 + n)}) for n, seed, (k, control) in places]
    sweep = open_sweep(root, "bench")
    sweep.write_plan({"command": "bench"}, specs, {s.setup.setup_id: f"lm-tiny adamw fp32 lr={s.setup.optimizer.lr:g}" for s in specs})
    generator = np.random.default_rng(0)
    for spec in specs:
        write_run(root, spec, points, generator)
    return sweep


def write_run(root: RootDir, spec: RunSpec, points: int, generator: np.random.Generator) -> None:
    """One finished run's directory."""
    run_dir = root.run_dir(spec.run_id, ENV)
    run_dir.path.mkdir(parents=True)
    (run_dir.path / "spec.json").write_text(canonical(spec.to_dict()))
    (run_dir.path / "env.json").write_text(canonical({"git_commit": "0" * 40, "torch": "2.13.0"}))
    (run_dir.path.parent / "claim.1").write_text("{}")
    loss = 2 + 0.01 * spec.seed + NOISE * generator.standard_normal()
    start = {"event": "start", "time": 0, "attempt": 1, "from_attempt": None, "from_step": 0}
    curve = [{"event": "metrics", "time": i, "step": i, "values": {"train_loss": loss + 1 / i, "lr": 1e-3}} for i in range(1, points + 1)]
    final = {"eval_loss_final": loss, "train_loss_area": loss + 0.1, "tokens": 1000, "steps": points, "wall_s": 0.2}
    end = {"event": "end", "time": points, "step": points, "status": "finished", "final": final}
    (run_dir.path / "events.1.jsonl").write_text("".join(json.dumps(event) + "\n" for event in (start, *curve, end)))
    steps = {step: (1 + NOISE * generator.standard_normal(4096), f"{spec.run_id}{step}") for step in (1, points)}
    Sketches(steps).save(run_dir.sketches_path(1))


def main(runs: int = 5_000, points: int = 60) -> None:
    """Print the times of one run: everything new, and once more with the tables that are there."""
    folder = Path(tempfile.mkdtemp())
    try:
        sweep = make_root(folder / "root", runs, points)
        command = [sys.executable, "-m", "accum_sweeps.reporting", str(sweep.root.path), sweep.name]
        walls = []
        for _ in range(2):
            began = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            walls.append(time.perf_counter() - began)
        size = (sweep.path / "report.html").stat().st_size / 2**20
        setups = len(sweep.read_plan().setups)
        number = len(sweep.read_plan().runs)
    finally:
        shutil.rmtree(folder)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    print(
        f"{number} runs in {setups} setups, {points} points a run: tables and report {walls[0]:.1f} s (budget 20 s), again {walls[1]:.1f} s"
    )
    print(f"  peak memory {peak:.2f} GiB (budget 1 GB), page {size:.1f} MiB")


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
