"""A folder of images with a captions file: one line for each pair, the image's file, a tab or comma, the caption."""

import functools
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from accum_sweeps.plan.errors import ConfigError

_KEPT_IMAGES = 1024  # decoded images that are kept in memory
_LINE = "A line is: image file, tab or comma, caption; there is no header line."


def read(folder: Path, captions: Path) -> tuple[list[Path], list[str]]:
    """(image files, their captions), in the order of the lines of ``captions``; blank lines are left out.

    Lines are cut at their first tab where the file has tabs, else at their first comma. Raises ConfigError for a folder, file or image that
    is not there or cannot be read, and for a line without a caption.
    """
    if not folder.is_dir():
        raise ConfigError("data.path", str(folder), "there is no such folder", f"Relative paths start at {Path.cwd()}.")
    try:
        lines = captions.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("data.captions", str(captions), f"cannot be read: {getattr(error, 'strerror', 'it is no UTF-8')}") from error
    separator = "\t" if any("\t" in line for line in lines) else ","
    numbered = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    pairs = [_pair(folder, captions, number, line, separator) for number, line in numbered]
    return [file for file, _ in pairs], [caption for _, caption in pairs]


def _pair(folder: Path, captions: Path, number: int, line: str, separator: str) -> tuple[Path, str]:
    name, _, caption = (part.strip().strip('"').strip() for part in line.partition(separator))
    if not caption:
        raise ConfigError("data.captions", str(captions), f"line {number} has no caption: {line.strip()[:60]!r}", _LINE)
    file = folder / name
    try:
        with Image.open(file):  # reads the header only
            return file, caption
    except UnidentifiedImageError:
        problem = "is no image that pillow can read"
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
    raise ConfigError("data.captions", str(captions), f"line {number}: the image {file} {problem}", _LINE)


@functools.lru_cache(maxsize=_KEPT_IMAGES)
def decoded(file: Path, side: int) -> NDArray[np.uint8]:
    """The image in RGB, (3, side, side): its shorter side scaled to ``side`` (bicubic), the middle cut out."""
    with Image.open(file) as image:
        width, height = image.size
        scale = side / min(width, height)
        size = max(side, round(width * scale)), max(side, round(height * scale))
        left, top = (size[0] - side) // 2, (size[1] - side) // 2
        scaled = image.convert("RGB").resize(size, Image.Resampling.BICUBIC).crop((left, top, left + side, top + side))
        return np.ascontiguousarray(np.asarray(scaled).transpose(2, 0, 1))
