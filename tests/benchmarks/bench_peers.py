"""What a sweep costs beside the bare training loops, and beside Hydra's own launchers with MLflow.

    python tests/benchmarks/bench_peers.py

All on the same two cores, one after the other. Short runs keep a core busy for 0.2 s and log 60 points to an MLflow
database that was there before; budgets: at least 2 times as fast as Hydra with joblib (64 runs), 8 times as fast as Hydra
with submitit_local (16 runs). Trainings of the tiny language model; budgets: the first one starts within 4 s, and from
there on the command takes at most 1.10 times as long as the trainings alone. Figures are of one run on one machine.
"""

import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from accum_sweeps.plan.config import read_config
from accum_sweeps.planning import planned_runs
from accum_sweeps.record.mlflow_sync import prepare
from tests.benchmarks.peers.busy import RUN_S, STEPS

ROOT = Path(__file__).resolve().parents[2]
CORES = 2
PEERS = {"joblib": (64, 2.0), "submitit_local": (16, 8.0)}  # runs, and how many times as fast the budget asks for
TRAININGS = ["axes={seed:{range:6},accum:[1,2]}"]  # of the default length
START_S, RATIO = 4.0, 1.10
QUIET = 0.5  # processes that wait for a core, mean of the last minute
PYTHON = [sys.executable, "-m"]


@dataclass(frozen=True)
class Times:
    """Seconds of a command: all of it, and until its first run started and its last one ended."""

    whole: float
    start: float
    end: float


def row(what: str, seconds: float, ratio: str = "", budget: str = "", is_met: bool | None = None) -> None:
    """Print a line of the table."""
    words = {None: "", True: "met", False: "MISSED"}[is_met]
    print(f"{what:<50}{seconds:>9.2f}{ratio:>9}{budget:>11}  {words}".rstrip(), flush=True)


def run_all(commands: Sequence[Sequence[str]], folder: Path) -> tuple[float, list[str]]:
    """Wall time of processes that run side by side, and what each printed. SystemExit with their words if one fails."""
    began = time.perf_counter()
    pipe = subprocess.PIPE
    processes = [subprocess.Popen(command, cwd=folder, stdout=pipe, stderr=pipe, text=True) for command in commands]
    printed = [process.communicate() for process in processes]
    seconds = time.perf_counter() - began
    if any(process.returncode for process in processes):
        raise SystemExit("\n".join(text for pair in printed for text in pair))
    return seconds, [output for output, _ in printed]


def ours(folder: Path, arguments: Sequence[str]) -> Times:
    """The whole command: plan, workers, MLflow, tables, report."""
    folder.mkdir()
    began = time.time()
    whole, _ = run_all([[*PYTHON, "accum_sweeps", *arguments, f"root={folder}", f"launcher.slots={CORES}"]], folder.parent)
    events = [path.read_text().splitlines() for path in folder.glob("runs/*/*/*/events.1.jsonl")]
    start, end = min(json.loads(lines[0])["time"] for lines in events), max(json.loads(lines[-1])["time"] for lines in events)
    return Times(whole, start / 1000 - began, end / 1000 - began)


def parts(times: Times) -> None:
    """Where the time of a command goes."""
    row("    of that, until the first run starts", times.start)
    row("    from there until the last run has ended", times.end - times.start)
    row("    tables, the rest of the replay, the report", times.whole - times.end)


# Short runs


@contextlib.contextmanager
def fresh_database(folder: Path, runs: int) -> Iterator[None]:
    """An empty MLflow database for what logs ``runs`` short runs. SystemExit if something did not arrive."""
    database = folder / "mlflow.db"
    shutil.copy(folder / "prepared.db", database)
    yield
    with contextlib.closing(sqlite3.connect(database)) as connection:
        complete = "SELECT count(*) FROM (SELECT 1 FROM metrics GROUP BY run_uuid HAVING count(DISTINCT step) >= ?)"
        ((stored,),) = connection.execute(complete, (STEPS,))
    if stored != runs:
        raise SystemExit(f"{stored} of {runs} runs arrived in MLflow")


