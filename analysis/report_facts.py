"""Where the figures of a report come from: the plan of the sweep, and the environments in which its runs were done."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pandas as pd

from accum_sweeps.analysis.table import SCHEMA_VERSION
from accum_sweeps.plan.spec import SPEC_VERSION
from accum_sweeps.record.store import DamagedRunError
from accum_sweeps.record.sweep import SweepDir

MOST_ENVIRONMENTS = 8
FLAGS = {"device": "device", "threads": "threads a run", "deterministic": "deterministic algorithms", "ranks": "ranks"}
LABELS = {
    "torch": "torch",
    "torch_git": "torch source revision",
    "torch_cuda": "CUDA build",
    "cudnn": "cuDNN",
    "cpu": "CPU (model, family)",
    "cpu_capability": "CPU kernels",
    "gpu": "GPU",
    "numpy": "numpy",
    "python": "Python",
    "accum_sweeps": "accum_sweeps",
    "git_commit": "commit",
}


def sweep_facts(sweep: SweepDir, results: pd.DataFrame, older_setups: int = 0) -> dict[str, Any]:
    """What a report says of its sweep besides results; ``older_setups`` of earlier plans are not in ``results``."""
    plan = sweep.read_plan()
    header = plan.header
    created = header.get("created_ms")
    return {
        "sweep": sweep.name,
        "command": header.get("command") or "",
        "grid": header.get("grid") or "",
        "git_commit": header.get("git_commit") or "",
        "revision": plan.revision,
        "planned": datetime.fromtimestamp(created / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC") if created else "",
        "spec_version": SPEC_VERSION,
        "schema_version": SCHEMA_VERSION,
        "older_setups": older_setups,
        "environments": _environments(sweep, results),
    }


def _environments(sweep: SweepDir, results: pd.DataFrame) -> list[dict[str, str]]:
    """One entry for each environment, that of most runs first: env_id, runs, and what one of its runs recorded."""
    started = results[results["env_id"].notna()]
    found = []
    for env_id, runs in started["env_id"].value_counts().head(MOST_ENVIRONMENTS).items():
        run_ids = started.loc[started["env_id"] == env_id, "run_id"].tolist()
        found.append({"env_id": str(env_id), "runs": str(runs), **_recorded(sweep, run_ids, str(env_id))})
    return found


def _recorded(sweep: SweepDir, run_ids: list[str], env_id: str) -> dict[str, str]:
    """The recorded environment of the first of these runs whose file can be read."""
    for run_id in run_ids:
        try:
            recorded = sweep.root.run_dir(run_id, env_id).read_environment()
        except DamagedRunError:
            continue
        further = {key: value for key, value in recorded.items() if key not in (*LABELS, "command", "host", "device")}
        named = {label: recorded[key] for key, label in LABELS.items() if recorded.get(key) not in (None, "", "None")}
        return {key: str(value) for key, value in (named | further).items()}
    return {}


def environment_rows(facts: Mapping[str, Any], results: pd.DataFrame) -> list[tuple[str, str]]:
    """What a report says of its sweep, line by line; of a table of results alone the flags that it holds."""
    labels = {
        "command": "command",
        "source": "read from",
        "planned": "planned",
        "revision": "revision of the plan",
        "git_commit": "commit",
        "spec_version": "spec_version",
        "schema_version": "schema_version of the tables",
    }
    rows = [(label, str(facts[key])) for key, label in labels.items() if facts.get(key)]
    for column, label in FLAGS.items():
        if column in results and results[column].notna().any():
            rows.append((label, ", ".join(sorted(str(value) for value in results[column].dropna().unique()))))
    return rows
