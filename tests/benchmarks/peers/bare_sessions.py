"""Trainings of accum_sweeps with nothing around them; two of these processes share the runs listed in FOLDER/specs.json.

    python -m tests.benchmarks.peers.bare_sessions FOLDER

Prints when its first training was ready to start, in seconds since the epoch.
"""

import json
import sys
import time
from pathlib import Path

import torch

from accum_sweeps import subjects
from accum_sweeps.plan.spec import RunSpec, from_dict


def is_free(path: Path) -> bool:
    """Whether no other process has taken what ``path`` stands for; it is taken from now on."""
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def train(spec: RunSpec, folder: Path) -> float:
    """Train to the end; when the training was ready to start."""
    session = subjects.session(spec, folder, 1)
    ready = time.time()
    for _ in session.steps():
        pass
    return ready


def main(folder: Path) -> None:
    """Train whatever is free."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    specs = [from_dict(values) for values in json.loads((folder / "specs.json").read_text())]
    print(min(train(spec, folder) for spec in specs if is_free(folder / spec.run_id)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
