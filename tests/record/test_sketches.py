"""The file of sketches: what is saved comes back, and older files are read."""

import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from accum_sweeps.record.sketches import Sketches, TensorSketches, load_sketches


def tensors(value: float) -> TensorSketches:
    return TensorSketches(("a.weight", "a.bias"), np.array([600, 3]), np.full((2, 512), value), ("0a", "0b"))


def test_tensors_come_back_by_step_and_only_up_to_the_step_asked_for(tmp_path: Path) -> None:
    whole = {1: (np.zeros(4096), "one"), 2: (np.ones(4096), "two"), 3: (np.ones(4096), "three")}
    Sketches(whole, {1: tensors(0.5), 3: tensors(0.25)}).save(tmp_path / "x.npz")
    found = load_sketches(tmp_path / "x.npz")
    assert sorted(found.by_step) == [1, 2, 3] and sorted(found.tensors) == [1, 3]
    assert (found.tensors[3].names, found.tensors[3].hashes) == (("a.weight", "a.bias"), ("0a", "0b"))
    assert found.tensors[3].sizes.tolist() == [600, 3]
    assert found.tensors[3].sketches.dtype == np.float64 and (found.tensors[3].sketches == 0.25).all()
    assert sorted(load_sketches(tmp_path / "x.npz", until=2).tensors) == [1]


def test_a_file_without_tensors_has_none(tmp_path: Path) -> None:
    Sketches({1: (np.zeros(4096), "one")}).save(tmp_path / "x.npz")
    assert load_sketches(tmp_path / "x.npz").tensors == {}
    with np.load(tmp_path / "x.npz") as arrays:
        assert sorted(arrays.files) == ["hashes", "sketches", "steps"]


def test_tensors_that_are_not_asked_for_are_not_read(tmp_path: Path) -> None:
    Sketches({1: (np.zeros(4096), "one")}, {1: tensors(0.5)}).save(tmp_path / "x.npz")
    found = load_sketches(tmp_path / "x.npz", tensors=False)
    assert sorted(found.by_step) == [1] and found.tensors == {}


def test_files_of_no_steps_and_missing_files_have_no_sketches(tmp_path: Path) -> None:
    Sketches().save(tmp_path / "x.npz")
    assert load_sketches(tmp_path / "x.npz") == load_sketches(tmp_path / "y.npz") == Sketches()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_what_is_read_is_what_numpy_reads(tmp_path: Path, save: Callable[..., None]) -> None:
    drawn = np.asfortranarray(np.random.default_rng(0).normal(size=(2, 4096)))
    arrays = {"steps": np.array([3, 7]), "sketches": drawn, "hashes": ["a", "bc"]}
    save(tmp_path / "x.npz", **arrays)
    found = load_sketches(tmp_path / "x.npz").by_step
    assert [(step, digest) for step, (_, digest) in found.items()] == [(3, "a"), (7, "bc")]
    assert all((sketch == row).all() for (sketch, _), row in zip(found.values(), drawn, strict=True))


DAMAGE = (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile)


def test_a_damaged_file_is_refused_by_one_of_the_errors_named_or_read_right(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    Sketches({1: (np.ones(4096), "one"), 2: (np.ones(4096), "two")}).save(path)
    whole, generator = path.read_bytes(), np.random.default_rng(1)
    ends = [*range(400), *range(len(whole) - 400, len(whole))]  # the heads of a file and its table of contents
    refused = 0
    for place in [*generator.choice(ends, 500).tolist(), *generator.choice(len(whole), 100).tolist()]:
        broken = bytearray(whole)
        broken[place] ^= int(generator.integers(1, 256))
        path.write_bytes(broken)
        try:
            found = load_sketches(path).by_step
        except DAMAGE:
            refused += 1
        else:
            assert sorted(found) == [1, 2] and all((sketch == 1).all() for sketch, _ in found.values())
    assert refused > 300
    for size in (0, 1, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(DAMAGE):
            load_sketches(path)


def test_objects_are_not_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", steps=np.array([1], dtype=object), sketches=np.zeros((1, 4096)), hashes=["a"])
    with pytest.raises(ValueError, match="objects"):
        load_sketches(tmp_path / "x.npz")
