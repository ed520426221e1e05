"""scikit-learn's handwritten digits with captions made from what can be seen: which digit, its slant, place, width and ink.

Shapes: N images of 8 x 8 pixels, values 0 (background) to 16. Only the file is read: importing scikit-learn would take seconds.
"""

import importlib.util
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from accum_sweeps.plan.errors import ConfigError

SIDE = 8
INK = 16  # the largest value of a pixel
_FILE = "datasets/data/digits.csv.gz"
_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")

# Limits between words, such that each word fits 5 % of the digits or more. In pixels; a slant is a shift per row.
_SLANTS = (-0.15, -0.05, 0.05, 0.15)
_SLANT_WORDS = ("leaning far left", "leaning left", "", "leaning right", "leaning far right")
_ROWS, _ROW_WORDS = (3.3, 3.7), ("high", "", "low")
_COLUMNS, _COLUMN_WORDS = (3.4, 3.7), ("left", "", "right")
_WIDTHS, _WIDTH_WORDS = (1.18, 1.34), ("narrow", "", "wide")

Images = NDArray[np.uint8]


def read() -> tuple[Images, list[str]]:
    """(images, uint8, (N, 8, 8); N captions, all different). Raises ConfigError where scikit-learn has no such file."""
    found = importlib.util.find_spec("sklearn")
    file = Path(str(found.origin)).parent / _FILE if found else Path(_FILE)
    if not file.is_file():
        raise ConfigError("data", "digits", f"needs the file {_FILE} of scikit-learn, which is not there", 'Or: data="image_text".')
    table = np.loadtxt(file, delimiter=",", dtype=np.uint8)
    images, labels = table[:, :-1].reshape(-1, SIDE, SIDE), table[:, -1]
    return images, captions(images, labels)


def captions(images: Images, labels: NDArray[np.uint8]) -> list[str]:
    """What each image shows, in 9 to 16 words."""
    values = images.astype(np.float64)
    ink = values.sum((1, 2))
    rows, columns = np.mgrid[:SIDE, :SIDE]
    row, column = (((values * place).sum((1, 2)) / ink) for place in (rows, columns))
    down, right = rows - row[:, None, None], columns - column[:, None, None]
    slant = -(values * down * right).sum((1, 2)) / (values * down**2).sum((1, 2))
    width = np.sqrt((values * right**2).sum((1, 2)) / ink)
    seen = [
        _words(slant, _SLANTS, _SLANT_WORDS),
        _words(row, _ROWS, _ROW_WORDS),
        _words(column, _COLUMNS, _COLUMN_WORDS),
        _words(width, _WIDTHS, _WIDTH_WORDS),
    ]
    halves = ("ink", ink), ("above", values[:, : SIDE // 2].sum((1, 2))), ("left", values[:, :, : SIDE // 2].sum((1, 2)))
    amounts = [[f"{name} {_spelled(amount)}" for amount in sums] for name, sums in halves]  # without them some captions would be equal
    digits = [f"a {_WORDS[label]}" for label in labels]
    return [" ".join(filter(None, parts)) for parts in zip(digits, *seen, *amounts, strict=True)]


def _words(values: NDArray[np.float64], limits: tuple[float, ...], words: tuple[str, ...]) -> list[str]:
    return [words[place] for place in np.searchsorted(limits, values)]


def _spelled(number: float) -> str:
    return " ".join(_WORDS[int(figure)] for figure in str(int(number)))


def drawn(images: Images, side: int) -> NDArray[np.uint8]:
    """The images at ``side`` pixels, 0 to 255, grey in three channels: (N, 3, side, side). Each pixel takes the nearest one's value."""
    nearest = np.arange(side) * SIDE // side
    large = (images.astype(np.uint16) * 255 // INK).astype(np.uint8)[:, nearest][:, :, nearest]
    return np.repeat(large[:, None], 3, axis=1)
