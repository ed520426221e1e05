"""scikit-learn's digits: drawn at any size, each with a caption of its own that says what is seen."""

import importlib.util
from typing import Any

import numpy as np
import pytest

from accum_sweeps.plan.errors import ConfigError
from accum_sweeps.training.data import digits


def test_there_are_1797_images_and_no_two_captions_are_equal() -> None:
    images, captions = digits.read()
    assert images.shape == (1797, 8, 8) and images.dtype == np.uint8 and images.max() == 16
    assert len(captions) == len(set(captions)) == 1797
    assert {len(caption.split()) for caption in captions} <= set(range(12, 22))


def image(*pixels: tuple[int, int]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    made = np.zeros((1, 8, 8), np.uint8)
    for row, column in pixels:
        made[0, row, column] = 10
    return made


@pytest.mark.parametrize(
    ("pixels", "caption"),
    [
        ([(0, 0), (1, 0)], "a three high left narrow ink two zero above two zero left two zero"),
        ([(5, 7), (6, 6), (7, 5)], "a three leaning far right low right narrow ink three zero above zero left zero"),
        ([(2, 2), (3, 3), (4, 4), (5, 5)], "a three leaning far left narrow ink four zero above two zero left two zero"),
        ([(3, 0), (3, 7), (4, 0), (4, 7)], "a three wide ink four zero above two zero left two zero"),
    ],
)
def test_a_caption_says_slant_place_width_and_ink(pixels: list[tuple[int, int]], caption: str) -> None:
    assert digits.captions(image(*pixels), np.array([3], np.uint8)) == [caption]


def test_a_drawn_pixel_has_the_value_of_the_nearest_one() -> None:
    images, _ = digits.read()
    large = digits.drawn(images[:5], 24)
    assert large.shape == (5, 3, 24, 24) and large.dtype == np.uint8
    assert (large[:, 0] == large[:, 2]).all() and large.max() == 255
    assert (large[:, 0, 1::3, 2::3] == images[:5].astype(int) * 255 // 16).all()
    assert digits.drawn(images[:5], 20).shape == (5, 3, 20, 20)


def test_without_the_file_it_says_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"data='digits'.*needs the file datasets/data/digits\.csv\.gz of scikit-learn"):
        digits.read()
