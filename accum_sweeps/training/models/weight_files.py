"""Weights that a training starts from: a file, or a folder as transformers saves a model. Planning only hashes them: no torch."""

import hashlib
import pickle
from pathlib import Path
from typing import TYPE_CHECKING

from accum_sweeps.plan.errors import ConfigError, UserError

if TYPE_CHECKING:
    from torch import Tensor

_IN_FOLDER = ("model.safetensors", "pytorch_model.bin")


def weights_file(path: Path) -> Path:
    """The file itself, or the one in the folder. Raises ConfigError where there is none."""
    if path.is_file():
        return path
    found = next((path / name for name in _IN_FOLDER if (path / name).is_file()), None)
    if found is None:
        what = f"holds none of {', '.join(_IN_FOLDER)}" if path.is_dir() else "there is no such file or folder"
        raise ConfigError("model.weights", str(path), what)
    return found


def content_hash(path: Path) -> str:
    """32 hex digits over the bytes of the file that ``path`` stands for. Raises ConfigError where it cannot be read."""
    try:
        with weights_file(path).open("rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    except OSError as error:
        raise ConfigError("model.weights", str(path), f"cannot be read: {error.strerror}") from error


def read(path: Path, expected_hash: str) -> "dict[str, Tensor]":
    """The tensors by name, on the CPU: of a safetensors file, or of one that torch saved (read without executing anything).

    Raises UserError where the content is not the one with ``expected_hash`` that was planned, or no such file.
    """
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if content_hash(path) != expected_hash:
        raise UserError(f"model.weights={path}: changed since the sweep was planned; type the command again to plan it anew")
    file = weights_file(path)
    try:
        return load_file(file) if file.suffix == ".safetensors" else dict(torch.load(file, map_location="cpu", weights_only=True))
    except (SafetensorError, RuntimeError, ValueError, TypeError, EOFError, pickle.UnpicklingError) as error:
        raise UserError(f"model.weights={path}: holds no weights by name ({type(error).__name__}: {error})") from error
