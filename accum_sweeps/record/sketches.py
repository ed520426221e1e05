"""Weight sketches and hashes of a run by optimizer step, kept in one small file an attempt."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from accum_sweeps.record.files import write_atomic

TENSOR_BUCKETS = 512


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


def load_sketches(path: Path, until: int | None = None) -> Sketches:
    """The sketches of ``path`` up to step ``until``; none if the file is missing.

    Raises ValueError, KeyError, EOFError or zipfile.BadZipFile if it is damaged.
    """
    if not path.exists():
        return Sketches()
    with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        rows = zip(arrays["steps"].tolist(), arrays["sketches"], arrays["hashes"].tolist(), strict=True)
        by_step = {step: (sketch, digest) for step, sketch, digest in rows if until is None or step <= until}
        tensors = _read_tensors(arrays) if "tensor_steps" in arrays else {}
    return Sketches(by_step, {step: each for step, each in tensors.items() if until is None or step <= until})


def _read_tensors(arrays: Mapping[str, NDArray[np.generic]]) -> dict[int, TensorSketches]:
    names, sizes = tuple(arrays["tensor_names"].tolist()), arrays["tensor_sizes"].astype(np.int64)
    rows = zip(arrays["tensor_steps"].tolist(), arrays["tensor_sketches"], arrays["tensor_hashes"].tolist(), strict=True)
    return {step: TensorSketches(names, sizes, sketches.astype(np.float64), tuple(hashes)) for step, sketches, hashes in rows}
