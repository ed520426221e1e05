"""Checkpoint files: written whole or not at all, read without executing anything."""

import pickle
from pathlib import Path
from typing import Any

import torch

from accum_sweeps.plan.errors import UserError
from accum_sweeps.record.files import write_atomic


def save(path: Path, *, run_id: str, step: int, state: dict[str, Any]) -> None:
    """Write beside ``path``, fsync, rename. Passes on OSError (disk full), with ``path`` as it was before."""
    write_atomic(path, lambda file: torch.save({"run_id": run_id, "step": step, "state": state}, file))


def load(path: Path, *, run_id: str, device: str) -> tuple[int, dict[str, Any]]:
    """(step, state) as given to :func:`save`, tensors on ``device``.

    Raises UserError where the file is damaged or belongs to another run, OSError where it cannot be opened.
    """
    try:
        content = torch.load(path, map_location=device, weights_only=True)
        found, step, state = content["run_id"], content["step"], content["state"]
    except (pickle.UnpicklingError, RuntimeError, EOFError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path}: damaged checkpoint ({type(error).__name__}: {error})\n  Delete it; the run then starts anew.") from error
    if found != run_id:
        raise UserError(f"{path}: belongs to run {found}, not to {run_id}\n  Delete it; the run then starts anew.")
    return step, state
