"""The only module that imports MLflow for writing: runs, parameters, tags and samples, with errors sorted by what to do.

Also a program, ``python -m accum_sweeps.record.mlflow_client EXPERIMENT [FOLDER]``: makes sure that the experiment exists
at $MLFLOW_TRACKING_URI (artifacts in FOLDER/mlartifacts) and prints its id, or what stands in the way, as JSON.
"""

import contextlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from accum_sweeps.record.mlflow_tracker import environment

os.environ.update(environment())  # MLflow reads some of it while it is imported

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag, ViewType
from mlflow.exceptions import MlflowException

from accum_sweeps.record.mlflow_points import Sample
from accum_sweeps.record.mlflow_tracker import (
    BATCH,
    PARAM_BATCH,
    DeletedRunError,
    RefusedError,
    UnknownRunError,
    UnreachableError,
)

REFUSED_ACCESS = re.compile(
    r"error code 40[13]\b|PERMISSION_DENIED|UNAUTHENTICATED|CUSTOMER_UNAUTHORIZED|password authentication failed|Access denied"
)
REASONS = {
    "(?i)timed? ?out": "no answer in time",
    "Connection ?refused|Errno 111": "connection refused",
    "NameResolutionError|Name or service not known|could not translate host name": "unknown host",
    "No route to host|Network is unreachable": "no route to the host",
    "RemoteDisconnected|Connection reset|ConnectionResetError": "connection lost",
}
Item = TypeVar("Item")


