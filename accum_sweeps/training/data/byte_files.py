"""Corpora whose tokens are the bytes of text files: the standard library, a user's file or folder."""

import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from accum_sweeps.plan.errors import ConfigError
from accum_sweeps.training import seeding

LIBRARY_BYTES = 4 << 20  # of the standard library, so that every worker loads it in a moment
EVALUATION_SHARE = 0.1
_SPLIT_SEED = 0
_SKIPPED_FOLDERS = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
_BUILD_RECORD = "_sysconfigdata"  # written when Python was built: differs from machine to machine
_BETWEEN_FILES = b"\n\n"

Bytes = NDArray[np.uint8]


def standard_library() -> tuple[Bytes, Bytes]:
    """(train, evaluation): source files of the running Python's standard library, up to LIBRARY_BYTES.

    Which files are taken, their order and their side depend on their names alone. ConfigError where there are none.
    """
    root = Path(sysconfig.get_path("stdlib"))
    files = {str(path.relative_to(root)): path for path in _library_files(root)}
    if len(files) < 2:
        raise ConfigError("data", "stdlib", f"this Python has no source files in {root}", "Use data=text data.path=FILE.")
    return _split(files, limit=LIBRARY_BYTES)


def _library_files(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in _SKIPPED_FOLDERS]
        yield from (Path(folder, name) for name in names if name.endswith(".py") and not name.startswith(_BUILD_RECORD))


def text_files(path: Path, pattern: str) -> tuple[Bytes, Bytes]:
    """(train, evaluation): one file, its last tenth for evaluation; or the files of a folder that match ``pattern``.

    ConfigError where ``path`` is neither, nothing matches, or a file cannot be read.
    """
    if path.is_file():
        content = np.frombuffer(_read(path), np.uint8)
        cut = content.size - int(content.size * EVALUATION_SHARE)
        return content[:cut], content[cut:]
    if not path.is_dir():
        raise ConfigError("data.path", str(path), "there is no such file or folder", f"Relative paths start at {Path.cwd()}.")
    try:
        files = {str(file.relative_to(path)): file for file in path.glob(pattern) if file.is_file()}
    except (ValueError, NotImplementedError) as error:
        raise ConfigError("data.pattern", pattern, f"is no pattern for files in a folder: {error}") from error
    if not files:
        raise ConfigError("data.pattern", pattern, f"no file in {path} matches", 'All Python files: data.pattern="**/*.py".')
    return text_files(next(iter(files.values())), pattern) if len(files) == 1 else _split(files)


def _split(files: dict[str, Path], limit: int | None = None) -> tuple[Bytes, Bytes]:
    """The files' bytes in the order of a keyed hash of their names; the first of them are the evaluation text."""
    names = sorted(files, key=lambda name: seeding.key("corpus", _SPLIT_SEED, name))
    evaluation_files = max(1, round(len(names) * EVALUATION_SHARE))
    budget = None if limit is None else int(limit * EVALUATION_SHARE)
    rest = None if limit is None or budget is None else limit - budget
    return _joined(files, names[evaluation_files:], rest), _joined(files, names[:evaluation_files], budget)


def _joined(files: dict[str, Path], names: list[str], limit: int | None) -> Bytes:
    parts, size = [], 0
    for name in names:
        if limit is not None and size >= limit:
            break
        parts.append(_read(files[name]))
        size += len(parts[-1]) + len(_BETWEEN_FILES)
    return np.frombuffer(_BETWEEN_FILES.join(parts)[:limit], np.uint8)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError("data.path", str(path), f"cannot be read: {error.strerror}") from error
