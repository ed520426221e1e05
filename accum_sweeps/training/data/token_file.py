"""A file of token ids, memory-mapped; what is known of its content is cached by size and time of change."""

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from accum_sweeps.plan.errors import ConfigError
from accum_sweeps.record.files import cache_folder, write_text
from accum_sweeps.training.data.rows import Tokens

_CHUNK = 1 << 24  # ids read at a time


def open_tokens(path: Path, integer: str) -> Tokens:
    """The ids of the file: little-endian ``integer`` (uint16 or uint32), 1-D, read-only, memory-mapped.

    ConfigError where there is no such file or its size is no whole number of ids.
    """
    dtype = np.dtype(integer).newbyteorder("<")
    try:
        size = path.stat().st_size
        if size == 0 or size % dtype.itemsize:
            raise ConfigError("data.path", str(path), f"holds {size} bytes, no whole number of {integer} ids")
        return np.memmap(path, dtype, mode="r")
    except OSError as error:
        raise ConfigError("data.path", str(path), f"cannot be read: {error.strerror}") from error


def content(path: Path, tokens: Tokens) -> tuple[str, int]:
    """(hash, largest id) of the file. Computed once, then remembered for this path, size and time of change."""
    stat = path.stat()
    state = {"path": str(path.resolve()), "size": stat.st_size, "mtime_ns": stat.st_mtime_ns, "integer": tokens.dtype.name}
    memory = cache_folder() / "token_files" / (hashlib.sha256(json.dumps(state).encode()).hexdigest()[:32] + ".json")
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        known = json.loads(memory.read_text())
        return str(known["hash"]), int(known["largest"])
    digest, largest = hashlib.blake2b(digest_size=16), 0
    for start in range(0, tokens.size, _CHUNK):
        chunk = np.ascontiguousarray(tokens[start : start + _CHUNK])
        digest.update(chunk.data)
        largest = max(largest, int(chunk.max()))
    _remember(memory, {"hash": digest.hexdigest(), "largest": largest})
    return digest.hexdigest(), largest


def _remember(memory: Path, known: dict[str, Any]) -> None:
    # A home that cannot be written to costs time at the next start, nothing else.
    with contextlib.suppress(OSError):
        memory.parent.mkdir(parents=True, exist_ok=True)
        write_text(memory, json.dumps(known))
