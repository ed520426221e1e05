"""Files that are whole or absent: written beside, synced, renamed."""

import contextlib
import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO


def write_atomic(path: Path, write: Callable[[BinaryIO], object], *, sync_name: bool = True) -> None:
    """Let ``write`` fill a file that appears under ``path`` complete or not at all, also after a power cut.

    Without ``sync_name`` a power cut may take the whole file, until something else in its folder is synced.
    """
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    part = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    if sync_name:
        sync_folder(path.parent)


def write_text(path: Path, text: str) -> None:
    """Atomic counterpart of Path.write_text, UTF-8."""
    write_atomic(path, lambda file: file.write(text.encode()))


def create_exclusive(path: Path, text: str, *, sync: bool = True) -> bool:
    """Create ``path`` with the whole ``text``, or return False if it exists. Exactly one of several callers succeeds.

    A hard link to a finished file is exclusive on NFS too, and no reader ever sees it half-written. Without ``sync`` a power
    cut may leave it empty.
    """
    if path.exists():  # most of those who come too late are spared the work
        return False
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    part = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text.encode())
            file.flush()
            if sync:
                os.fsync(file.fileno())
        try:
            os.link(part, path)
        except FileExistsError:
            return part.stat().st_nlink > 1  # NFS may repeat a request that has succeeded already
        return True
    finally:
        part.unlink(missing_ok=True)


def cache_folder() -> Path:
    """Where this user keeps what can be made again, for all roots; it need not exist."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "accum_sweeps"


def sync_folder(folder: Path) -> None:
    """Make renames in ``folder`` durable; some file systems cannot, which is no error."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def whole_lines(path: Path) -> Iterator[bytes]:
    """The complete lines of a growing file; what stands after the last newline is not yet a line."""
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield line


def is_disk_full(error: BaseException) -> bool:
    """Whether nothing more can be written, which is no fault of the run that met it."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
