"""Tests of accum_sweeps.plan.tracking."""

from pathlib import Path
from typing import Any

import pytest

from accum_sweeps.plan.errors import ConfigError
from accum_sweeps.plan.tracking import resolve, without_password

ROOT = Path("/data/sweeps")


def uri(values: dict[str, Any], **environment: str) -> str | None:
    """The resolved URI."""
    found: str | None = resolve({"experiment": "e", "kind": "sqlite", **values}, ROOT, environment)["uri"]
    return found


def test_default_is_a_database_in_the_root() -> None:
    assert resolve({"kind": "sqlite", "uri": None, "experiment": "e"}, ROOT, {}) == {
        "kind": "sqlite",
        "uri": "sqlite:////data/sweeps/mlflow.db",
        "experiment": "e",
    }


def test_explicit_uri_wins_over_the_variable_and_the_variable_over_the_root() -> None:
    assert uri({"uri": "http://a:1"}, MLFLOW_TRACKING_URI="http://b:2") == "http://a:1"
    assert uri({}, MLFLOW_TRACKING_URI="http://b:2") == "http://b:2"
    assert uri({"kind": "server"}, MLFLOW_TRACKING_URI="http://b:2") == "http://b:2"
    assert uri({}, MLFLOW_TRACKING_URI="") == "sqlite:////data/sweeps/mlflow.db"
    assert uri({"kind": "none"}, MLFLOW_TRACKING_URI="http://b:2") is None


def test_relative_database_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert uri({"uri": "sqlite:///a/b.db?timeout=5"}) == f"sqlite:///{tmp_path}/a/b.db?timeout=5"
    assert uri({"uri": "sqlite:////a/b.db"}) == "sqlite:////a/b.db"


@pytest.mark.parametrize("good", ["https://host/mlflow", "http://127.0.0.1:5000", "postgresql+psycopg2://u:p@h:5432/db", "mysql://h/db"])
def test_servers_and_databases_are_taken_as_they_are(good: str) -> None:
    assert uri({"uri": good}) == good


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"uri": "./mlruns"}, "tracking.uri='./mlruns': MLflow's file store is closed"),
        ({"uri": "file:///a/mlruns"}, "tracking.uri='file:///a/mlruns': MLflow's file store is closed"),
        (
            {"uri": "postgres://h/db"},
            "tracking.uri='postgres://h/db': the scheme must be one of http, https, mysql, postgresql, ",
        ),
        ({"uri": "htp://h"}, "tracking.uri='htp://h': the scheme must be one of"),
        ({"uri": "http:/h"}, "tracking.uri='http:/h': the scheme must be one of"),
        ({"uri": "http://"}, "tracking.uri='http://': names no host"),
        ({"uri": "http://h:port"}, "tracking.uri='http://h:port': is malformed: Port could not be cast"),
        ({"uri": "http://[::1"}, "tracking.uri='http://[::1': is malformed: Invalid IPv6 URL"),
        ({"uri": "sqlite://a.db"}, "tracking.uri='sqlite://a.db': must name a file"),
        ({"uri": "sqlite:///"}, "tracking.uri='sqlite:///': must name a file"),
        ({"uri": "sqlite:///:memory:"}, "tracking.uri='sqlite:///:memory:': must name a file"),
        ({"uri": 5}, "tracking.uri=5: must be a URI"),
        ({"kind": "server"}, "tracking.uri=None: a server needs its URI"),
        ({"kind": "sqlit"}, "tracking.kind='sqlit': must be one of none, server, sqlite (did you mean sqlite?)"),
        ({"experiment": ""}, "tracking.experiment='': must be the name of an MLflow experiment"),
        ({"url": "http://h"}, "tracking.url='http://h': there is no such key; must be one of experiment, kind, uri (did you mean uri?)"),
    ],
)
def test_malformed_tracking_is_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        uri(values)
    assert str(caught.value).startswith(words)


def test_variable_is_named_when_it_is_to_blame() -> None:
    with pytest.raises(ConfigError, match=r"^\$MLFLOW_TRACKING_URI='mlruns': "):
        uri({}, MLFLOW_TRACKING_URI="mlruns")


def test_passwords_are_not_printed() -> None:
    assert without_password("postgresql://me:secret@h/db") == "postgresql://me:***@h/db"
    assert without_password("http://h:80/a") == "http://h:80/a"
    with pytest.raises(ConfigError) as caught:
        uri({"uri": "postgres://me:secret@h/db"})
    assert "secret" not in str(caught.value)
