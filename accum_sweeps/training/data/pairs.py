"""Images with captions: what a specification's data part stands for, checked, hashed and cut into batches.

Public: :func:`identify` while planning (no torch is imported), :func:`load` in a worker.
Shapes: N pairs, R pairs of a batch, S pixels of an image's side, T tokens of the longest caption.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from accum_sweeps.plan.errors import ConfigError, UserError
from accum_sweeps.plan.parts import Digits, DualEncoder, ImageText, Pairs
from accum_sweeps.training import seeding
from accum_sweeps.training.data import digits
from accum_sweeps.training.data.captions import Captions, Ids, tokenized
from accum_sweeps.training.data.epochs import Epochs, RowNumbers

# What is subtracted from, and divides, the values 0 to 1 of red, green and blue, as in CLIP.
MEAN = np.array([0.48145466, 0.4578275, 0.40821073], np.float32).reshape(3, 1, 1)
STD = np.array([0.26862954, 0.26130258, 0.27577711], np.float32).reshape(3, 1, 1)
_PACKAGES = {"digits": {"sklearn": "scikit-learn"}, "image_text": {"PIL": "pillow"}}


Pixels = Callable[[RowNumbers], NDArray[np.uint8]]


@dataclass(frozen=True, eq=False, kw_only=True)
class PairSet:
    """``captions`` of all N pairs; ``pixels(numbers)``: uint8, (R, 3, S, S); which pairs ``train`` and ``evaluation`` are, in order."""

    captions: Captions
    pixels: Pixels
    train: RowNumbers
    evaluation: RowNumbers


@dataclass(frozen=True, eq=False, kw_only=True)
class Batch:
    """R pairs: ``images`` normalized, float32, (R, 3, S, S); ``ids``: int64, (R, T); ``lengths``: int64, (R,)."""

    images: NDArray[np.float32]
    ids: Ids
    lengths: Ids


def identify(data: Pairs, model: DualEncoder, global_batch: int, cwd: Path) -> Pairs:
    """``data`` with the hash of its images and captions filled in and its paths made absolute, seen from ``cwd``.

    Raises UserError where a package is missing, ConfigError for pairs that cannot be read, are too few, or do not fit ``model``.
    """
    require(_PACKAGES[data.kind], f"data={data.kind}")
    if isinstance(data, ImageText):
        data = dataclasses.replace(data, path=str(cwd / Path(data.path).expanduser()), captions=str(cwd / Path(data.captions).expanduser()))
    made, content = _made(data, model.image_size, model.vocabulary, model.text_length)
    _check_batches(data, len(made.train), global_batch)
    return dataclasses.replace(data, hash=content)


def require(packages: dict[str, str], what: str) -> None:
    """Raise UserError unless all of ``packages`` (module -> package) are installed; ``what`` needs them."""
    missing = [package for module, package in packages.items() if find_spec(module) is None]
    if missing:
        hint = "Install it with: pip install 'accum_sweeps[clip]', in a clone: pip install '.[clip]'"
        raise UserError(f"{what} needs {' and '.join(missing)}, not installed here\n  {hint}")


def _check_batches(data: Pairs, train: int, global_batch: int) -> None:
    held = f"{train} pairs are left for training beside data.eval_rows={data.eval_rows}"
    if data.epoch_rows is not None and data.epoch_rows > train:
        raise ConfigError("data.epoch_rows", data.epoch_rows, held)
    if data.epoch_rows is None and global_batch > train:
        raise ConfigError("global_batch", global_batch, f"{held}, and no pair comes twice in a batch")


@functools.lru_cache(maxsize=4)
def load(data: Pairs, side: int, vocabulary: int, longest: int) -> PairSet:
    """The pairs that ``data`` stands for, for a model of that image size, vocabulary and caption length; kept in memory between runs.

    Raises UserError where the pairs found are not those with ``data.hash`` that were planned, and what :func:`identify` raises.
    """
    made, content = _made(data, side, vocabulary, longest)
    if content != data.hash:
        raise UserError(
            f"data.hash={data.hash!r}: the images or captions of data={data.name or data.kind} changed since the sweep was planned"
            "\n  Start the sweep again: it plans new runs for them."
        )
    return made


def _made(data: Pairs, side: int, vocabulary: int, longest: int) -> tuple[PairSet, str]:
    """The pairs as they are now, and 32 hex digits over all captions and images, in their order."""
    pixels, texts, contents = _read(data, side)
    if len(texts) <= data.eval_rows:
        raise ConfigError("data.eval_rows", data.eval_rows, f"there are {len(texts)} pairs, and some must be left for training")
    chosen = (2 * np.arange(data.eval_rows) + 1) * len(texts) // (2 * data.eval_rows)  # spread over the data
    made = PairSet(
        captions=tokenized(texts, vocabulary=vocabulary, longest=longest),
        pixels=pixels,
        train=np.setdiff1d(np.arange(len(texts)), chosen),
        evaluation=chosen,
    )
    return made, _digest(texts, contents)


def _read(data: Pairs, side: int) -> tuple[Pixels, list[str], Iterable[bytes]]:
    """(what draws images at ``side`` pixels, the captions, the images' content)."""
    if isinstance(data, Digits):
        images, texts = digits.read()
        return lambda numbers: digits.drawn(images[numbers], side), texts, [images.tobytes()]
    from accum_sweeps.training.data import image_folder  # imports pillow

    files, texts = image_folder.read(Path(data.path), Path(data.captions))

    def decoded(numbers: RowNumbers) -> NDArray[np.uint8]:
        return np.stack([image_folder.decoded(files[number], side) for number in numbers])

    return decoded, texts, (file.read_bytes() for file in files)


def _digest(texts: Sequence[str], contents: Iterable[bytes]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part in (*(text.encode() for text in texts), *contents):
        digest.update(f"{len(part)}\n".encode())
        digest.update(part)
    return digest.hexdigest()


def epochs(data: Pairs, global_batch: int, seed: int) -> Epochs | None:
    """The epochs that ``data`` asks for; None where pairs are drawn without end."""
    if data.epoch_rows is None:
        return None
    return Epochs(rows=data.epoch_rows, global_batch=global_batch, last_window=data.last_window, seed=seed, is_shuffled=data.shuffle)


def drawn(data: Pairs, train: int, global_batch: int, seed: int, step: int) -> RowNumbers:
    """Which of the ``train`` training pairs optimizer step ``step`` sees: a function of these arguments alone, without repetition.

    Without epochs they are drawn anew for each step or, with ``shuffle=false``, taken in the order of the data, from the
    beginning again at its end.
    """
    if (found := epochs(data, global_batch, seed)) is not None:
        return found.chosen(step)
    if not data.shuffle:
        return (np.arange(global_batch) + (step - 1) * global_batch) % train
    return seeding.generator("data", seed, step).permutation(train)[:global_batch]


def batch(pairs: PairSet, chosen: RowNumbers) -> Batch:
    """The pairs with these numbers among all pairs, in this order."""
    images = pairs.pixels(chosen).astype(np.float32)
    images /= 255
    images -= MEAN
    images /= STD
    return Batch(images=images, ids=pairs.captions.ids[chosen], lengths=pairs.captions.lengths[chosen])