class ClientTracker:
    """One experiment through MLflow's public client (see mlflow_tracker.Tracker)."""

    is_transactional = False

    def __init__(self, client: MlflowClient, experiment_id: str) -> None:
        self.client, self.experiment_id = client, experiment_id

    @classmethod
    def open(cls, uri: str, experiment: str) -> "ClientTracker":
        """The tracker of an experiment, which is created if it is missing."""
        with _sorted_errors():
            client = MlflowClient(tracking_uri=uri)
            return cls(client, _have_experiment(client, experiment, None))

    def create_run(self, name: str, start_ms: int, tags: Mapping[str, str]) -> str:
        with _sorted_errors():
            return str(self.client.create_run(self.experiment_id, start_time=start_ms, tags=dict(tags), run_name=name).info.run_id)

    def find_runs(self, tags: Mapping[str, str]) -> dict[str, dict[str, str]]:
        wanted = " and ".join(f"tags.`{key}` = '{value}'" for key, value in tags.items())
        found: dict[str, dict[str, str]] = {}
        token: str | None = None
        while True:
            with _sorted_errors():
                page = self.client.search_runs([self.experiment_id], wanted, ViewType.ACTIVE_ONLY, max_results=BATCH, page_token=token)
            found |= {run.info.run_id: dict(run.data.tags) for run in page}
            token = page.token
            if not token:
                return found

    def check_run(self, run_id: str) -> None:
        with _sorted_errors():
            stage = self.client.get_run(run_id).info.lifecycle_stage
        if stage != "active":
            raise DeletedRunError(run_id)

    def samples(self, run_id: str) -> set[tuple[str, int, int]]:
        with _sorted_errors():
            keys = self.client.get_run(run_id).data.metrics
            return {(m.key, m.step, m.timestamp) for key in keys for m in self.client.get_metric_history(run_id, key)}

    def log_params(self, run_id: str, params: Mapping[str, str]) -> list[str]:
        items = [Param(key, value) for key, value in params.items()]
        return self._send(run_id, items, PARAM_BATCH, lambda part: self.client.log_batch(run_id, params=part))

    def set_tags(self, run_id: str, tags: Mapping[str, str]) -> list[str]:
        items = [RunTag(key, value) for key, value in tags.items()]
        return self._send(run_id, items, PARAM_BATCH, lambda part: self.client.log_batch(run_id, tags=part))

    def log_samples(self, run_id: str, samples: Sequence[Sample]) -> list[str]:
        items = [Metric(s.key, s.value, s.time_ms, s.step) for s in samples]
        return self._send(run_id, items, BATCH, lambda part: self.client.log_batch(run_id, metrics=part))

    def set_status(self, run_id: str, status: str, end_ms: int | None) -> None:
        with _sorted_errors():
            if end_ms is None:
                self.client.update_run(run_id, status=status)
            else:
                self.client.set_terminated(run_id, status, end_ms)

    def delete_run(self, run_id: str) -> None:
        with _sorted_errors():
            self.client.delete_run(run_id)

    def log_file(self, run_id: str, path: Path) -> None:
        with _sorted_errors():
            self.client.log_artifact(run_id, str(path))

    def finish(self) -> None:
        pass

    def commit(self) -> None:
        pass

    def close(self) -> None:
        pass

    def _send(self, run_id: str, items: Sequence[Item], limit: int, send: Callable[[Sequence[Item]], object]) -> list[str]:
        refused: list[str] = []
        waiting = [items[i : i + limit] for i in range(0, len(items), limit)]
        while waiting:
            part = waiting.pop(0)
            try:
                with _sorted_errors():
                    send(part)
            except RefusedError as error:
                self.check_run(run_id)
                if len(part) == 1:
                    refused.append(f"{getattr(part[0], 'key', '')}: refused by MLflow: {error}")
                else:
                    waiting[:0] = [part[: len(part) // 2], part[len(part) // 2 :]]
        return refused


@contextlib.contextmanager
def _sorted_errors() -> Iterator[None]:
    try:
        yield
    except MlflowException as error:
        words = in_short(str(error.message) or error.error_code)
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            raise UnknownRunError(words) from error
        if error.error_code in ("INVALID_PARAMETER_VALUE", "BAD_REQUEST", "INVALID_STATE", "RESOURCE_ALREADY_EXISTS"):
            raise RefusedError(words) from error
        raise UnreachableError(words) from error


def in_short(words: str) -> str:
    """One line for a person; of a failed connection only its reason, without the names of three libraries."""
    for pattern, reason in REASONS.items():
        if re.search(pattern, words):
            return reason
    return (words.strip().splitlines() or [""])[0][:300]


def upload(uri: str, run_id: str, path: Path) -> None:
    """Keep a file with a run, wherever the experiment's artifacts are."""
    with _sorted_errors():
        MlflowClient(tracking_uri=uri).log_artifact(run_id, str(path))


def _have_experiment(client: MlflowClient, name: str, folder: Path | None) -> str:
    """The experiment's id; it is created if it is missing, by whichever of several processes comes first."""
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        location = (folder / "mlartifacts").as_uri() if folder else None
        with contextlib.suppress(MlflowException):
            return str(client.create_experiment(name, artifact_location=location))
        experiment = client.get_experiment_by_name(name)
    if experiment is None:
        raise MlflowException(f"experiment {name!r} cannot be created")
    if experiment.lifecycle_stage != "active":
        raise RefusedError(
            f"experiment {name!r} was deleted in MLflow.\n  Restore it: mlflow experiments restore --experiment-id "
            f"{experiment.experiment_id}; or give another tracking.experiment."
        )
    return str(experiment.experiment_id)


def _diagnose(error: Exception) -> dict[str, str]:
    """What stands in the way, as ``error`` where a person must act, as ``warning`` where waiting may be enough."""
    words = str(getattr(error, "message", "") or error).strip()
    if isinstance(error, ModuleNotFoundError):
        return {"error": f"needs the Python package {error.name}.\n  Install it: pip install {error.name}"}
    if isinstance(error, RefusedError):
        return {"error": words}
    if "database schema" in words:
        return {"error": f"the database is of another MLflow version: {in_short(words)}\n  Upgrade it: mlflow db upgrade URI"}
    if REFUSED_ACCESS.search(words):
        hint = "Set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN."
        if "Host header" in words:
            hint = "Start the server with --allowed-hosts, or give its address instead of its name."
        return {"error": f"access refused: {in_short(words)}\n  {hint}"}
    if "error code 404" in words or "ENDPOINT_NOT_FOUND" in words:
        return {"error": f"there is no MLflow server at this address: {in_short(words)}\n  Give another tracking.uri."}
    return {"warning": in_short(words) or type(error).__name__}


def main() -> None:
    """Print the experiment's id as JSON, or what is wrong."""
    folder = Path(sys.argv[2]) if len(sys.argv) > 2 else None
    if folder:
        os.chdir(folder)  # MLflow notes the current folder as the place of artifacts of its Default experiment
    try:
        answer = {"experiment_id": _have_experiment(MlflowClient(), sys.argv[1], folder)}
    except Exception as error:
        answer = _diagnose(error)
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
