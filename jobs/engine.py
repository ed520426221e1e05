"""The heavy half of a worker, imported once, after the slot is pinned: torch, and how a run is computed."""

import math
from typing import Any

import torch

from accum_sweeps.execute import Limits, execute
from accum_sweeps.jobs.order import Group
from accum_sweeps.training.fingerprint import fingerprint

__all__ = ["Limits", "execute", "limits", "start"]


def start(group: Group) -> tuple[str, dict[str, Any]]:
    """Set what holds for the whole process; returns env_id and the facts that it stands for."""
    torch.set_num_threads(group.threads)
    torch.use_deterministic_algorithms(group.deterministic)
    if group.deterministic and group.device == "cuda":
        torch.backends.cudnn.benchmark = False
    return fingerprint(group.device)


def limits(run_limit_s: float | None, **settings: Any) -> Limits:
    """The bounds of one execution."""
    return Limits(run_limit_s=math.inf if run_limit_s is None else run_limit_s, **settings)
