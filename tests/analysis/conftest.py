"""What holds for all tests of the analysis."""

import pytest


@pytest.fixture(autouse=True)
def without_syncing(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test here cuts the power, and hundreds of small files wait long for the disk."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
