"""Sweeps with a scripted training on the cluster of the tests."""

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from accum_sweeps.jobs.slurm_queue import SlurmQueue
from accum_sweeps.record.state import RunState, run_state
from accum_sweeps.record.sweep import PlannedRun
from tests.jobs.sweeps import make_sweep, start_command
from tests.slurm.cluster import Cluster, wait_for

SETTLED_S = 120.0


class ClusterSweep:
    """One sweep of a root in ``folder``, dispatched by commands that are processes of their own."""

    def __init__(self, cluster: Cluster, folder: Path, specs: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in cluster.environment.items():
            monkeypatch.setenv(name, value)
        self.cluster, self.folder = cluster, folder
        self.root, self.sweep, self.plan = make_sweep(folder, specs)
        self.trace_path = folder.parent / "trace"

    def plan_more(self, specs: list[Any]) -> None:
        self.root, self.sweep, self.plan = make_sweep(self.folder, specs)

    def command(self, *, fake: dict[str, Any] | None = None, **launcher: Any) -> dict[str, Any]:
        """Type the command; what it printed as JSON, and ``seconds`` that it took."""
        began = time.monotonic()
        script = {"trace": str(self.trace_path), **(fake or {})}
        command = start_command(self.folder, fake=script, kind="slurm", **{"poll_s": 1, "stop_grace_s": 4.0, **launcher})
        out, err = command.communicate(timeout=SETTLED_S)
        assert command.returncode == 0, err
        return {**json.loads(out), "seconds": time.monotonic() - began}

    def state(self, run: PlannedRun) -> RunState:
        return run_state(self.root, run.run_id)

    def counts(self) -> dict[str, int]:
        return dict(Counter(self.state(run).status for run in self.plan.runs))

    def by_seed(self) -> dict[int, RunState]:
        return {run.seed: self.state(run) for run in self.plan.runs}

    def jobs(self) -> dict[str, str]:
        """The sweep's jobs and their states, ended ones included."""
        asked = ("squeue", "--noheader", "--states=all", "--array", f"--name={SlurmQueue(self.sweep).name}", "--format=%F_%K %T")
        return dict(line.split() for line in self.cluster.run(*asked).splitlines())

    def is_idle(self) -> bool:
        """Whether none of the sweep's jobs is queued or running."""
        return not set(self.jobs().values()) & {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING"}

    def wait_until_idle(self) -> None:
        wait_for(self.is_idle, f"jobs do not end: {self.jobs()}", SETTLED_S)

    def wait_for_step(self, step: int) -> RunState:
        """Until a run is at this step; its state."""
        wait_for(lambda: any(s.status == "running" and s.step >= step for s in self.by_seed().values()), f"no run at step {step}", 60)
        return next(s for s in self.by_seed().values() if s.status == "running" and s.step >= step)

    def traced(self) -> list[dict[str, Any]]:
        """The runs that were trained to their end, in their order."""
        return [json.loads(line) for line in self.trace_path.read_text().splitlines()] if self.trace_path.exists() else []

    def worker(self, state: RunState) -> int:
        """Process id of the worker that holds a run."""
        return int(state.claim["pid"])

    def logs(self) -> str:
        """What the jobs have printed."""
        return "\n".join(path.read_text() for path in sorted(self.sweep.path.glob("submitit/*/*_log.out")))
