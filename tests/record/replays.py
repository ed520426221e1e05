"""Synthetic sweeps on disk, and what MLflow's database holds of them."""

import json
import os
import signal
import sqlite3
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accum_sweeps.plan.spec import RunSpec
from accum_sweeps.record.mlflow_cursor import Cursor
from accum_sweeps.record.mlflow_points import run_samples
from accum_sweeps.record.mlflow_run import SyncReport
from accum_sweeps.record.mlflow_sync import sync
from accum_sweeps.record.state import boot_id, process_start
from accum_sweeps.record.store import RootDir, RunDir, open_root
from accum_sweeps.record.sweep import SweepDir, open_sweep
from tests.specs import make_spec

ENV = "0123456789ab"
EXPERIMENT = "exp"
T0 = 1_700_000_000_000
HEADER = {
    "command": "python -m accum_sweeps +grid=adamw",
    "grid": "adamw",
    "axes": {"accum": [1, 4], "seed": [0, 1]},
    "judging": {"reference": 1},
}


@dataclass(frozen=True)
class Sweep:
    """A sweep on disk, with a SQLite database beside it."""

    root: RootDir
    dir: SweepDir
    specs: list[RunSpec]

    @property
    def uri(self) -> str:
        return f"sqlite:///{self.root.path / 'mlflow.db'}"

    @property
    def database(self) -> Path:
        return self.root.path / "mlflow.db"

    def sync(self, **options: Any) -> SyncReport:
        return sync(self.root.path, self.dir.name, self.uri, EXPERIMENT, **options)

    def run_dir(self, spec: RunSpec, env_id: str = ENV) -> RunDir:
        return self.root.run_dir(spec.run_id, env_id)

    def claim(self, spec: RunSpec, number: int, *, is_alive: bool = True, env_id: str = ENV) -> RunDir:
        """Claim an attempt in the name of this process, or of one that is gone."""
        folder = self.root.run_folder(spec.run_id)
        run_dir = self.root.run_dir(spec.run_id, env_id)
        run_dir.create(spec, {})
        pid = os.getpid()
        start = process_start(pid) if is_alive else 1
        claim = {"attempt": number, "env_id": env_id, "pid": pid, "pid_start": start, "boot_id": boot_id(), "expiry_s": 600}
        (folder / f"claim.{number}").write_text(json.dumps(claim))
        return run_dir

    def log(
        self,
        spec: RunSpec,
        number: int = 1,
        *,
        start: tuple[int | None, int] = (None, 0),
        steps: Iterable[int] = range(1, 11),
        checkpoints: Iterable[int] = (),
        end: str | None = "finished",
        values: Mapping[str, float] | None = None,
        final: Mapping[str, float] | None = None,
        is_alive: bool = True,
        env_id: str = ENV,
    ) -> None:
        """An attempt's claim and events. ``end`` None: nothing is said; failed and released as such."""
        run_dir = self.claim(spec, number, is_alive=is_alive, env_id=env_id)
        step = start[1]
        with run_dir.writer(number) as writer:
            writer.start(*start, host="here", git_commit="abc")
            for step in steps:
                point = values if values is not None else {"train_loss": number + step / 1000, "lr": 0.1}
                writer.metrics(step, point, time_ms=T0 + 1000 * number + step)
                if step in checkpoints:
                    writer.checkpoint(step)
            if end in ("finished", "diverged"):
                writer.end(end, step, {"eval_loss_final": 2.5} if final is None else final)
            elif end == "failed":
                writer.failed(step, "ValueError: no")
            elif end == "released":
                writer.released(step, "time limit")


def make_sweep(folder: Path, specs: Iterable[RunSpec] | None = None, name: str = "grid") -> Sweep:
    root = open_root(folder / "root", create=True)
    planned = [make_spec(accum=k, seed=s) for k in (1, 4) for s in (0, 1)] if specs is None else list(specs)
    directory = open_sweep(root, name)
    directory.write_plan(HEADER, planned, {spec.setup.setup_id: "lm-tiny adamw fp32" for spec in planned})
    return Sweep(root, directory, planned)


def rows(database: Path, query: str, *values: object) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(database)
    try:
        return connection.execute(query, values).fetchall()
    finally:
        connection.close()


def samples(database: Path, run_id: str) -> list[tuple[str, int, int, float, int]]:
    """Key, step, time, value and is_nan of all samples of the active children of a run, as the tables hold them."""
    return sorted(
        rows(
            database,
            "SELECT m.key, step, timestamp, m.value, is_nan FROM metrics m JOIN runs USING (run_uuid) JOIN tags t USING (run_uuid) "
            "WHERE lifecycle_stage = 'active' AND t.key = 'run_id' AND t.value = ?",
            run_id,
        )
    )


def children(database: Path, experiment: str = EXPERIMENT) -> dict[str, dict[str, Any]]:
    """Name, status, times, tags and parameters of the active runs by the tag run_id; the sweep's own run under an empty one.

    Runs in another environment than ENV are under ``<run_id>/<env_id>``.
    """
    found = {}
    query = """SELECT run_uuid, runs.name, status, start_time, end_time FROM runs JOIN experiments USING (experiment_id)
        WHERE runs.lifecycle_stage = 'active' AND experiments.name = ?"""
    for run, name, status, start, end in rows(database, query, experiment):
        tags = dict(rows(database, "SELECT key, value FROM tags WHERE run_uuid = ?", run))
        params = dict(rows(database, "SELECT key, value FROM params WHERE run_uuid = ?", run))
        key = tags.get("run_id", "")
        if tags.get("env_id", ENV) != ENV:
            key = f"{key}/{tags['env_id']}"
        assert key not in found, f"{name} is there twice"
        found[key] = {
            "id": run,
            "name": name,
            "status": status,
            "start": start,
            "end": end,
            "tags": tags,
            "params": params,
        }
    return found


def forked(work: Callable[[], object]) -> int:
    """Do ``work`` in a copy of this process, which exits with 0, or with 1 after an exception; its process id."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return pid


def expected(sweep: Sweep, spec: RunSpec) -> list[tuple[str, int, int]]:
    return sorted(sample[:3] for sample in run_samples(sweep.run_dir(spec).history(), spec.setup.steps).samples)


def keys(sweep: Sweep, spec: RunSpec) -> list[tuple[str, int, int]]:
    return [row[:3] for row in samples(sweep.database, spec.run_id)]


WRITES = ("create_run", "log_params", "log_samples", "set_tags", "set_status", "delete_run", "commit")


def killed_after(tracker: type, sweep: Sweep, calls: int, *, before: bool) -> bool:
    """Replay in a process that is killed at its ``calls``-th step towards MLflow or the cursor; False if it came through."""

    def work() -> None:
        left = iter(range(calls))

        def deadly(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                is_last = next(left, None) is None
                if is_last and before:
                    os.kill(os.getpid(), signal.SIGKILL)
                result = function(*args, **kwargs)
                if is_last:
                    os.kill(os.getpid(), signal.SIGKILL)
                return result

            return call

        for owner, name in ((Cursor, "_write"), *((tracker, n) for n in WRITES)):
            setattr(owner, name, deadly(getattr(owner, name)))
        sweep.sync()

    status = os.waitpid(forked(work), 0)[1]
    assert status in (0, signal.SIGKILL)
    return status != 0
