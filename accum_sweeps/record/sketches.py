"""Weight sketches and hashes of a run by optimizer step, kept in one small file an attempt."""

import functools
import io
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accum_sweeps.record.files import write_atomic

TENSOR_BUCKETS = 512
FIRST_VERSION = b"\x93NUMPY\x01\x00"  # how a .npy file begins that np.savez writes


@dataclass(frozen=True, eq=False)
class TensorSketches:
    """The T parameter tensors of a model, each by itself.

    ``names`` (T), ``sizes`` (T,) int64 numbers of weights, ``sketches`` (T, 512) float64, ``hashes`` (T) hex digests of the exact bits.
    """

    names: tuple[str, ...]
    sizes: NDArray[np.int64]
    sketches: NDArray[np.float64]
    hashes: tuple[str, ...]


@dataclass
class Sketches:
    """``by_step``: optimizer step -> (float64 sketch of shape (4096,), hex digest of the exact weights).

    ``tensors``: optimizer step -> the same tensor by tensor, where the run was asked for that.
    """

    by_step: dict[int, tuple[NDArray[np.float64], str]] = field(default_factory=dict)
    tensors: dict[int, TensorSketches] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Write arrays steps (n, int64), sketches (n, 4096, float64), hashes (n, str).

        With tensors also tensor_steps (m), tensor_names and tensor_sizes (T), tensor_sketches (m, T, 512), tensor_hashes (m, T).
        """
        steps = sorted(self.by_step)
        arrays: dict[str, NDArray[np.generic]] = {
            "steps": np.array(steps, dtype=np.int64),
            "sketches": np.array([self.by_step[step][0] for step in steps], dtype=np.float64),
            "hashes": np.array([self.by_step[step][1] for step in steps], dtype=np.str_),
        }
        arrays |= _tensor_arrays(self.tensors)
        # The event that makes the sketches count is synced right after, in the same folder.
        write_atomic(path, lambda file: np.savez(file, **arrays), sync_name=False)  # type: ignore[arg-type]


def _tensor_arrays(tensors: Mapping[int, TensorSketches]) -> dict[str, NDArray[np.generic]]:
    if not tensors:
        return {}
    steps = sorted(tensors)
    first = tensors[steps[0]]
    return {
        "tensor_steps": np.array(steps, dtype=np.int64),
        "tensor_names": np.array(first.names, dtype=np.str_),
        "tensor_sizes": first.sizes,
        "tensor_sketches": np.array([tensors[step].sketches for step in steps], dtype=np.float64),
        "tensor_hashes": np.array([tensors[step].hashes for step in steps], dtype=np.str_),
    }


def load_sketches(path: Path, until: int | None = None, *, tensors: bool = True) -> Sketches:
    """The sketches of ``path`` up to step ``until``; none if the file is missing. Without ``tensors`` theirs are not read.

    Raises ValueError, KeyError, EOFError, OSError or zipfile.BadZipFile if it is damaged.
    """
    if not path.exists():
        return Sketches()
    try:
        return _load(path, until, tensors)
    except (RuntimeError, zlib.error) as error:  # a flipped bit may ask for a password, or for a way of packing that is not there
        raise ValueError(str(error)) from None


def _load(path: Path, until: int | None, tensors: bool) -> Sketches:
    with zipfile.ZipFile(path) as archive:
        columns = (_array(archive, "steps").tolist(), _array(archive, "sketches"), _array(archive, "hashes").tolist())
        by_step = {step: (sketch, digest) for step, sketch, digest in zip(*columns, strict=True) if until is None or step <= until}
        by_tensor = _read_tensors(archive) if tensors and "tensor_steps.npy" in archive.namelist() else {}
    return Sketches(by_step, {step: each for step, each in by_tensor.items() if until is None or step <= until})


def _read_tensors(archive: zipfile.ZipFile) -> dict[int, TensorSketches]:
    names, sizes = tuple(_array(archive, "tensor_names").tolist()), _array(archive, "tensor_sizes").astype(np.int64)
    columns = (_array(archive, "tensor_steps").tolist(), _array(archive, "tensor_sketches"), _array(archive, "tensor_hashes").tolist())
    return {step: TensorSketches(names, sizes, rows.astype(np.float64), tuple(hashes)) for step, rows, hashes in zip(*columns, strict=True)}


def _array(archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    """The array ``name``, read-only. np.load parses each header anew, which a report on thousands of runs has no time for."""
    data = archive.read(f"{name}.npy")
    if not data.startswith(FIRST_VERSION):
        return np.asarray(np.lib.format.read_array(io.BytesIO(data), allow_pickle=False))
    start = len(FIRST_VERSION) + 2 + int.from_bytes(data[len(FIRST_VERSION) : len(FIRST_VERSION) + 2], "little")
    shape, is_fortran, dtype = _layout(data[:start])
    return np.frombuffer(data, dtype, offset=start).reshape(shape, order="F" if is_fortran else "C")


@functools.lru_cache(maxsize=256)  # runs of one sweep have equal headers
def _layout(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, order and dtype that the head of an array's file tells. Raises ValueError if it is damaged or holds objects."""
    shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(io.BytesIO(header[len(FIRST_VERSION) :]))
    if dtype.hasobject:
        raise ValueError("an array of objects is not read")
    return shape, is_fortran, dtype
