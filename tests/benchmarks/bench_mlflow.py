"""How fast run directories get into MLflow, beside MLflow's own client fed with the same runs.

    python tests/benchmarks/bench_mlflow.py [runs]

The budget: at least 5,000 points a second into SQLite on one core, creation of the runs included. A point is one value of
one metric. Figures are of one run on one machine.
"""

import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from accum_sweeps.plan.spec import RunSpec
from accum_sweeps.record.mlflow_sqlite import SqliteTracker
from accum_sweeps.record.mlflow_sync import lag, prepare, sync
from tests.record.replays import EXPERIMENT, Sweep, make_sweep, rows
from tests.specs import make_spec

POINTS, KEYS = 60, 4
BUDGET = 5000


def timed(action: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    """Seconds that ``action`` took, and what it gave."""
    began = time.perf_counter()
    result = action(*arguments)
    return time.perf_counter() - began, result


def make_runs(folder: Path, specs: Iterable[RunSpec], steps: int) -> Sweep:
    """A sweep of finished runs with KEYS metrics at each of ``steps`` steps."""
    sweep = make_sweep(folder, specs)
    for spec in sweep.specs:
        with sweep.claim(spec, 1).writer(1) as writer:
            writer.start(None, 0)
            for step in range(1, steps + 1):
                writer.metrics(step, {f"metric_{key}": step / (key + 1) for key in range(KEYS)})
            writer.end("finished", steps, {"eval_loss_final": 1.0})
    return sweep


def replay(sweep: Sweep, name: str) -> tuple[float, int]:
    """Seconds of a replay into a new, prepared database, and the points that it sent."""
    uri = f"sqlite:///{sweep.root.path / name}"
    prepare(uri, EXPERIMENT)
    seconds, report = timed(sync, sweep.root.path, "grid", uri, EXPERIMENT)
    ((stored,),) = rows(sweep.root.path / name, "SELECT count(*) FROM metrics")
    assert stored == report.samples
    return seconds, report.samples


def replay_by_client(sweep: Sweep) -> tuple[float, int]:
    """The same through MLflow's client: a call for parameters, one for metrics, one for the state of each run."""
    with mock.patch.object(SqliteTracker, "open", return_value=None):
        replay(sweep, "warm.db")  # imports MLflow
        return replay(sweep, "client.db")


def log_step_by_step(folder: Path, runs: int) -> tuple[float, int]:
    """What a training script does that calls mlflow.log_metrics at each step."""
    from mlflow import MlflowClient
    from mlflow.entities import Metric

    prepared = prepare(f"sqlite:///{folder / 'steps.db'}", EXPERIMENT)
    client = MlflowClient(prepared.uri)
    began = time.perf_counter()
    for _ in range(runs):
        run = client.create_run(prepared.experiment_id).info.run_id
        for step in range(POINTS):
            client.log_batch(run, metrics=[Metric(f"metric_{key}", 1.0, 1, step) for key in range(KEYS)])
        client.set_terminated(run)
    return time.perf_counter() - began, runs * POINTS * KEYS


def main(runs: int = 64) -> None:
    """Print the figures of one run."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        os.environ["MLFLOW_SQLALCHEMYSTORE_POOLCLASS"] = "QueuePool"  # MLflow's own choice, its quickest
        for words, name in (("first database ever", "a"), ("next database", "b"), ("database that exists", "b")):
            seconds, _ = timed(prepare, f"sqlite:///{folder / name}.db", EXPERIMENT)
            print(f"prepare, {words:<22}{seconds * 1000:8.0f} ms")
        short = make_runs(folder / "short", [make_spec(seed=s, steps=POINTS) for s in range(runs)], POINTS)
        long = make_runs(folder / "long", [make_spec(seed=s, steps=20_000) for s in range(4)], 20_000)
        fresh = rate(f"replay of {runs} runs of {POINTS} steps", *replay(short, "direct.db"))
        rate("replay of 4 runs of 20,000 steps (500 kept)", *replay(long, "direct.db"))
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        uri = f"sqlite:///{short.root.path / 'direct.db'}"
        print(f"a pass with nothing to send {timed(sync, short.root.path, 'grid', uri, EXPERIMENT)[0] * 1000:8.0f} ms")
        print(f"lag                         {timed(lag, short.root.path, 'grid', uri, EXPERIMENT)[0] * 1000:8.0f} ms")
        client = rate(f"the same {runs} runs through MLflow's client", *replay_by_client(short))
        steps = rate("8 runs that log at each step", *log_step_by_step(folder, 8))
        print(f"ratios: {fresh / client:.1f} x the client, {fresh / steps:.0f} x logging at each step; {fresh / BUDGET:.1f} x the budget")
        print(f"largest memory of a replay: {memory:.0f} MiB")


def rate(words: str, seconds: float, points: int) -> float:
    """Print and return points a second."""
    print(f"{words:<45}{points / seconds:9.0f} points/s ({points} points in {seconds:.2f} s)")
    return points / seconds


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
