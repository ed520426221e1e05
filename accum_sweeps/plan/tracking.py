"""Where MLflow is: the tracking URI, checked and made absolute without importing MLflow."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from accum_sweeps.plan.errors import ConfigError, one_of

SCHEMES = ("sqlite", "http", "https", "postgresql", "mysql")
KINDS = ("sqlite", "server", "none")
KEYS = ("kind", "uri", "experiment")
VARIABLE = "MLFLOW_TRACKING_URI"


def resolve(values: Mapping[str, Any], root: Path, environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """``{kind, uri, experiment}`` with an absolute URI, None for kind none.

    An explicit ``tracking.uri`` wins over $MLFLOW_TRACKING_URI, which wins over ``mlflow.db`` in ``root``. Raises
    ConfigError for unknown keys, a malformed URI, a file store, a server without a URI.
    """
    for key in values:
        if key not in KEYS:
            raise ConfigError(f"tracking.{key}", values[key], f"there is no such key; {one_of(key, KEYS)}")
    kind, experiment = values.get("kind"), values.get("experiment")
    if kind not in KINDS:
        raise ConfigError("tracking.kind", kind, one_of(kind, KINDS))
    if not isinstance(experiment, str) or not experiment.strip():
        raise ConfigError("tracking.experiment", experiment, "must be the name of an MLflow experiment")
    return {"kind": kind, "uri": None if kind == "none" else _uri(kind, values.get("uri"), root, environment), "experiment": experiment}


def _uri(kind: str, explicit: Any, root: Path, environment: Mapping[str, str]) -> str:
    if explicit is not None:
        return check_uri(explicit, "tracking.uri")
    if environment.get(VARIABLE):
        return check_uri(environment[VARIABLE], f"${VARIABLE}")
    if kind == "server":
        raise ConfigError("tracking.uri", None, "a server needs its URI, e.g. http://host:5000", f"Or set ${VARIABLE}.")
    return f"sqlite:///{root / 'mlflow.db'}"


def check_uri(uri: Any, key: str) -> str:
    """``uri`` with an absolute path where it names a file; ConfigError otherwise. Passwords are not printed."""
    example = "Write e.g. sqlite:///folder/mlflow.db or http://host:5000."
    if not isinstance(uri, str):
        raise ConfigError(key, uri, "must be a URI", example)
    try:
        parts = urlsplit(uri)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(key, without_password(uri), f"is malformed: {error}", example) from None
    scheme = parts.scheme.split("+")[0]  # postgresql+psycopg2
    if scheme in ("", "file"):
        raise ConfigError(key, uri, f"MLflow's file store is closed to new runs; the scheme {one_of(scheme, SCHEMES)}", example)
    if scheme not in SCHEMES or "://" not in uri:
        raise ConfigError(key, without_password(uri), f"the scheme {one_of(scheme, SCHEMES)}", example)
    if scheme == "sqlite":
        return _sqlite(uri, key, parts.netloc, parts.path, example)
    if not host:
        raise ConfigError(key, without_password(uri), "names no host", example)
    return uri


def _sqlite(uri: str, key: str, netloc: str, path: str, example: str) -> str:
    if netloc or len(path) < 2 or path == "/:memory:":
        raise ConfigError(key, uri, "must name a file: three slashes and a relative path, or four and an absolute one", example)
    file, query = Path(path[1:]).expanduser(), uri.partition("?")[2]
    return f"sqlite:///{file.absolute()}" + (f"?{query}" if query else "")


def without_password(uri: str) -> str:
    """``uri`` as it may be printed."""
    before, at, after = uri.rpartition("@")
    scheme, separator, user = before.partition("://")
    return f"{scheme}{separator}{user.split(':')[0]}:***@{after}" if at and ":" in user else uri
