"""Small roots with known content, written as workers write them."""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from accum_sweeps.plan.spec import RunSpec
from accum_sweeps.record.state import boot_id, process_start
from accum_sweeps.record.store import RootDir, open_root
from accum_sweeps.record.sweep import SweepDir, open_sweep

ENV, OTHER_ENV = "0123456789ab", "ba9876543210"


def plan(root: Path, specs: Iterable[RunSpec], name: str = "demo") -> SweepDir:
    """A planned sweep; setups are labelled by dtype and norm."""
    specs = list(specs)
    labels = {s.setup.setup_id: f"lm {s.setup.dtype} lr={s.setup.optimizer.lr:g}" for s in specs}
    sweep = open_sweep(open_root(root, create=True), name)
    sweep.write_plan({"command": "test"}, specs, labels)
    return sweep


def claim(root: RootDir, spec: RunSpec, attempt: int = 1, env_id: str = ENV, **changes: Any) -> None:
    """A claim of this very process, alive as long as the test."""
    folder = root.run_folder(spec.run_id)
    folder.mkdir(parents=True, exist_ok=True)
    facts = {"pid": os.getpid(), "pid_start": process_start(os.getpid()), "boot_id": boot_id(), "env_id": env_id, "expiry_s": 30, **changes}
    (folder / f"claim.{attempt}").write_text(json.dumps(facts))


def start(root: RootDir, spec: RunSpec, losses: Iterable[float] = (), env_id: str = ENV, attempt: int = 1) -> None:
    """A started run with one training loss a step, from step 1 on, and nothing said yet about its end."""
    claim(root, spec, attempt, env_id)
    run_dir = root.run_dir(spec.run_id, env_id)
    run_dir.create(spec, {"git_commit": "c0ffee"})
    with run_dir.writer(attempt) as writer:
        writer.start(None, 0)
        for step, loss in enumerate(losses, start=1):
            writer.metrics(step, {"train_loss": loss}, time_ms=1_700_000_000_000 + step)


def finish(
    root: RootDir,
    spec: RunSpec,
    final: float | Mapping[str, float],
    *,
    status: str = "finished",
    losses: Iterable[float] = (3.0, 2.5),
    env_id: str = ENV,
) -> None:
    """A run that is done; ``final`` is its final evaluation loss, or all its final values."""
    losses = list(losses)
    start(root, spec, losses, env_id)
    values = {"eval_loss_final": final} if isinstance(final, float) else final
    with root.run_dir(spec.run_id, env_id).writer(1) as writer:
        writer.end(status, len(losses), {"steps": len(losses), **values})


def table(y: Mapping[int, Iterable[float | str]], setup: str = "lm", **columns: Any) -> pd.DataFrame:
    """A results table of one setup: by accumulation factor one value a seed, or a status in place of it."""
    rows = [
        {"setup": setup, "setup_id": setup, "accum": k, "seed": seed, **_value(value), **columns}
        for k, values in y.items()
        for seed, value in enumerate(values)
    ]
    return pd.DataFrame(rows)


def _value(value: float | str) -> dict[str, Any]:
    if isinstance(value, str):
        return {"status": value, "eval_loss_final": float("nan")}
    return {"status": "finished", "eval_loss_final": value}
