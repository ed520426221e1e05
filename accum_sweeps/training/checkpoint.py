"""Checkpoint files: written whole or not at all, read without executing anything."""

import contextlib
import os
import pickle
from pathlib import Path
from typing import Any

import torch

from accum_sweeps.plan.errors import UserError


def save(path: Path, *, run_id: str, step: int, state: dict[str, Any]) -> None:
    """Write beside ``path``, fsync, rename. Passes on OSError (disk full), with ``path`` as it was before."""
    beside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with beside.open("wb") as file:
            torch.save({"run_id": run_id, "step": step, "state": state}, file)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise
    _fsync_folder(path.parent)


def _fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
