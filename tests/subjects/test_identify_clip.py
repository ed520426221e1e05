"""What planning finds of the contrastive subject: packages, data and weights, by their content and from the folder of the command."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from accum_sweeps.plan.errors import ConfigError, UserError
from accum_sweeps.plan.parts import Digits
from accum_sweeps.subjects import identify_clip
from accum_sweeps.subjects.identify_clip import identify
from accum_sweeps.training.data import pairs
from tests.contrastive import DIGITS, clip_spec, encoder

DATA = Digits(name="digits", **DIGITS)


def test_weights_are_hashed_and_their_path_is_seen_from_the_folder_of_the_command(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(b"some")
    model, data = identify(encoder(weights="weights.bin"), DATA, 16, tmp_path)
    assert model.weights == str(tmp_path / "weights.bin") and len(model.weights_hash) == len(data.hash) == 32
    with pytest.raises(ConfigError, match=r"model\.weights=.*other\.bin.*there is no such file or folder"):
        identify(encoder(weights="other.bin"), DATA, 16, tmp_path)


def test_the_run_id_depends_on_the_weights_content_and_not_on_their_place() -> None:
    def run_id(**changes: Any) -> str:
        return clip_spec(**{f"model.{key}": value for key, value in changes.items()}).run_id

    assert run_id(weights="/a", weights_hash="11") == run_id(weights="/b", weights_hash="11")
    assert len({run_id(), run_id(weights="/a", weights_hash="11"), run_id(weights="/a", weights_hash="22")}) == 3


@pytest.mark.parametrize("changes", [{"global_batch": 1}, {"global_batch": 8, "data.epoch_rows": 17, "data.last_window": "short"}])
def test_a_batch_of_one_pair_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="leaves one pair in a batch, which then has no negatives"):
        clip_spec(**changes)


def test_another_version_of_the_library_makes_other_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_id(version: str) -> str:
        monkeypatch.setattr(identify_clip, "version", lambda name: version)
        model, _ = identify(encoder(), DATA, 16, Path())
        return clip_spec(**{"model.library": model.library}).run_id

    assert run_id("5.0") == run_id("5.0") != run_id("5.1")


def test_without_transformers_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "find_spec", lambda name: None if name == "transformers" else importlib.util.find_spec(name))
    with pytest.raises(
        UserError, match=r"subject=clip needs transformers, not installed here\n  Install it with: pip install 'accum_sweeps\[clip\]'"
    ):
        identify(encoder(), DATA, 16, Path())
