"""Small sweeps on disk, and commands that run them as processes of their own."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from accum_sweeps.jobs.resources import Resources, read_resources
from accum_sweeps.plan.spec import RunSpec
from accum_sweeps.record.store import RootDir, open_root
from accum_sweeps.record.sweep import Plan, SweepDir, open_sweep
from tests.specs import make_spec

ENGINE = "tests.jobs.fake_engine"
REPOSITORY = Path(__file__).parents[2]


def seeds(count: int, first: int = 0, **changes: Any) -> list[RunSpec]:
    """One run a seed."""
    return [make_spec(seed=seed, **changes) for seed in range(first, first + count)]


def make_sweep(folder: Path, specs: Iterable[RunSpec], name: str = "s") -> tuple[RootDir, SweepDir, Plan]:
    """A planned sweep in the root ``folder``."""
    root = open_root(folder, create=True)
    sweep = open_sweep(root, name)
    specs = list(specs)
    plan = sweep.write_plan({"command": "test"}, specs, {spec.setup.setup_id: spec.setup.dtype for spec in specs})
    return root, sweep, plan


def fast(**changes: Any) -> Resources:
    """Resources with short times."""
    return read_resources({"kind": "local", "heartbeat_s": 0.2, "expiry_s": 15.0, "stop_grace_s": 5.0, **changes})


COMMAND = """
import json, sys
from pathlib import Path
from accum_sweeps.jobs.dispatch import dispatch
from accum_sweeps.jobs.resources import read_resources
from accum_sweeps.record.store import open_root
from accum_sweeps.record.sweep import open_sweep
root = open_root(Path(sys.argv[1]))
sweep = open_sweep(root, sys.argv[2])
result = dispatch(root, sweep, sweep.read_plan(), read_resources(json.loads(sys.argv[3])), engine="tests.jobs.fake_engine")
print(json.dumps({"counts": result.counts, "interrupted": result.is_interrupted, "error": result.error}))
"""


def start_command(
    folder: Path, *, name: str = "s", fake: dict[str, Any] | None = None, before: tuple[str, ...] = (), **launcher: Any
) -> "subprocess.Popen[str]":
    """Dispatch the newest plan of a sweep in a process of its own, as if in a terminal of its own; ``before`` it: nohup, say."""
    settings = {"kind": "local", "heartbeat_s": 0.2, "expiry_s": 15.0, "stop_grace_s": 5.0, **launcher}
    environment = {**os.environ, "FAKE": json.dumps(fake or {}), "TMPDIR": str(folder.parent), "PYTHONPATH": str(REPOSITORY)}
    arguments = [sys.executable, "-c", COMMAND, str(folder), name, json.dumps(settings)]
    return subprocess.Popen(
        [*before, *arguments],
        cwd=REPOSITORY,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
