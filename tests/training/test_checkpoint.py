"""Checkpoints are whole, belong to one run, and are read without executing anything."""

import os
from pathlib import Path

import pytest
import torch

from accum_sweeps.plan.errors import UserError
from accum_sweeps.training import checkpoint


def save(path: Path, value: float = 1.0, run_id: str = "a") -> None:
    checkpoint.save(path, run_id=run_id, step=7, state={"w": torch.tensor([value])})


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    save(tmp_path / "c.pt", 0.1)
    step, state = checkpoint.load(tmp_path / "c.pt", run_id="a", device="cpu")
    assert (step, state["w"].tolist()) == (7, [pytest.approx(0.1, rel=1e-7)])


@pytest.mark.parametrize("kept", [0, 10, 500])
def test_a_cut_file_is_named_damaged(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "c.pt"
    save(path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(UserError, match=r"c\.pt: damaged checkpoint"):
        checkpoint.load(path, run_id="a", device="cpu")


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    save(tmp_path / "c.pt", run_id="b")
    with pytest.raises(UserError, match="belongs to run b, not to a"):
        checkpoint.load(tmp_path / "c.pt", run_id="a", device="cpu")


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, ("made_by_a_checkpoint",)


def test_code_in_a_checkpoint_is_not_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"run_id": "a", "step": 1, "state": Evil()}, tmp_path / "c.pt")
    with pytest.raises(UserError, match="damaged checkpoint"):
        checkpoint.load(tmp_path / "c.pt", run_id="a", device="cpu")
    assert not (tmp_path / "made_by_a_checkpoint").exists()


def test_a_full_disk_leaves_the_checkpoint_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "c.pt"
    save(path, 1.0)

    def half_written(content: object, file: object) -> None:
        file.write(b"half")  # type: ignore[attr-defined]
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", half_written)
    with pytest.raises(OSError, match="No space left"):
        save(path, 2.0)
    assert [file.name for file in tmp_path.iterdir()] == ["c.pt"]
    assert checkpoint.load(path, run_id="a", device="cpu")[1]["w"].tolist() == [1.0]
