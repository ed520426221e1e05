"""How long the results table of a large sweep takes: first full scan, then from the table that is there.

    python tests/benchmarks/bench_table.py [runs] [points a run]

The budget: 20,000 finished runs load in at most 2 s (import of pandas apart). Figures are of one run on one machine.
"""

import json
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from accum_sweeps.plan.spec import RunSpec, canonical
from accum_sweeps.record.store import RootDir, open_root
from accum_sweeps.record.sweep import SweepDir, open_sweep
from tests.specs import make_spec

ENV = "0123456789ab"


def make_root(path: Path, runs: int, points: int) -> SweepDir:
    """A planned sweep of ``runs`` finished runs with ``points`` points each, written without syncing."""
    root = open_root(path, create=True)
    dtypes = ("fp32", "amp_bf16", "bf16", "fp64")
    specs = [make_spec(seed=n // 20, accum=2 ** (n % 5), dtype=dtypes[n // 5 % 4]) for n in range(runs)]
    sweep = open_sweep(root, "bench")
    sweep.write_plan({"command": "bench"}, specs, {spec.setup.setup_id: f"lm-tiny adamw {spec.setup.dtype}" for spec in specs})
    environment = canonical({"git_commit": "0" * 40, "torch": "2.13.0"})
    for number, spec in enumerate(specs):
        write_run(root, spec, number, points, environment)
    return sweep


def write_run(root: RootDir, spec: RunSpec, number: int, points: int, environment: str) -> None:
    """One finished run's directory."""
    folder = root.run_dir(spec.run_id, ENV).path
    folder.mkdir(parents=True)
    (folder / "spec.json").write_text(canonical(spec.to_dict()))
    (folder / "env.json").write_text(environment)
    (folder.parent / "claim.1").write_text("{}")
    loss = 2 + number % 97 / 1000
    start = {"event": "start", "time": 0, "attempt": 1, "from_attempt": None, "from_step": 0}
    curve = [{"event": "metrics", "time": i, "step": i, "values": {"train_loss": loss + 1 / (i + 1), "lr": 1e-3}} for i in range(points)]
    final = {"eval_loss_final": loss, "train_loss_final": loss, "tokens": 1000, "steps": points, "wall_s": 0.2}
    end = {"event": "end", "time": points, "step": points, "status": "finished", "final": final}
    (folder / "events.1.jsonl").write_text("".join(json.dumps(event) + "\n" for event in (start, *curve, end)))


def timed(action: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    """Seconds that ``action`` took, and what it gave."""
    began = time.perf_counter()
    result = action(*arguments)
    return time.perf_counter() - began, result


def main(runs: int = 20_000, points: int = 60) -> None:
    """Print the times of one run."""
    imported, _ = timed(__import__, "accum_sweeps.analysis.load")
    from accum_sweeps.analysis.export import write_tables
    from accum_sweeps.analysis.load import load
    from accum_sweeps.analysis.summary import render
    from accum_sweeps.judging import judge_sweep

    folder = Path(tempfile.mkdtemp())
    try:
        sweep = make_root(folder / "root", runs, points)
        first, tables = timed(write_tables, sweep)
        again, _ = timed(write_tables, sweep)
        from_root, results = timed(load, folder / "root")
        from_file, _ = timed(load, tables.results_path)
        from_csv, _ = timed(load, tables.csv_path)
        judging, judged = timed(judge_sweep, sweep, results, {})
        summary, _ = timed(render, judged)
    finally:
        shutil.rmtree(folder)
    if len(results) != runs or (results["status"] != "finished").any():
        raise SystemExit(f"{len(results)} rows of {runs}")
    print(f"{runs} runs of {points} points: import {imported:.2f} s, first full scan with export {first:.2f} s")
    print(f"  load(root) {from_root:.2f} s (budget 2 s), load(results.parquet) {from_file:.2f} s, load(results.csv) {from_csv:.2f} s")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"  export again {again:.2f} s, judging {judging:.2f} s, summary {summary:.2f} s, peak memory {peak:.2f} GiB")


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
