"""Memory of the processes of a sweep: a worker's does not grow from run to run, a dispatcher's stays small."""

import subprocess
import sys
from pathlib import Path
from typing import Any

from accum_sweeps.jobs.dispatch import dispatch
from accum_sweeps.plan.parts import StandardLibrary
from accum_sweeps.plan.spec import RunSpec
from accum_sweeps.training.data.corpus import identify
from tests.jobs.sweeps import REPOSITORY, fast, make_sweep, seeds
from tests.specs import make_spec

RUNS = 200
TINY: dict[str, Any] = {
    "model.layers": 1,
    "model.width": 8,
    "model.heads": 1,
    "model.ffn_width": 8,
    "data.seq_len": 8,
    "data.eval_rows": 2,
    "global_batch": 2,
    "steps": 2,
    "eval_every": 0,
    "probe_steps": [],
}


def test_a_worker_does_not_grow_over_200_runs(tmp_path: Path) -> None:
    setup = make_spec(**TINY).setup
    corpus = identify(setup.data)
    assert isinstance(corpus, StandardLibrary)
    tiny: dict[str, Any] = {**TINY, "data.hash": corpus.hash}
    root, sweep, plan = make_sweep(tmp_path / "root", seeds(RUNS, **tiny))
    assert dispatch(root, sweep, plan, fast(slots=1)).counts == {"finished": RUNS}
    peaks = []
    for run in plan.runs:
        newest = root.run_dir(run.run_id, root.environments(run.run_id)[0]).history().newest
        assert newest is not None
        peaks.append(newest.final["peak_mem_gb"])
    assert peaks == sorted(peaks), "one worker did all, in order"
    assert (peaks[-1] - peaks[RUNS // 4]) * 1024 < 4, "MiB over the last 150 runs"


MANY = 20_000
DISPATCHER = """
import os, signal, sys
from pathlib import Path
from accum_sweeps.jobs.dispatch import dispatch
from accum_sweeps.jobs.progress import Lines
from accum_sweeps.jobs.resources import read_resources
from accum_sweeps.record.store import open_root
from accum_sweeps.record.sweep import open_sweep
root = open_root(Path(sys.argv[1]))
sweep = open_sweep(root, "s")
lines, stopped = Lines(sys.stderr), []
def watch(board):
    lines(board)
    if board.counts().get("finished", 0) >= 100 and not stopped:
        stopped.append(True)
        os.kill(os.getpid(), signal.SIGINT)
result = dispatch(root, sweep, sweep.read_plan(), read_resources({}), on_progress=watch, engine="tests.jobs.fake_engine")
assert sum(result.counts.values()) == int(sys.argv[2]) and result.counts["finished"] >= 100, result
assert "torch" not in sys.modules and "mlflow" not in sys.modules and "pandas" not in sys.modules
# Not ru_maxrss: that begins with the size of the process that started this one.
print(int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) / 1024)
"""


def test_a_dispatcher_stays_small_with_20000_runs(tmp_path: Path) -> None:
    setup = make_spec(steps=2).setup
    streams = ("seed", "seed_init", "seed_data", "seed_dropout")
    specs = [RunSpec(setup=setup, accum=1, control="none", replicate=0, **dict.fromkeys(streams, seed)) for seed in range(MANY)]
    make_sweep(tmp_path / "root", specs)
    arguments = [sys.executable, "-c", DISPATCHER, str(tmp_path / "root"), str(MANY)]
    ended = subprocess.run(arguments, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert float(ended.stdout) <= 300, "MiB"
