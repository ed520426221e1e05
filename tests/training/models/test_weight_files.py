"""Weights to start from: found, hashed, and refused where they are not what was planned."""

from pathlib import Path

import pytest
import torch

from accum_sweeps.plan.errors import ConfigError, UserError
from accum_sweeps.training.models.weight_files import content_hash, read


def test_the_hash_is_that_of_the_content_wherever_it_lies(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for file in (tmp_path / "w.pt", tmp_path / "folder" / "pytorch_model.bin"):
        file.write_bytes(b"weights")
    (tmp_path / "other.pt").write_bytes(b"other")
    assert content_hash(tmp_path / "w.pt") == content_hash(tmp_path / "folder") != content_hash(tmp_path / "other.pt")
    assert len(content_hash(tmp_path / "w.pt")) == 32


def test_a_missing_file_and_an_empty_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.weights=.*there is no such file or folder"):
        content_hash(tmp_path / "no")
    with pytest.raises(ConfigError, match=r"holds none of model\.safetensors, pytorch_model\.bin"):
        content_hash(tmp_path)


def test_a_file_that_changed_since_the_plan_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "w.pt"
    torch.save({"w": torch.ones(2)}, file)
    planned = content_hash(file)
    assert torch.equal(read(file, planned)["w"], torch.ones(2))
    torch.save({"w": torch.zeros(2)}, file)
    with pytest.raises(UserError, match="changed since the sweep was planned"):
        read(file, planned)


@pytest.mark.parametrize("name", ["w.pt", "model.safetensors"])
def test_a_file_that_holds_no_weights_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"no weights at all")
    with pytest.raises(UserError, match="holds no weights by name"):
        read(tmp_path / name, content_hash(tmp_path / name))
