"""Hands worker arrays to SLURM through submitit: one pickle for all tasks, one call of sbatch for each array."""

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import submitit
from submitit.core.utils import DelayedSubmission

from accum_sweeps.jobs import slurm_text
from accum_sweeps.jobs.order import Group, WorkOrder
from accum_sweeps.jobs.slurm_ask import submission_environment
from accum_sweeps.jobs.slurm_chunks import Chunk
from accum_sweeps.jobs.slurm_job import SlurmWorker
from accum_sweeps.jobs.slurm_queue import SlurmQueue
from accum_sweeps.jobs.slurm_settings import SlurmSettings
from accum_sweeps.jobs.worker import THREAD_VARIABLES
from accum_sweeps.plan.errors import UserError

# sbatch itself waits and tries again, for two minutes, while the controller is busy or its queue is full. Longer for the first array.
FIRST_SBATCH_S, SBATCH_S = 90.0, 20.0
MANY_TURNS = 1_000_000  # submitit's bound on requeues after time-outs; ours is the retry limit of runs
OWN_DEFAULTS = ("time", "wckey")  # submitit has some of its own; wanted are the cluster's
NO_TIMEOUT_MIN = 60 * 24 * 365 * 10


class RefusedError(UserError):
    """SLURM did not take an array."""


class _Array(submitit.SlurmExecutor):
    """Submitit's executor, for an array whose tasks share one pickle."""

    @classmethod
    def affinity(cls) -> int:
        return 2  # the script can be written anywhere

    def text(self, command: str, tasks: int) -> str:
        """The sbatch script."""
        self.parameters["map_count"] = tasks
        return str(self._make_submission_file_text(command, ""))


def submission(queue: SlurmQueue, order: WorkOrder) -> "Submission":
    """The submission of one command's jobs."""
    folder = queue.sweep.path / "submitit" / order.dispatch
    return Submission(order.resources.slurm, order.root, folder.resolve(), queue.token().resolve(), queue.name, order.environment)


@dataclass(frozen=True)
class Submission:
    """Where the arrays of one command are made: ``folder`` for scripts, pickles and logs, ``name`` for all its jobs."""

    settings: SlurmSettings
    root: str
    folder: Path
    token: Path
    name: str
    environment: Mapping[str, str] = field(default_factory=dict)

    def pickle_path(self, group: Group) -> Path:
        """The order of the group's workers."""
        return self.folder / f"order-{group.device}-{group.threads}-{group.ranks}-{int(group.deterministic)}.pkl"

    def _parameters(self, group: Group, chunk: Chunk, after: str | None) -> dict[str, Any]:
        found = slurm_text.parameters(self.settings, group, self.name, chunk, after)
        found["setup"] = slurm_text.setup(self.settings, self.root, self.token, self.pickle_path(group), self.folder, self.environment)
        found["teardown"] = slurm_text.teardown(self.settings)
        return {key: value for key, value in found.items() if value is not None or key in OWN_DEFAULTS}

    def text(self, group: Group, chunk: Chunk, after: str | None = None) -> str:
        """The sbatch script of an array; ``after`` is the dependency on another one."""
        executor = _Array(self.folder)
        executor.update_parameters(**self._parameters(group, chunk, after))
        return executor.text(slurm_text.command(self.settings, self.folder), chunk.tasks)

    def write_order(self, order: WorkOrder) -> None:
        """Write the order that all workers of its group get. It holds no state: that is in the run directories."""
        delayed = DelayedSubmission(SlurmWorker(order))
        delayed.set_timeout(NO_TIMEOUT_MIN, MANY_TURNS)
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        delayed.dump(self.pickle_path(order.group))

    def submit(self, group: Group, chunk: Chunk, number: int, after: str | None = None) -> str:
        """Hand one array over; returns its job id. Raises RefusedError with SLURM's words."""
        script = self.folder / f"submission-{number}.sh"
        script.write_text(self.text(group, chunk, after))
        environment = submission_environment(slurm_text.given(self._parameters(group, chunk, after)))
        environment |= dict.fromkeys(THREAD_VARIABLES, "1")
        limit_s = FIRST_SBATCH_S if number == 1 else SBATCH_S
        try:
            command = ["sbatch", "--parsable", str(script)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False, env=environment)
        except FileNotFoundError:
            raise RefusedError("launcher=slurm: sbatch is not on this machine.\n  Type the command where jobs are submitted.") from None
        except subprocess.TimeoutExpired as late:
            said = _words(late.stderr.decode(errors="replace") if isinstance(late.stderr, bytes) else "")
            raise RefusedError(f"launcher=slurm: SLURM did not take the jobs within {limit_s:g} s{said and ': '}{said}") from None
        job = done.stdout.strip().partition(";")[0]
        if done.returncode or not job.isdigit():
            said = _words(done.stderr) or done.stdout.strip()
            raise RefusedError(f"launcher=slurm: SLURM did not take the jobs: {said}\n  The script: {script}")
        script.rename(self.folder / f"{job}_submission.sh")
        return job


def _words(text: str) -> str:
    """What sbatch says, on one line."""
    return " ".join(line.removeprefix("sbatch: ").removeprefix("error: ") for line in text.splitlines())
