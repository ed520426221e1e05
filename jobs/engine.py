"""The heavy half of a worker, imported once, after the slot is pinned: torch, and how a run is computed."""

import math
from typing import Any

from accum_sweeps.execute import Limits
from accum_sweeps.execute import execute as execute_run
from accum_sweeps.jobs.order import Group
from accum_sweeps.plan.spec import RunSpec
from accum_sweeps.record.store import RunDir
from accum_sweeps.subjects import second_rank
from accum_sweeps.training.fingerprint import fingerprint
from accum_sweeps.training.process import settle

__all__ = ["Limits", "end", "execute", "limits", "start"]


def start(group: Group) -> tuple[str, dict[str, Any]]:
    """Set what holds for the whole process; returns env_id and the facts that it stands for."""
    settle(group)
    return fingerprint(group.device)


def execute(spec: RunSpec, run_dir: RunDir, attempt: int, environment: dict[str, Any], limits: Limits, **facts: Any) -> str:
    """:func:`accum_sweeps.execute.execute`, whatever the run before left behind in this process."""
    settle(spec.setup)
    return execute_run(spec, run_dir, attempt, environment, limits, **facts)


def limits(run_limit_s: float | None, **settings: Any) -> Limits:
    """The bounds of one execution."""
    return Limits(run_limit_s=math.inf if run_limit_s is None else run_limit_s, **settings)


def end() -> None:
    """Let go of what runs have left for the next one."""
    second_rank.end()
