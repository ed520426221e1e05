"""Image-caption pairs: hashed by content, split over the data, checked against the model, drawn without repetition."""

import dataclasses
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from accum_sweeps.plan.errors import ConfigError, UserError
from accum_sweeps.plan.parts import Digits, ImageText
from accum_sweeps.training.data import pairs
from tests.contrastive import DIGITS, encoder


def digits(**changes: Any) -> Digits:
    return Digits(name="digits", **DIGITS | changes)


def folder_of(path: Path, count: int, shade: int = 0) -> ImageText:
    path.mkdir()
    for number in range(count):
        Image.new("RGB", (16, 16), (10 * number, shade, 0)).save(path / f"{number}.png")
    (path / "captions.csv").write_text("".join(f"{number}.png,shade number {number}\n" for number in range(count)))
    return ImageText(name="mine", path=str(path), captions=str(path / "captions.csv"), **DIGITS | {"eval_rows": 2})


def identified(data: Digits | ImageText, batch: int = 4, **model: Any) -> Any:
    return pairs.identify(data, encoder(**model), batch, Path("/"))


def loaded(data: Digits | ImageText) -> pairs.PairSet:
    return pairs.load(identified(data), 16, 256, 24)


def test_the_evaluation_pairs_are_spread_over_the_data_and_not_trained_on() -> None:
    made = loaded(digits(eval_rows=40))
    assert len(made.evaluation) == 40 and len(made.train) == 1757
    assert set(made.train) | set(made.evaluation) == set(range(1797))
    assert set(np.diff(made.evaluation)) <= {44, 45} and (np.diff(made.train) > 0).all()


def test_a_batch_has_normalized_images_and_their_captions() -> None:
    made = loaded(digits())
    batch = pairs.batch(made, np.array([7, 3]))
    assert batch.images.shape == (2, 3, 16, 16) and batch.images.dtype == np.float32
    expected = made.pixels(np.array([3]))[0] / 255
    assert batch.images[1] * [[[0.26862954]], [[0.26130258]], [[0.27577711]]] + [
        [[0.48145466]],
        [[0.4578275]],
        [[0.40821073]],
    ] == pytest.approx(expected, abs=1e-6)
    assert batch.ids.tolist() == made.captions.ids[[7, 3]].tolist() and batch.lengths.tolist() == made.captions.lengths[[7, 3]].tolist()


def test_a_folders_hash_is_that_of_its_images_and_captions_wherever_it_lies(tmp_path: Path) -> None:
    here, there, other = (identified(folder_of(tmp_path / name, 8, shade)).hash for name, shade in (("a", 0), ("b", 0), ("c", 1)))
    assert here == there != other
    captions = tmp_path / "b" / "captions.csv"
    captions.write_text(captions.read_text().replace("number 3", "three"))
    assert identified(dataclasses.replace(folder_of(tmp_path / "d", 8), path=str(tmp_path / "b"), captions=str(captions))).hash != here


def test_paths_are_seen_from_the_folder_of_the_command(tmp_path: Path) -> None:
    data = dataclasses.replace(folder_of(tmp_path / "a", 8), path="a", captions="a/captions.csv")
    found = pairs.identify(data, encoder(), 4, tmp_path)
    assert isinstance(found, ImageText)
    assert (found.path, found.captions) == (str(tmp_path / "a"), str(tmp_path / "a" / "captions.csv"))


def test_a_changed_folder_is_refused_by_a_worker(tmp_path: Path) -> None:
    planned = identified(folder_of(tmp_path / "a", 8))
    Image.new("RGB", (16, 16), (1, 2, 3)).save(tmp_path / "a" / "0.png")
    pairs.load.cache_clear()
    with pytest.raises(UserError, match="the images or captions of data=mine changed since the sweep was planned"):
        pairs.load(planned, 16, 256, 24)


@pytest.mark.parametrize(
    ("changes", "batch", "message"),
    [
        ({"eval_rows": 1797}, 4, r"data\.eval_rows=1797: there are 1797 pairs"),
        ({"eval_rows": 1790}, 8, r"global_batch=8: 7 pairs are left for training beside data\.eval_rows=1790"),
        ({"epoch_rows": 1758}, 8, r"data\.epoch_rows=1758: 1757 pairs are left for training"),
    ],
)
def test_too_few_pairs_are_refused(changes: dict[str, Any], batch: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        identified(digits(**changes), batch)


def test_a_model_that_is_too_small_for_the_captions_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"model\.vocabulary=20: the captions have 21 words: 24 or more is needed"):
        identified(digits(), vocabulary=20)
    with pytest.raises(ConfigError, match=r"model\.text_length=21: the longest caption needs 22 tokens"):
        identified(digits(), text_length=21)


def test_a_missing_package_is_named_with_its_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "find_spec", lambda name: None if name == "PIL" else importlib.util.find_spec(name))
    data = ImageText(name="mine", path="/x", captions="/y", **DIGITS)
    with pytest.raises(
        UserError, match=r"data=image_text needs pillow, not installed here\n  Install it with: pip install 'accum_sweeps\[clip\]'"
    ):
        identified(data)


def test_a_step_draws_each_pair_at_most_once_and_by_seed_and_step_alone() -> None:
    draws = [pairs.drawn(digits(), 30, 20, seed, step).tolist() for seed, step in ((0, 1), (0, 1), (0, 2), (1, 1))]
    assert draws[0] == draws[1] and len({tuple(draw) for draw in draws}) == 3
    assert all(len(set(draw)) == 20 and set(draw) <= set(range(30)) for draw in draws)


def test_without_shuffling_the_pairs_come_in_order_again_and_again() -> None:
    data = digits(shuffle=False)
    assert [pairs.drawn(data, 7, 3, 0, step).tolist() for step in (1, 2, 3)] == [[0, 1, 2], [3, 4, 5], [6, 0, 1]]
    epoch = digits(shuffle=False, epoch_rows=5, last_window="short")
    assert [pairs.drawn(epoch, 7, 3, 0, step).tolist() for step in (1, 2, 3)] == [[0, 1, 2], [3, 4], [0, 1, 2]]
