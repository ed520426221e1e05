"""A folder of images with a captions file: read in order, images cut square, mistakes named with their line."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from accum_sweeps.plan.errors import ConfigError
from accum_sweeps.training.data.image_folder import decoded, read


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, color in enumerate([(255, 0, 0), (0, 255, 0)]):
        Image.new("RGB", (10, 6), color).save(tmp_path / f"{number}.png")
    return tmp_path


def written(folder: Path, text: str) -> Path:
    (folder / "captions.txt").write_text(text)
    return folder / "captions.txt"


@pytest.mark.parametrize(
    "text",
    ["1.png\tgreen, all of it\n\n0.png\tred\n", '1.png,"green, all of it"\n0.png,red', "\ufeff1.png , green, all of it\n0.png,red\n"],
)
def test_pairs_come_in_the_order_of_the_lines_cut_at_tab_or_first_comma(folder: Path, text: str) -> None:
    files, captions = read(folder, written(folder, text))
    assert [file.name for file in files] == ["1.png", "0.png"] and captions == ["green, all of it", "red"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0.png\tred\n9.png\tblue\n", r"line 2: the image .*9\.png cannot be read: No such file"),
        ("0.png\tred\n1.png\t \n", "line 2 has no caption: '1.png'"),
        ("0.png\n", "line 1 has no caption"),
        ("captions.txt,itself\n", r"line 1: the image .*captions\.txt is no image that pillow can read"),
    ],
)
def test_a_line_without_image_or_caption_is_named(folder: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(folder, written(folder, text))


def test_a_missing_folder_or_captions_file_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.path=.*there is no such folder"):
        read(folder / "no", folder / "captions.txt")
    with pytest.raises(ConfigError, match=r"data\.captions=.*cannot be read: No such file"):
        read(folder, folder / "no.txt")


def test_an_image_is_scaled_by_its_shorter_side_and_its_middle_cut_out(tmp_path: Path) -> None:
    wide = np.zeros((4, 12, 3), np.uint8)
    wide[:, 4:8] = [0, 0, 255]
    Image.fromarray(wide).save(tmp_path / "wide.png")
    assert (decoded(tmp_path / "wide.png", 4) == np.array([0, 0, 255], np.uint8).reshape(3, 1, 1)).all()
    large = decoded(tmp_path / "wide.png", 16)
    assert large.shape == (3, 16, 16) and (large[2, :, 4:12] > 250).all() and (large[0] == 0).all()


def test_a_grey_image_has_three_channels(tmp_path: Path) -> None:
    Image.new("L", (5, 5), 7).save(tmp_path / "grey.png")
    assert decoded(tmp_path / "grey.png", 5).tolist() == np.full((3, 5, 5), 7).tolist()