def short(folder: Path, runs: int) -> Times:
    """The short runs as a sweep."""
    target = ["subject=python", "subject.target=tests.benchmarks.peers.busy:Busy", f"steps={STEPS}", "global_batch=4"]
    axes = f"axes={{seed:{{range:{runs // 2}}},accum:[1,2]}}"
    return ours(folder / f"ours{runs}", [*target, axes, "tracking.experiment=short"])


def hydra_s(folder: Path, launcher: str, runs: int) -> float:
    """The short runs as a multirun of Hydra."""
    options = ["hydra.launcher.n_jobs=2"] if launcher == "joblib" else [f"hydra.launcher.submitit_folder={folder / 'submitit'}"]
    options += [f"hydra/launcher={launcher}", f"hydra.sweep.dir={folder / launcher}", "+experiment=short"]
    axes = [f"+seed=range({runs // 2})", "+accum=1,2"]
    return run_all([[*PYTHON, "tests.benchmarks.peers.hydra_app", "--multirun", *options, *axes]], folder)[0]


def compare_short(folder: Path, launcher: str, runs: int, budget: float) -> None:
    """The bare loops, ours, and a launcher of Hydra."""
    loops = [[*PYTHON, "tests.benchmarks.peers.bare_loops", str(folder / f"{runs}.{n}"), str(runs // CORES)] for n in range(CORES)]
    row(f"{runs} short runs: bare loops in {CORES} processes", run_all(loops, folder)[0])
    with fresh_database(folder, runs):
        times = short(folder, runs)
    row(f"{runs} short runs: accum_sweeps", times.whole)
    parts(times)
    with fresh_database(folder, runs):
        theirs = hydra_s(folder, launcher, runs)
    ratio = theirs / times.whole
    row(f"{runs} short runs: Hydra, {launcher}", theirs, f"{ratio:.2f}x", f">= {budget:g}x", ratio >= budget)


# Trainings


def bare_sessions(folder: Path) -> Times:
    """The same trainings in processes that do nothing else."""
    folder.mkdir()
    specs = planned_runs(read_config(TRAININGS), folder)
    (folder / "specs.json").write_text(json.dumps([spec.to_dict() for spec in specs]))
    began = time.time()
    whole, printed = run_all([[*PYTHON, "tests.benchmarks.peers.bare_sessions", str(folder)]] * CORES, folder)
    return Times(whole, min(map(float, printed)) - began, whole)


def compare_trainings(folder: Path) -> None:
    """The bare trainings and the sweep of them."""
    bare, sweep = bare_sessions(folder / "bare"), ours(folder / "trainings", TRAININGS)
    alone, beyond = bare.whole - bare.start, sweep.whole - sweep.start
    row("trainings alone: until the first one starts", bare.start)
    row("trainings alone: from there on", alone)
    row("accum_sweeps: until the first one starts", sweep.start, "", f"<= {START_S:g} s", sweep.start <= START_S)
    row("accum_sweeps: from there on", beyond, f"{beyond / alone:.3f}x", f"<= {RATIO:.2f}x", beyond <= RATIO * alone)
    row("accum_sweeps: all of it", sweep.whole, f"{sweep.whole / bare.whole:.3f}x")
    parts(sweep)


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
        os.environ |= {
            "TMPDIR": name,  # slots of our own: nothing else of this user's is waited for
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}",
            "DO_NOT_TRACK": "true",  # MLflow's usage reports
        }
        prepare(f"sqlite:///{folder / 'prepared.db'}", "short")
        if (load := os.getloadavg()[0]) > QUIET:
            print(f"note: a load of {load:.1f} before the start: others compute here too, and the figures say little")
        print(f"{f'{RUN_S} s and {STEPS} points a short run':<50}{'seconds':>9}{'ratio':>9}{'budget':>11}")
        for launcher, (runs, budget) in PEERS.items():
            compare_short(folder, launcher, runs, budget)
        compare_trainings(folder)


if __name__ == "__main__":
    main()
