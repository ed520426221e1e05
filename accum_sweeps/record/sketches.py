"""Weight sketches and hashes of a run by optimizer step, kept in one small file an attempt."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from accum_sweeps.record.files import write_atomic


@dataclass
class Sketches:
    """``by_step``: optimizer step -> (float64 sketch of shape (4096,), hex digest of the exact weights)."""

    by_step: dict[int, tuple[NDArray[np.float64], str]] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Write arrays steps (n, int64), sketches (n, 4096, float64), hashes (n, str)."""
        steps = sorted(self.by_step)
        arrays: Mapping[str, NDArray[np.generic]] = {
            "steps": np.array(steps, dtype=np.int64),
            "sketches": np.array([self.by_step[step][0] for step in steps], dtype=np.float64),
            "hashes": np.array([self.by_step[step][1] for step in steps], dtype=np.str_),
        }
        # The event that makes the sketches count is synced right after, in the same folder.
        write_atomic(path, lambda file: np.savez(file, **arrays), sync_name=False)  # type: ignore[arg-type]


def load_sketches(path: Path, until: int | None = None) -> Sketches:
    """The sketches of ``path`` up to step ``until``; none if the file is missing.

    Raises ValueError, KeyError, EOFError or zipfile.BadZipFile if it is damaged.
    """
    if not path.exists():
        return Sketches()
    with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        rows = zip(arrays["steps"].tolist(), arrays["sketches"], arrays["hashes"].tolist(), strict=True)
        return Sketches({step: (sketch, digest) for step, sketch, digest in rows if until is None or step <= until})
