"""A sweep's jobs on the cluster: which were submitted, and what SLURM says of them, asked at most once in a while by all commands together.

sweeps/<name>/slurm/jobs.jsonl      one line for each array that was submitted
sweeps/<name>/slurm/squeue.json     SLURM's last answer
sweeps/<name>/slurm/token           tells the root from another folder of the same name on another machine
"""

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accum_sweeps.jobs.slurm_ask import JobRow, NoAnswerError, scancel, squeue
from accum_sweeps.plan.errors import UserError
from accum_sweeps.record.events import now_ms
from accum_sweeps.record.files import create_exclusive, whole_lines, write_text
from accum_sweeps.record.state import file_system_now
from accum_sweeps.record.sweep import SweepDir


@dataclass(frozen=True)
class Answer:
    """What SLURM said of the sweep's jobs ``time`` (seconds, the file system's clock); ``problem`` says why it did not answer."""

    rows: tuple[JobRow, ...] = ()
    time: float = 0.0
    problem: str = ""

    def active(self) -> int:
        """Tasks that are queued or running."""
        return sum(len(row.tasks) for row in self.rows if row.is_active)

    def by_task(self) -> dict[str, JobRow]:
        """Each task's row, under the task's name as in 123_4; where SLURM tells of several turns, the active one counts."""
        found: dict[str, JobRow] = {}
        for row in sorted(self.rows, key=lambda row: row.is_active):
            found |= {f"{row.job}_{task}": row for task in row.tasks}
        return found


@dataclass(frozen=True)
class SlurmQueue:
    """The jobs of one sweep; ``poll_s`` seconds at least lie between two questions to SLURM."""

    sweep: SweepDir
    poll_s: float = 10.0

    @property
    def folder(self) -> Path:
        """Where the sweep keeps what it knows of its jobs."""
        return self.sweep.path / "slurm"

    @property
    def name(self) -> str:
        """The name of all its jobs. It names the root too, so that no other sweep of this user has it."""
        place = hashlib.sha256(str(self.sweep.root.path.resolve()).encode()).hexdigest()[:8]
        return f"{self.sweep.name}-{place}"

    @property
    def was_used(self) -> bool:
        """Whether the sweep was ever submitted to a cluster."""
        return (self.folder / "token").exists()

    def token(self) -> Path:
        """A file that a job looks for before it does anything; made at the first submission."""
        self.folder.mkdir(parents=True, exist_ok=True)
        create_exclusive(self.folder / "token", secrets.token_hex(16) + "\n")
        return self.folder / "token"

    def submitted(self) -> list[dict[str, Any]]:
        """The arrays that were submitted: ``job``, ``tasks``, ``dispatch``, ``folder``, ``group``."""
        with contextlib.suppress(FileNotFoundError):
            return [json.loads(line) for line in whole_lines(self.folder / "jobs.jsonl")]
        return []

    def note(self, job: str, tasks: int, **facts: Any) -> None:
        """Keep in mind that an array was submitted, also for commands that see an answer from before."""
        line = json.dumps({"job": job, "tasks": tasks, "time": now_ms(), **facts})
        with (self.folder / "jobs.jsonl").open("a") as file:
            file.write(line + "\n")
        with self._locked():
            answer = self._kept()
            if answer.time:
                self._keep(dataclasses.replace(answer, rows=(*answer.rows, JobRow(job, tuple(range(tasks)), "PENDING"))))

    def ask(self) -> Answer:
        """What SLURM says of the sweep's jobs, at most ``poll_s`` old and never asked for more often by whichever commands."""
        self.folder.mkdir(parents=True, exist_ok=True)
        now = file_system_now(self.folder)
        with self._locked():
            kept = self._kept()
            if now - kept.time < self.poll_s:
                return kept
            try:
                answer = Answer(tuple(squeue(self.name)), now)
            except NoAnswerError as error:
                answer = Answer(kept.rows, now, str(error))
            self._keep(answer)
        return answer

    def end(self, *, pending_only: bool) -> None:
        """End the sweep's jobs, or those that wait. Raises UserError if SLURM does not answer."""
        try:
            scancel(self.name, pending_only=pending_only)
        except NoAnswerError as error:
            hint = "Its workers stop by themselves as soon as they notice; jobs that wait then end when they begin."
            raise UserError(f"sweep={self.sweep.name}: SLURM did not cancel its jobs: {error}\n  {hint}") from None
        with self._locked():
            kept = self._kept()
            rows = tuple(row for row in kept.rows if row.is_working and pending_only)
            self._keep(dataclasses.replace(kept, rows=rows))

    @contextlib.contextmanager
    def submitting(self) -> Iterator[None]:
        """Held while a command counts what is there and submits what is not: two at the same moment would submit it twice."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._locked("submit.lock"):
            yield

    def _kept(self) -> Answer:
        try:
            kept = json.loads((self.folder / "squeue.json").read_text())
            return Answer(tuple(JobRow(**{**row, "tasks": tuple(row["tasks"])}) for row in kept["rows"]), kept["time"], kept["problem"])
        except (OSError, ValueError, KeyError, TypeError):
            return Answer()

    def _keep(self, answer: Answer) -> None:
        write_text(self.folder / "squeue.json", json.dumps(dataclasses.asdict(answer)))

    @contextlib.contextmanager
    def _locked(self, name: str = "lock") -> Iterator[None]:
        with (self.folder / name).open("a") as file:
            with contextlib.suppress(OSError):  # some file servers have no locks; two questions at the same moment do no harm
                fcntl.flock(file, fcntl.LOCK_EX)
            yield


def log_path(submitted: Sequence[dict[str, Any]], job: str) -> Path | None:
    """The log of the task ``123_4``; None if the array is not among those submitted."""
    array = job.partition("_")[0]
    folder = next((line["folder"] for line in submitted if line["job"] == array), None)
    return None if folder is None else Path(folder) / f"{job}_0_log.out"
