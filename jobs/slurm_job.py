"""A worker job on a cluster, from its start to its end: which turn it is, what its earlier turns left, and what follows."""

import dataclasses
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from accum_sweeps.jobs.choice import spent_attempts
from accum_sweeps.jobs.claims import mark_lost
from accum_sweeps.jobs.journal import JournalReader
from accum_sweeps.jobs.order import WorkOrder
from accum_sweeps.jobs.slurm_text import REQUEUE_CODE
from accum_sweeps.jobs.supervise import RunsFailedError, supervise
from accum_sweeps.jobs.worker import WorkEnd
from accum_sweeps.plan.errors import UserError
from accum_sweeps.record.files import create_exclusive
from accum_sweeps.record.state import INTERRUPTED, file_system_now, run_state
from accum_sweeps.record.store import RootDir, open_root
from accum_sweeps.record.sweep import SweepDir, open_sweep

AT_LIMIT = "stopped by SIGUSR2"  # the signal that SLURM sends before the time limit
CLOSING_LIMIT_S = 3600.0


class SlurmWorker:
    """What the order's pickle holds."""

    def __init__(self, order: WorkOrder) -> None:
        self.order = order

    def __call__(self) -> WorkEnd:
        """Runs in the job's process. Raises RunsFailedError or UserError where SLURM is to show the job as failed."""
        order = named(self.order)
        _check_release(order)
        root = open_root(Path(order.root))
        sweep = open_sweep(root, order.sweep)
        former = earlier_turns(root, sweep, order)
        if not former and is_over(root, sweep, order):  # before torch is imported: many may wait until the last run is done
            return WorkEnd("done")
        try:
            end = supervise(order, former)
        except RunsFailedError:
            close_if_over(root, sweep, order)
            raise
        if end.kind == "fatal":
            raise UserError(end.message)
        is_closed = close_if_over(root, sweep, order)
        if end.kind == "stopped" and end.message == AT_LIMIT and not is_closed and not sweep.is_cancelled:
            if order.resources.slurm.requeue:
                print("the time limit is near: runs are saved, this job goes back into the queue", flush=True)
                sys.exit(REQUEUE_CODE)
            print("the time limit is near: runs are saved; the same command goes on with them (launcher.requeue=false)", flush=True)
        return end


def named(order: WorkOrder) -> WorkOrder:
    """The order with what only the job itself knows: its id, turn, node and log. A requeued job keeps its id and counts its turns."""
    job = f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    turn = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
    log = Path(os.environ["SUBMITIT_FOLDER"]) / f"{job}_0_log.out"
    node = os.environ.get("SLURMD_NODENAME", "")
    return dataclasses.replace(order, name=worker_name(order.dispatch, job, turn), job=job, turn=turn, log=str(log), node=node)


def worker_name(dispatch: str, job: str, turn: int) -> str:
    """Names a worker's journal."""
    return f"{dispatch}-j{job}" + (f"-t{turn}" if turn else "")


def _check_release(order: WorkOrder) -> None:
    here = metadata.version("accum_sweeps")
    if here != order.release:
        raise UserError(
            f"accum_sweeps {here} is installed on node {order.node}, {order.release} where the sweep was submitted.\n"
            "  Install the same release on all nodes, or name another interpreter: launcher.python"
        )


@dataclass
class _Turn:
    """What the journal of an earlier turn says: the run it held at its end, and the runs that failed in it."""

    holding: tuple[str, int] | None = None
    failed: set[str] = field(default_factory=set)


def earlier_turns(root: RootDir, sweep: SweepDir, order: WorkOrder) -> set[str]:
    """Runs that failed in earlier turns of this job and still are not done.

    A run that an earlier turn held when SLURM took its node away was interrupted; said here, nobody waits for its claim to
    expire and the attempt does not count as failed.
    """
    failed: set[str] = set()
    for turn in range(order.turn):
        found = _read_turn(sweep.path / "workers" / f"{worker_name(order.dispatch, order.job, turn)}.jsonl")
        if found.holding:
            mark_lost(root, *found.holding, f"{INTERRUPTED}: its job {order.job} was put back into the queue")
        failed |= found.failed
    return {run_id for run_id in failed if run_state(root, run_id).status in ("failed", "lost")}


def _read_turn(path: Path) -> _Turn:
    turn = _Turn()
    for event in JournalReader(path).read():
        if event["event"] == "claimed":
            turn.holding = event["run"], event["attempt"]
        elif event["event"] in ("ended", "died"):
            turn.holding = None
            is_failed = event["event"] == "died" or event["status"] == "failed"
            if event["run"] is not None:
                (turn.failed.add if is_failed else turn.failed.discard)(event["run"])
    return turn


def close_if_over(root: RootDir, sweep: SweepDir, order: WorkOrder) -> bool:
    """Whether nothing is left to do; whichever job finds that first makes the report and brings the sweep into MLflow.

    No failure of that fails the job.
    """
    try:
        if not is_over(root, sweep, order):
            return False
        (sweep.path / "slurm").mkdir(exist_ok=True)
        if order.closing and create_exclusive(sweep.path / "slurm" / f"closed.{order.dispatch}", order.name + "\n"):
            _close(order)
    except (OSError, UserError, subprocess.SubprocessError) as error:
        print(f"the sweep could not be closed: {error}", file=sys.stderr, flush=True)
        return False
    return True


def is_over(root: RootDir, sweep: SweepDir, order: WorkOrder) -> bool:
    """Whether every run of the plan is done, or failed as often as it may."""
    if sweep.is_cancelled:
        return False
    now = file_system_now(root.path)
    for run in sweep.read_plan(order.revision).runs:
        state = run_state(root, run.run_id, now=now)
        if state.is_done:
            continue
        if state.status not in ("failed", "lost") or spent_attempts(root, state, order.dispatch) < order.resources.max_attempts:
            return False
    return True


def _close(order: WorkOrder) -> None:
    """Run the closing module apart: it may import what jobs must not know, and take the memory that it likes."""
    document = json.dumps({"root": order.root, "sweep": order.sweep, **order.closing_facts})
    command = [sys.executable, "-m", order.closing]
    done = subprocess.run(command, input=document, text=True, timeout=CLOSING_LIMIT_S, check=False)
    if done.returncode:
        print(f"closing the sweep ended with exit code {done.returncode}", file=sys.stderr, flush=True)
