"""What a replay asks of MLflow, MLflow's limits, and its errors sorted by what to do about them."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from accum_sweeps.record.mlflow_points import Sample

BATCH = 1000  # samples a call
PARAM_BATCH = 100  # parameters or tags a call
PARAM_LENGTH = 6000  # characters
TAG_LENGTH = 8000
REQUEST_LIMIT_S = 10


class UnreachableError(Exception):
    """Server or database do not answer now; everything can be sent later."""


class UnknownRunError(Exception):
    """MLflow knows no run of this id: its database was lost or replaced."""


class DeletedRunError(Exception):
    """Somebody deleted the run in MLflow."""


class RefusedError(Exception):
    """MLflow refuses what was sent, and would again."""


class Tracker(Protocol):
    """Writes into one experiment.

    All methods may raise UnreachableError; those that take a run id also UnknownRunError and DeletedRunError. Those that
    return texts say in words which items were refused; the others of the same call arrive.
    """

    is_transactional: bool  # whether nothing arrives before commit()

    def create_run(self, name: str, start_ms: int, tags: Mapping[str, str]) -> str:
        """A new run, RUNNING; its id."""

    def find_runs(self, tags: Mapping[str, str]) -> dict[str, dict[str, str]]:
        """Tags of the experiment's active runs that carry all of ``tags``, by run id."""

    def check_run(self, run_id: str) -> None:
        """Raise UnknownRunError or DeletedRunError if the run cannot be written."""

    def samples(self, run_id: str) -> set[tuple[str, int, int]]:
        """Key, step and time of every sample of a run."""

    def log_params(self, run_id: str, params: Mapping[str, str]) -> list[str]:
        """Send parameters."""

    def set_tags(self, run_id: str, tags: Mapping[str, str]) -> list[str]:
        """Set or replace tags."""

    def log_samples(self, run_id: str, samples: Sequence[Sample]) -> list[str]:
        """Send up to BATCH samples; sending them again changes nothing."""

    def set_status(self, run_id: str, status: str, end_ms: int | None) -> None:
        """Set RUNNING, or with an end time FINISHED, FAILED or KILLED."""

    def delete_run(self, run_id: str) -> None:
        """Hide a run that is replaced by another."""

    def log_file(self, run_id: str, path: Path) -> None:
        """Keep a file with the run. Raises OSError if it cannot be read."""

    def finish(self) -> None:
        """To be called after much was written."""

    def commit(self) -> None:
        """Make sure that everything sent so far is there to stay."""

    def close(self) -> None:
        """Give up what was not committed."""


def environment() -> dict[str, str]:
    """Variables that MLflow reads: nothing is reported to anybody, no call hangs for minutes. Those already set win.

    Without a pool of connections a database that was deleted is noticed instead of written to for ever.
    """
    wanted = {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "true",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": str(REQUEST_LIMIT_S),
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
        "MLFLOW_LOGGING_LEVEL": "ERROR",
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
        "MLFLOW_SQLALCHEMYSTORE_POOLCLASS": "NullPool",
    }
    return {name: os.environ.get(name, value) for name, value in wanted.items()}
