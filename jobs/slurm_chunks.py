"""How many jobs are submitted, in which arrays, and how a limit on running jobs is kept over all of them. Pure."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from accum_sweeps.jobs.resources import Resources

MOST_WORKERS = 100  # where launcher.workers does not say


@dataclass(frozen=True)
class Chunk:
    """One job array: its number of tasks, how many of them may run at a time (None = all), and the chunk that has to end before."""

    tasks: int
    parallel: int | None = None
    after: int | None = None


def wanted_workers(resources: Resources, open_runs: int) -> int:
    """Workers that so many open runs are to have."""
    return -(-open_runs // resources.runs_per_job) if resources.runs_per_job else min(open_runs, most_workers(resources))


def most_workers(resources: Resources) -> int:
    """Workers of a sweep that may be queued or running at a time; where each has a bound on its runs, as many as it takes."""
    return sys.maxsize if resources.runs_per_job else resources.slurm.workers or MOST_WORKERS


def chunks(tasks: int, longest: int, parallel: int | None) -> list[Chunk]:
    """Arrays of at most ``longest`` tasks each, about equally long; no more than ``parallel`` tasks run at a time over all of them.

    SLURM throttles an array by itself. Where there are more arrays than may have a running task, some wait for others to end.
    """
    if tasks == 0:
        return []
    number = -(-tasks // longest)
    sizes = [tasks // number + (index < tasks % number) for index in range(number)]
    if parallel is None or parallel >= tasks:
        return [Chunk(size) for size in sizes]
    lanes = min(number, parallel)
    shares = _shares(sizes[:lanes], parallel)
    return [Chunk(size, shares[index % lanes], index - lanes if index >= lanes else None) for index, size in enumerate(sizes)]


def _shares(sizes: Sequence[int], parallel: int) -> list[int]:
    """``parallel`` divided over the lanes; sizes fall by at most one, so the first ones take what is left over."""
    return [parallel // len(sizes) + (index < parallel % len(sizes)) for index in range(len(sizes))]
