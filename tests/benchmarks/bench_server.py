"""How fast run directories get into MLflow on PostgreSQL over HTTP, by several replays at the same time.

    python tests/benchmarks/bench_server.py [runs] [replays]

The budget: at least 2,000 points a second with four replays, creation of the runs included, server and replays on the same two cores.
The server is the one of ``make tracking-server``, new; its first start is timed as well. Needs PostgreSQL.
"""

import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from accum_sweeps.record.mlflow_sync import prepare, sync
from tests.benchmarks.bench_mlflow import KEYS, POINTS, make_runs, rate
from tests.record.replays import EXPERIMENT, Sweep, forked
from tests.specs import make_spec
from tests.tracking.conftest import TrackingServer

BUDGET = 2000


def replays(sweeps: list[Sweep], uri: str) -> tuple[float, int]:
    """Seconds that replays of all ``sweeps`` at the same time take, a process each, and the points that they have to send."""
    began = time.perf_counter()
    pids = [forked(lambda sweep=sweep: sync(sweep.root.path, sweep.dir.name, uri, EXPERIMENT)) for sweep in sweeps]  # type: ignore[misc]
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * len(pids)
    return time.perf_counter() - began, sum(len(sweep.specs) for sweep in sweeps) * (POINTS * KEYS + 1)


def main(runs: int = 64, processes: int = 4) -> None:
    """Print the figures of one run."""
    with tempfile.TemporaryDirectory(prefix="accum_sweeps_bench_") as temporary:
        folder = Path(temporary)
        folder.chmod(0o711)
        server = TrackingServer(folder / "server")
        began = time.perf_counter()
        server.start()
        print(f"the server's first start                      {time.perf_counter() - began:8.1f} s")
        try:
            prepare(server.uri, EXPERIMENT)
            found = {}
            for count in (1, processes):
                specs = [[make_spec(seed=runs * part + s, steps=POINTS) for s in range(runs // count)] for part in range(count)]
                sweeps = [make_runs(folder / f"{count}-{part}", each, POINTS) for part, each in enumerate(specs)]
                found[count] = rate(f"{runs} runs of {POINTS} steps, {count} at a time", *replays(sweeps, server.uri))
            [(stored,)] = server.query("SELECT count(*) FROM metrics")
            assert stored == 2 * runs * (POINTS * KEYS + 1)
            print(f"ratio: {found[processes] / found[1]:.1f} x one replay alone; {found[processes] / BUDGET:.1f} x the budget")
        finally:
            server.stop()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
