"""Starts workers and stays until nothing is left to do. The only file that knows submitit.

A local sweep is one submitit job a slot, each a supervised warm worker that pulls runs. The dispatcher computes nothing
and imports nothing heavy; it tails the workers' journals, and what it says at the end it reads from the run directories.
"""

import contextlib
import dataclasses
import functools
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accum_sweeps.jobs.board import Board
from accum_sweeps.jobs.dispatcher import DispatchResult, FailedRun, Inline
from accum_sweeps.jobs.heartbeat import STOPPING
from accum_sweeps.jobs.local import Local
from accum_sweeps.jobs.order import Group, WorkOrder, groups, slot_pools
from accum_sweeps.jobs.resources import Resources
from accum_sweeps.jobs.slots import SlotPool
from accum_sweeps.jobs.slurm_chunks import Chunk
from accum_sweeps.jobs.slurm_queue import SlurmQueue
from accum_sweeps.jobs.supervise import supervise
from accum_sweeps.jobs.worker import THREAD_VARIABLES, WorkEnd
from accum_sweeps.plan.errors import ConfigError, one_of
from accum_sweeps.plan.names import REUSE
from accum_sweeps.record.files import own_folder
from accum_sweeps.record.store import RootDir
from accum_sweeps.record.sweep import Plan, SweepDir, open_sweep

if TYPE_CHECKING:
    import submitit

__all__ = ["DispatchResult", "FailedRun", "cluster_script", "dispatch"]
NO_TIMEOUT_MIN = 60 * 24 * 365 * 10


def dispatch(
    root: RootDir,
    sweep: SweepDir,
    plan: Plan,
    resources: Resources,
    *,
    reuse: str = "strict",
    on_progress: Callable[[Board], None] = lambda board: None,
    engine: str = "accum_sweeps.jobs.engine",
    facts: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    closing: str = "",
    closing_facts: Mapping[str, Any] | None = None,
) -> DispatchResult:
    """Have all runs of ``plan`` done that are not done yet, and stay until that is so.

    SIGINT, SIGTERM and SIGHUP stop the workers, which save what they have; a second one kills them. ``on_progress`` is called
    often and should decide for itself when to draw. ``facts`` on this command (command, git_commit) are recorded with each attempt
    that it starts; ``environment`` are variables for the workers. Raises UserError (no such GPU, too many slots) before anything starts.

    On a cluster it submits jobs and returns (launcher.wait=true: stays); the job that finds the sweep done runs the module ``closing``,
    which reads ``closing_facts`` as JSON.
    """
    if reuse not in REUSE:
        raise ConfigError("reuse", reuse, one_of(reuse, REUSE))
    pools = slot_pools(groups(plan), resources)
    order = WorkOrder(
        root=str(root.path.resolve()),
        sweep=sweep.name,
        revision=plan.revision,
        dispatch=f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}",
        name="",
        group=next(iter(pools), Group("cpu", 1, False)),
        pool=next(iter(pools.values()), SlotPool("core", (), 0, 0)),
        resources=resources,
        reuse=reuse,
        engine=engine,
        sys_path=tuple(entry or str(Path.cwd()) for entry in sys.path),
        facts=dict(facts or {}),
        environment=dict(environment or {}),
        closing=closing,
        closing_facts=dict(closing_facts or {}),
    )
    if resources.kind != "inline":
        own_folder(sweep.path / "submitit", root.path)  # pickles are read from there
    if resources.kind == "slurm":
        return _on_cluster(root, sweep, plan, order, pools, on_progress)
    if resources.kind == "inline":
        return Inline(root, sweep, plan, order, pools, on_progress).run()
    submit = functools.partial(_submit_here, sweep.path / "submitit")
    return Local(root, sweep, plan, order, pools, on_progress, submit=submit).run()


def _on_cluster(*arguments: Any) -> DispatchResult:
    from accum_sweeps.jobs.cluster import Cluster
    from accum_sweeps.jobs.dispatch_slurm import submission
    from accum_sweeps.jobs.slurm_ask import longest_array

    return Cluster(*arguments, make=submission, longest_array=longest_array()).run()


def cluster_script(sweep: str, root: Path, resources: Resources, group: Group, chunk: Chunk, after: str | None) -> str:
    """The sbatch script of an array of a sweep's workers, as it would be submitted; nothing is written."""
    from accum_sweeps.jobs.dispatch_slurm import Submission

    queue = SlurmQueue(open_sweep(RootDir(root), sweep))
    folder = queue.sweep.path / "submitit" / "DISPATCH"
    return Submission(resources.slurm, str(root), folder, queue.folder / "token", queue.name).text(group, chunk, after)


class WorkerJob:
    """What submitit runs: a supervised worker."""

    def __init__(self, order: WorkOrder) -> None:
        self.order = order

    def __call__(self) -> WorkEnd:
        """Runs in the job's process. A scheduler's requeue would be built here, as submitit's ``checkpoint``."""
        import submitit

        environment = submitit.JobEnvironment()
        return supervise(dataclasses.replace(self.order, job=environment.job_id, log=str(environment.paths.stdout)))


class _LocalHandle:
    """A job of submitit's local executor."""

    def __init__(self, job: "submitit.Job[Any]") -> None:
        self._job = job
        self.job_id = str(job.job_id)
        self.log = Path(job.paths.stdout)

    def done(self) -> bool:
        return bool(self._job.done())


def _submit_here(folder: Path, order: WorkOrder) -> _LocalHandle:
    import submitit

    # A folder for each job: submitit names files after process ids, and those come again. An executor for each job:
    # one executor waits between submissions, which is meant for clusters.
    executor = submitit.LocalExecutor(folder / order.name)
    executor.update_parameters(timeout_min=NO_TIMEOUT_MIN, stderr_to_stdout=True)
    with _job_environment(order.environment):
        return _LocalHandle(executor.submit(WorkerJob(order)))


@contextlib.contextmanager
def _job_environment(more: Mapping[str, str]) -> Iterator[None]:
    """What a job is started with: one thread until its worker knows better, and no part in the terminal's Ctrl-C.

    Ctrl-C reaches all processes of a terminal; submitit's controller would then kill the worker after a second. Blocked
    signals stay blocked in what is started, and those that arrive meanwhile are delivered here afterwards.
    """
    wanted = dict.fromkeys(THREAD_VARIABLES, "1") | dict(more)
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, set(STOPPING) - {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
