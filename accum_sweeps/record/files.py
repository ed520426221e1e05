"""Files that are whole or absent: written beside, synced, renamed."""

import contextlib
import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from accum_sweeps.plan.errors import UserError


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


def own_folder(path: Path, root: Path) -> Path:
    """Make ``path``, a folder below ``root`` that code is read from, with mode 0700.

    Raises UserError where somebody else could put something into it: they would run as whoever started the sweep.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    for folder in (
        root,
        *(root.joinpath(*path.relative_to(root).parts[: depth + 1]) for depth in range(len(path.relative_to(root).parts))),
    ):
        status = folder.stat()
        if status.st_uid != os.geteuid():
            words = f"{folder} is another user's, and code is read from below it.\n  Give a root of your own: root=FOLDER"
            raise UserError(f"root={root}: {words}")
        if not status.st_mode & 0o077:
            break  # nobody else gets any further
        if status.st_mode & 0o022:
            words = f"others may write {folder}, and code is read from below it.\n  Take that away: chmod go-w {folder}"
            raise UserError(f"root={root}: {words}")
    return path


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
