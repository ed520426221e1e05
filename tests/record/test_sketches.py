"""The file of sketches: what is saved comes back, and older files are read."""

from pathlib import Path

import numpy as np

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
