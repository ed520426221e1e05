"""Any MLflow experiment as runs in memory. The only module of the analysis that imports MLflow, inside its functions: it takes seconds."""

import contextlib
import gc
import os
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from accum_sweeps.analysis.mlflow_rows import LoggedRun
from accum_sweeps.plan.errors import UserError, one_of
from accum_sweeps.plan.tracking import SCHEMES, check_uri, without_password

if TYPE_CHECKING:
    from mlflow import MlflowClient

PAGE = 1000  # runs a request
MIGRATE = "Move it into a database: mlflow migrate-filestore --source FOLDER --target sqlite:///mlflow.db"
DEFAULT = "Default"  # the experiment that MLflow makes by itself
# What MLflow reads while we ask it: nothing is reported to anybody, a server that is not there is told within seconds, no connection
# stays open. Variables that are set already win.
_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_LOGGING_LEVEL": "ERROR",
    "MLFLOW_SQLALCHEMYSTORE_POOLCLASS": "NullPool",
}
_REASONS = {
    r"error code 40[13]\b|PERMISSION_DENIED|UNAUTHENTICATED": (
        "access refused.\n  Set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
    ),
    r"too many \d+ error responses": "the server answers with errors",
    "error code 404|ENDPOINT_NOT_FOUND|not in a valid JSON format": "there is no MLflow server at this address",
    "(?i)timed? ?out": "no answer in time",
    "Connection ?refused|Errno 111": "connection refused",
    "NameResolutionError|Name or service not known|could not translate host name": "unknown host",
    "No route to host|Network is unreachable": "no route to the host",
    "RemoteDisconnected|Connection reset|ConnectionResetError": "connection lost",
}


def is_uri(source: str) -> bool:
    """Whether ``source`` is meant as the address of an MLflow server or database rather than as a path."""
    scheme, colon, _ = source.partition(":")
    return "://" in source or bool(colon and scheme.split("+")[0] in (*SCHEMES, "file", "databricks"))


def read_experiment(uri: str, experiment: str | None) -> tuple[str, list[LoggedRun]]:
    """The experiment's name and its runs in the order of their start; deleted runs are none.

    Without a name it is the only experiment there is, MLflow's own ``Default`` not counted. Raises UserError for an address that is
    none, a database or server that does not answer as MLflow's, and an experiment that is not there.
    """
    if urlsplit(uri).scheme == "file":
        raise UserError(f"{uri}: MLflow 3 has closed its file stores.\n  {MIGRATE}")
    address = check_uri(uri, "source")
    _check_database(address)
    with _environment(), _user_errors(address):
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=address)
        names = _experiments(client)
        name = _chosen(names, experiment, address)
        with _without_collector():
            return name, list(_runs(client, names[name]))


def _check_database(address: str) -> None:
    """MLflow would create a file that is missing, and its tables in one that is not its own."""
    if not address.startswith("sqlite"):
        return
    path = Path(urlsplit(address).path[1:])
    if not path.is_file():
        raise UserError(f"{without_password(address)}: there is no file {path}")
    try:
        with contextlib.closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)) as connection:
            found = connection.execute("SELECT count(*) FROM sqlite_master WHERE name IN ('experiments', 'runs')").fetchone()
    except sqlite3.Error as error:
        raise UserError(f"{path}: cannot be read as a SQLite database ({error})") from None
    if found[0] != 2:
        raise UserError(f"{path}: is no MLflow database, it has no tables of experiments and runs")


def _experiments(client: "MlflowClient") -> dict[str, str]:
    """The ids of the experiments that are not deleted, by name."""
    found: dict[str, str] = {}
    token: str | None = None
    while True:
        page = client.search_experiments(max_results=PAGE, page_token=token)
        found |= {each.name: each.experiment_id for each in page}
        token = page.token
        if not token:
            return found


def _chosen(names: dict[str, str], experiment: str | None, address: str) -> str:
    if experiment is None:
        own = [name for name in names if name != DEFAULT] or list(names)
        if len(own) != 1:
            raise UserError(f"{without_password(address)}: has {len(own)} experiments.\n  Name one as experiment: it {one_of('', own)}")
        return own[0]
    if experiment not in names:
        raise UserError(f"experiment={experiment!r} at {without_password(address)}: {one_of(experiment, names)}")
    return experiment


def _runs(client: "MlflowClient", experiment_id: str) -> Iterator[LoggedRun]:
    token: str | None = None
    while True:
        page = client.search_runs([experiment_id], max_results=PAGE, order_by=["attributes.start_time ASC"], page_token=token)
        yield from (_logged(run) for run in page)
        token = page.token
        if not token:
            return


def _logged(run: Any) -> LoggedRun:
    info, data = run.info, run.data
    return LoggedRun(
        run_id=info.run_id, name=info.run_name or "", status=info.status, params=data.params, metrics=data.metrics, tags=data.tags
    )


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """No search for garbage: among hundred thousands of MLflow's objects, of which none is any, it takes half of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def _environment() -> Iterator[None]:
    added = {name: value for name, value in _ENVIRONMENT.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


@contextlib.contextmanager
def _user_errors(address: str) -> Iterator[None]:
    """What MLflow says, in one line."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    where = without_password(address)
    try:
        yield
    except ModuleNotFoundError as error:  # the driver of a database
        raise UserError(f"{where}: needs the Python package {error.name}.\n  Install it: pip install {error.name}") from None
    except (MlflowException, SQLAlchemyError, OSError) as error:
        words = str(getattr(error, "message", "") or error).strip() or type(error).__name__
        if "database schema" in words:
            raise UserError(f"{where}: is of another MLflow version.\n  Upgrade it: mlflow db upgrade {where}") from None
        first = words.splitlines()[0].replace(address.rstrip("/"), where)[:300]  # which may hold the address with its password
        reason = next((reason for pattern, reason in _REASONS.items() if re.search(pattern, words)), first)
        raise UserError(f"{where}: MLflow cannot be read: {reason}") from None
