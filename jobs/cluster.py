"""Gives a sweep worker jobs on a SLURM cluster: as many as are wanted and not there yet. Returns at once, or stays and watches."""

import dataclasses
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

from accum_sweeps.jobs.dispatcher import Dispatcher, DispatchResult
from accum_sweeps.jobs.journal import JournalReader
from accum_sweeps.jobs.order import Group, WorkOrder
from accum_sweeps.jobs.slurm_chunks import Chunk, chunks, most_workers, wanted_workers
from accum_sweeps.jobs.slurm_gone import mark_gone
from accum_sweeps.jobs.slurm_queue import Answer, SlurmQueue
from accum_sweeps.plan.errors import UserError
from accum_sweeps.plan.words import counted
from accum_sweeps.record.events import DONE

TICK_S = 0.25
LINGER_BEATS = 1.2  # beyond a claim's expiry: until then it is open whether a run of another worker is lost


class Submits(Protocol):
    """What hands arrays to SLURM (see dispatch_slurm)."""

    def write_order(self, order: WorkOrder) -> None:
        """Write what the workers of a group are told."""

    def submit(self, group: Group, chunk: Chunk, number: int, after: str | None = None) -> str:
        """Hand over an array; returns its job id."""


class Cluster(Dispatcher):
    """Worker jobs that SLURM starts somewhere."""

    def __init__(self, *arguments: Any, make: Callable[[SlurmQueue, WorkOrder], Submits], longest_array: int) -> None:
        super().__init__(*arguments)
        self.queue = SlurmQueue(self.sweep, self.order.resources.slurm.poll_s)
        linger_s = LINGER_BEATS * self.order.resources.expiry_s
        self.order = dataclasses.replace(self.order, linger_s=linger_s, release=metadata.version("accum_sweeps"))
        self.make, self.longest_array = make, longest_array
        self.jobs: list[tuple[str, int]] = []
        self.active = 0
        self.readers: dict[Path, JournalReader] = {}
        self.looked = 0.0
        self.is_unsure = False

    def work(self) -> None:
        self._read_journals()  # of earlier commands: what they say is known from the runs
        with self.queue.submitting():
            answer = self.queue.ask()
            self.active = answer.active()
            if mark_gone(self.root, self.plan, answer, self.board.status):
                self.scan.everything()
            self._submit(answer)
        if self.order.resources.slurm.wait:
            self._stay()

    # Submitting

    def _submit(self, answer: Answer) -> None:
        submits = self.make(self.queue, self.order)
        earlier = [row.job for row in answer.rows if row.is_active]
        working = sum(status == "running" for status in self.board.status.values())
        free = max(self.active - working, 0)  # jobs that will take an open run
        room = most_workers(self.order.resources) - self.active
        for group in self.pools:
            wanted = wanted_workers(self.order.resources, self._open_runs(group))
            tasks = max(min(wanted - free, room), 0)
            free, room = max(free - wanted, 0), room - tasks
            if tasks:
                submits.write_order(dataclasses.replace(self.order, group=group))
                self._submit_group(submits, group, tasks, earlier)

    def _open_runs(self, group: Group) -> int:
        """Runs of the group that wait for a worker. Whether runs done elsewhere count on the cluster, only a worker there can tell."""
        runs = [run.run_id for run in self.scan.groups[group]]
        number = sum(self.board.status[run_id] not in ("running", *DONE) for run_id in runs)
        elsewhere = sum(self.scan.launcher_of.get(run_id, "slurm") != "slurm" for run_id in runs)
        if number or not elsewhere or self.scan.reuse != "strict":
            return number
        self.is_unsure = True
        self.board.note(
            f"{counted(elsewhere, 'run')} done outside the cluster: one worker finds out whether its nodes are another environment "
            "(reuse=strict).\n  If they are, the same command adds workers."
        )
        return 1

    def _submit_group(self, submits: Submits, group: Group, tasks: int, earlier: list[str]) -> None:
        parallel = self.order.resources.slurm.max_parallel
        ids: list[str] = []
        for chunk in chunks(tasks, self.longest_array, parallel):
            before = [ids[chunk.after]] if chunk.after is not None else earlier if parallel else []
            after = f"afterany:{':'.join(dict.fromkeys(before))}" if before else None
            try:
                job = submits.submit(group, chunk, len(self.jobs) + 1, after)
            except UserError as error:
                if not self.jobs:
                    raise
                taken = sum(number for _, number in self.jobs)
                self.board.note(f"{counted(taken, 'job')} submitted, then no more. {error}\n  The same command adds the others later.")
                return
            self.queue.note(job, chunk.tasks, dispatch=self.order.dispatch, folder=str(self.folder))
            self.jobs.append((job, chunk.tasks))
            ids.append(job)

    @property
    def folder(self) -> Path:
        """Scripts, pickles and logs of this command."""
        return self.sweep.path / "submitit" / self.order.dispatch

    def result(self) -> DispatchResult:
        return dataclasses.replace(super().result(), submitted=tuple(self.jobs), active=self.active, logs=self.folder)

    # Staying

    def _stay(self) -> None:
        while not self.stop.worker and not self._is_over():
            for worker, event in self._read_journals():
                self.board.apply(worker, event)
            self.scan.some()
            self.board.refresh_running()
            self._show()
            time.sleep(TICK_S)
        self.scan.everything()  # what ended since the last look
        left = sum(status not in (*DONE, "failed", "lost") for status in self.board.status.values())
        if left and not self.stop.worker and not self.sweep.is_cancelled:
            self.error = (
                f"{counted(left, 'run')} left, and no job of this sweep any more. action=status tells how the jobs ended.\n"
                f"  Their logs: {self.folder}\n  The same command submits new ones."
            )

    def _is_over(self) -> bool:
        if not self.is_unsure and all(status in DONE for status in self.board.status.values()):
            return True
        if time.monotonic() - self.looked < self.order.resources.slurm.poll_s:
            return False
        self.looked = time.monotonic()
        if self.sweep.is_cancelled:
            return True
        answer = self.queue.ask()
        if answer.problem:
            self.board.note(f"SLURM does not answer ({answer.problem}); the jobs go on without this command")
            return False
        mark_gone(self.root, self.plan, answer, self.board.status)
        return answer.active() == 0

    def _read_journals(self) -> list[tuple[str, dict[str, Any]]]:
        """What workers have written since the last time, each line under its worker's name."""
        if not self.order.resources.slurm.wait:
            return []
        found = []
        for path in (self.sweep.path / "workers").glob("*.jsonl"):
            reader = self.readers.setdefault(path, JournalReader(path))
            found += [(path.stem, event) for event in reader.read()]
        return found
