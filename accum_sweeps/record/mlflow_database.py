"""Makes sure, before anything is trained, that MLflow can take the runs: database, schema, experiment.

What exists already is checked with the standard library alone (importing MLflow takes longer than the check by a factor
of a hundred). What is missing is created by a process of its own that imports MLflow, under a lock beside the database, so
that any number of first starts at the same moment end with one database and one experiment.
"""

import contextlib
import functools
import importlib.util
import json
import os
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from accum_sweeps.plan.errors import ConfigError, UserError
from accum_sweeps.plan.tracking import check_uri, without_password
from accum_sweeps.record.files import cache_folder, write_atomic
from accum_sweeps.record.mlflow_cursor import exclusive
from accum_sweeps.record.mlflow_sqlite import add_experiment, is_understood, sqlite_path
from accum_sweeps.record.mlflow_tracker import environment

CREATE_LIMIT_S = 120  # creating a database takes 2 s; several first starts wait for one another
SERVER_LIMIT_S = 25  # import of MLflow and two requests; a server that takes longer counts as unreachable
_REVISION = re.compile(r"^revision\s*=\s*['\"](\w+)['\"]", re.MULTILINE)
_EARLIER = re.compile(r"^down_revision\s*=\s*(.+)$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """Where runs go. ``warning`` is not empty where the server could not be reached: then everything is sent later."""

    uri: str
    experiment_id: str = ""
    warning: str = ""


def prepare(uri: str, experiment: str) -> Prepared:
    """Have the database and the experiment ready; safe and quick to call any number of times, from any number of processes.

    Raises UserError for what will not mend by itself: a malformed URI, a folder that cannot be written, a file that is no
    database, a schema that does not fit the installed MLflow, refused credentials, an experiment deleted in MLflow.
    """
    uri = check_uri(uri, "tracking.uri")
    if not experiment.strip() or len(experiment) > 256:
        raise ConfigError("tracking.experiment", experiment, "must be the name of an MLflow experiment, 1 to 256 characters")
    path = sqlite_path(uri)
    if path is None:
        return _prepare_server(uri, experiment)
    found = _find(path, experiment) or _create_once(path, uri, experiment)
    return Prepared(uri=uri, experiment_id=found)


def _create_once(path: Path, uri: str, experiment: str) -> str:
    """Create what is missing, or find that another process has just done so."""
    _check_folder(path)
    deadline = time.monotonic() + CREATE_LIMIT_S
    with exclusive(path.with_name(f".{path.name}.lock"), lambda: time.monotonic() > deadline) as is_held:
        if not is_held:
            raise UserError(f"tracking.uri={uri}: another process has been creating it for {CREATE_LIMIT_S} s.\n  Try again.")
        found = _find(path, experiment)
        if found is None:
            if _is_empty(path):
                _create_database(path)
            _add_experiment(path, uri, experiment)
            found = _find(path, experiment)
    if found is None:
        raise UserError(f"tracking.uri={uri}: MLflow created no experiment {experiment!r} there.\n  Give another tracking.uri.")
    return found


def _create_database(path: Path) -> None:
    """Create it under another name and rename it: nobody ever sees half a database, and a crash leaves none.

    MLflow takes two seconds for an empty database, always the same one: it is kept for the next root.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    pattern = _pattern()
    try:
        if not _copy(pattern, part):
            _ask_mlflow(f"sqlite:///{part}", "Default", path.parent, CREATE_LIMIT_S)
            with contextlib.suppress(OSError):
                pattern.parent.mkdir(parents=True, exist_ok=True)
                write_atomic(pattern, lambda file: file.write(part.read_bytes()))
        with contextlib.closing(sqlite3.connect(part)) as connection, connection:
            connection.execute("UPDATE experiments SET artifact_location = ? WHERE experiment_id = 0", (str(path.parent / "mlruns" / "0"),))
        part.replace(path)
    finally:
        for leftover in path.parent.glob(f"{part.name}*"):
            leftover.unlink(missing_ok=True)


def _pattern() -> Path:
    """Where an empty database of the installed MLflow's schema is kept."""
    return cache_folder() / f"mlflow-{'-'.join(sorted(installed_revisions()[0]))}.db"


def _copy(pattern: Path, part: Path) -> bool:
    """Copy the kept empty database; False, and nothing copied, if there is none or it is not what it should be."""
    try:
        part.write_bytes(pattern.read_bytes())
        _check_schema(part)
        with _reading(part) as connection:
            if connection.execute("SELECT (SELECT count(*) FROM experiments), (SELECT count(*) FROM runs)").fetchone() == (1, 0):
                return True
    except (OSError, sqlite3.Error, UserError):
        pass
    part.unlink(missing_ok=True)
    return False


def _add_experiment(path: Path, uri: str, experiment: str) -> None:
    if is_understood(path):
        add_experiment(path, experiment, (path.parent / "mlartifacts").as_uri())
    else:
        _ask_mlflow(uri, experiment, path.parent, CREATE_LIMIT_S)


def _ask_mlflow(uri: str, experiment: str, folder: Path | None, limit_s: float) -> dict[str, str]:
    """What the process that imports MLflow says of database or server: ``experiment_id``, or ``error`` (for a person) or ``warning``."""
    # The URI may hold a password, and a command line can be read by everybody on the machine.
    variables = {**os.environ, **environment(), "MLFLOW_TRACKING_URI": uri}
    command = [sys.executable, "-m", "accum_sweeps.record.mlflow_client", experiment, *([str(folder)] if folder else [])]
    try:
        done = subprocess.run(
            command, check=False, env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit_s
        )
    except subprocess.TimeoutExpired:
        return {"warning": f"no answer within {limit_s:.0f} s"}
    with contextlib.suppress(ValueError, IndexError):
        answer: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
        if "error" not in answer:
            return answer
        raise UserError(f"tracking.uri={without_password(uri)}: {answer['error']}")
    words = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    raise UserError(f"tracking.uri={without_password(uri)}: MLflow cannot use it: {words[-1]}")


def _prepare_server(uri: str, experiment: str) -> Prepared:
    answer = _ask_mlflow(uri, experiment, None, SERVER_LIMIT_S)
    words = answer.get("warning", "")
    warning = f"MLflow at {without_password(uri)} cannot be reached ({words}). Runs are kept and sent later." if words else ""
    return Prepared(uri=uri, experiment_id=answer.get("experiment_id", ""), warning=warning)


def _check_folder(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"tracking.uri: {path.parent} cannot be made: {error.strerror}.\n  Give another tracking.uri.") from None
    if not os.access(path.parent, os.W_OK | os.X_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise UserError(f"tracking.uri: no permission to write {path}.\n  Give another tracking.uri.")


def _is_empty(path: Path) -> bool:
    return not path.exists() or path.stat().st_size == 0


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    # Not read-only: a writer that was killed may have left a transaction that the next reader has to roll back.
    connection = sqlite3.connect(f"file:{quote(str(path))}?mode=rw", uri=True, timeout=20)
    try:
        yield connection
    finally:
        connection.close()


def _find(path: Path, experiment: str) -> str | None:
    """The experiment's id, None where database or experiment are missing; UserError where the file cannot be used."""
    try:
        if _is_empty(path):
            return None
        if not os.access(path, os.W_OK):
            raise UserError(f"tracking.uri: no permission to write {path}.\n  Give another tracking.uri.")
        _check_schema(path)
        with _reading(path) as connection:
            rows = connection.execute("SELECT experiment_id, lifecycle_stage FROM experiments WHERE name = ?", (experiment,)).fetchall()
    except (sqlite3.Error, OSError) as error:
        raise UserError(f"tracking.uri: {path} cannot be used: {error}.\n  Give another tracking.uri, or move that file away.") from None
    if not rows:
        return None
    if rows[0][1] != "active":
        raise UserError(
            f"tracking.experiment={experiment!r}: was deleted in MLflow ({path}).\n"
            f"  Restore it: mlflow experiments restore --experiment-id {rows[0][0]}; or give another tracking.experiment."
        )
    return str(rows[0][0])


def _check_schema(path: Path) -> None:
    found = _schema(path)
    heads, known = installed_revisions()
    while found in known and found not in heads and time.time() - path.stat().st_mtime < 2:
        time.sleep(0.2)  # MLflow itself may be creating or upgrading it right now
        found = _schema(path)
    if found in heads:
        return
    where = f"tracking.uri: {path}"
    if not found:
        raise UserError(f"{where} is a SQLite database, but not of MLflow.\n  Give another tracking.uri.")
    if found in known:
        raise UserError(
            f"{where} is of an older MLflow (schema {found}).\n  Back it up, then upgrade it: mlflow db upgrade sqlite:///{path}"
        )
    raise UserError(
        f"{where} is of a newer MLflow than the installed one (schema {found} is unknown to it).\n"
        "  Update MLflow (pip install -U mlflow), or give another tracking.uri."
    )


def _schema(path: Path) -> str:
    with _reading(path) as connection:
        tables = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'alembic_version'").fetchone()[0]
        rows = connection.execute("SELECT version_num FROM alembic_version").fetchall() if tables else []
    return str(rows[0][0]) if rows else ""


@functools.cache
def installed_revisions() -> tuple[frozenset[str], frozenset[str]]:
    """Newest and all schema revisions of the installed MLflow, read from its migration scripts."""
    package = importlib.util.find_spec("mlflow")
    if package is None or not package.submodule_search_locations:
        raise UserError("MLflow is not installed.\n  Install it (pip install mlflow), or switch it off: tracking=none.")
    scripts = Path(package.submodule_search_locations[0]) / "store" / "db_migrations" / "versions"
    texts = [script.read_text(encoding="utf-8") for script in scripts.glob("*.py")]
    known = {match.group(1) for text in texts if (match := _REVISION.search(text))}
    earlier = {name for text in texts if (match := _EARLIER.search(text)) for name in re.findall(r"\w+", match.group(1))}
    return frozenset(known - earlier), frozenset(known)
