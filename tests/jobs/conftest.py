"""Each test has cores and GPUs of its own: slot locks live in the temporary folder."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from accum_sweeps import execute as execute_module


@pytest.fixture(autouse=True)
def own_slots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(execute_module, "make_session", execute_module.make_session)  # type: ignore[attr-defined]  # undoes what the fake engine does inline


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets the fake engine's script."""

    def set_script(**script: Any) -> None:
        monkeypatch.setenv("FAKE", json.dumps(script, default=str))

    return set_script
