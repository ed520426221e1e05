"""Runs whose job SLURM has ended: said to be lost as soon as SLURM says so, before their claims expire."""

from collections.abc import Mapping

from accum_sweeps.jobs.claims import mark_lost
from accum_sweeps.jobs.slurm_ask import JobRow
from accum_sweeps.jobs.slurm_queue import Answer
from accum_sweeps.record.state import INTERRUPTED, file_system_now, newest_claim, read_claim, run_state
from accum_sweeps.record.store import RootDir
from accum_sweeps.record.sweep import Plan

SILENT_PART = 0.25  # of a claim's expiry: so long without a sign of life, and without a job, its owner is dead
# What SLURM does to a job without the run's fault.
BY_CLUSTER = ("PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "REQUEUED", "PENDING", "CANCELLED", "TIMEOUT", "DEADLINE")


def mark_gone(root: RootDir, plan: Plan, answer: Answer, status: Mapping[str, str] | None = None) -> list[str]:
    """Mark running runs (by ``status``, asked for if not given) as lost whose job SLURM's ``answer`` has ended; returns their run_ids.

    A claim counts only if it was silent for a while when SLURM was asked: a job may have begun since.
    """
    if answer.problem or not answer.time:
        return []
    tasks, now = answer.by_task(), file_system_now(root.path)
    found = []
    for run in plan.runs:
        known = run_state(root, run.run_id, now=now).status if status is None else status.get(run.run_id)
        if known == "running" and _mark(root, run.run_id, tasks, answer.time):
            found.append(run.run_id)
    return found


def _mark(root: RootDir, run_id: str, tasks: Mapping[str, JobRow], asked: float) -> bool:
    folder = root.run_folder(run_id)
    number = newest_claim(folder)
    claim = read_claim(folder, number)
    if claim.get("launcher") != "slurm":
        return False
    row = tasks.get(str(claim.get("job")))
    if row is not None and row.is_working:
        return False
    try:
        silent_s = asked - (folder / f"claim.{number}").stat().st_mtime
    except OSError:
        return False
    if silent_s < SILENT_PART * float(claim.get("expiry_s", 60)):
        return False
    return mark_lost(root, run_id, number, _reason(str(claim.get("job")), row))


def _reason(job: str, row: JobRow | None) -> str:
    if row is None:
        return f"its job {job} is gone"
    words = f"its job {job} is {row.state.lower().replace('_', ' ')}" + (f" ({row.reason})" if row.reason else "")
    return f"{INTERRUPTED}: {words}" if row.state in BY_CLUSTER else words
