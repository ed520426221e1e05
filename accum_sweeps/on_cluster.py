"""What the command says of a sweep's jobs on a SLURM cluster: before they are submitted, afterwards, and while they wait or run."""

import shlex
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from accum_sweeps.jobs.dispatch import DispatchResult, cluster_script
from accum_sweeps.jobs.order import Group
from accum_sweeps.jobs.resources import Resources
from accum_sweeps.jobs.slurm_ask import JobRow, NoAnswerError, ask_cluster
from accum_sweeps.jobs.slurm_check import check_cluster, check_root
from accum_sweeps.jobs.slurm_chunks import chunks, wanted_workers
from accum_sweeps.jobs.slurm_queue import Answer, SlurmQueue, log_path
from accum_sweeps.plan.errors import UserError
from accum_sweeps.plan.words import be, counted
from accum_sweeps.record.sweep import SweepDir

SHIPPED_LONGEST_ARRAY = 1001
MOST_JOBS = 10
# SLURM's reasons for a job that waits, in words.
REASONS = {
    "Priority": "others come first",
    "Resources": "no node is free",
    "JobHeldUser": "held; scontrol release JOB lets it go on",
    "JobHeldAdmin": "held by an administrator",
    "JobArrayTaskLimit": "launcher.max_parallel",
    "Dependency": "waits for jobs before it",
    "BeginTime": "waits a moment after its last turn",
    "PartitionDown": "its partition is down",
    "PartitionInactive": "its partition takes no jobs",
    "PartitionTimeLimit": "its time limit is above the partition's",
    "PartitionNodeLimit": "its partition has not so many nodes",
    "launch failed requeued held": "its node could not start it; scontrol release JOB tries again",
    "AssocGrpCpuLimit": "your account's limit",
    "QOSMaxJobsPerUserLimit": "your limit of jobs",
}


def check(root: Path, resources: Resources, groups: Iterable[Group]) -> None:
    """UserError for what the cluster cannot give, before anything is written."""
    check_root(root)
    try:
        cluster = ask_cluster()
    except NoAnswerError as error:
        hint = "Type the command where jobs are submitted, or run the sweep on this machine: launcher=local"
        raise UserError(f"launcher=slurm: no SLURM answers here: {error}\n  {hint}") from None
    check_cluster(cluster, resources.slurm, groups)


def scripts(sweep: str, root: Path, resources: Resources, open_runs: dict[Group, int]) -> str:
    """For ``action=plan``: the sbatch script of each array that would be submitted, where nothing is queued yet."""
    check_root(root)
    try:
        cluster = ask_cluster()
        check_cluster(cluster, resources.slurm, open_runs)
        longest, blocks = cluster.longest_array, []
    except NoAnswerError as error:
        longest = SHIPPED_LONGEST_ARRAY
        blocks = [f"The cluster's limits are unknown here ({error}); an array is taken to hold {counted(longest, 'job')}."]
    for group, number in open_runs.items():
        made = chunks(wanted_workers(resources, number), longest, resources.slurm.max_parallel)
        for index, chunk in enumerate(made):
            title = f"sbatch, array {index + 1} of {len(made)}: {counted(chunk.tasks, 'job')} for {counted(number, 'run')}"
            after = None if chunk.after is None else f"afterany:JOB_ID_OF_ARRAY_{chunk.after + 1}"
            blocks.append(f"--- {title}\n{cluster_script(sweep, root, resources, group, chunk, after)}")
    return "\n\n".join(blocks)


def submitted_text(sweep: SweepDir, result: DispatchResult) -> str:
    """What was submitted, and how to go on from here."""
    lines = list(result.notes)
    if result.submitted:
        ids = ", ".join(f"{job}_[0-{tasks - 1}]" if tasks > 1 else f"{job}_0" for job, tasks in result.submitted)
        lines += [f"jobs  {ids}", f"logs  {result.logs}"]
    if result.active:
        lines.append(f"{counted(result.active, 'job')} of this sweep {be(result.active)} queued or running already")
    counts = ", ".join(f"{number} {status}" for status, number in sorted(result.counts.items()))
    lines.append(f"sweep {sweep.name}: {counts}")
    own = shlex.join(["python", "-m", "accum_sweeps", f"sweep={sweep.name}", f"root={sweep.root.path}"])
    lines += ["This command is done, the jobs go on without it; the last one makes the report and brings the sweep into MLflow."]
    lines += [f"  how it stands   {own} action=status", f"  to stop it      {own} action=cancel"]
    lines += ["  to stay         the same command with launcher.wait=true"]
    return "\n".join(lines)


def jobs_text(queue: SlurmQueue, answer: Answer) -> str:
    """The sweep's jobs as SLURM tells them; empty where it knows of none."""
    rows: dict[tuple[str, str], list[JobRow]] = defaultdict(list)
    for row in answer.rows:
        if row.state != "COMPLETED":
            rows[row.state, row.reason].append(row)
    lines = [f"SLURM does not answer: {answer.problem}"] if answer.problem else []
    submitted = queue.submitted()
    for (state, reason), same in sorted(rows.items()):
        number = sum(len(row.tasks) for row in same)
        words = f"{reason}: {REASONS[reason]}" if reason in REASONS else reason
        ids = [f"{row.job}_{task}" for row in same for task in row.tasks]
        more = f" and {len(ids) - MOST_JOBS} more" if len(ids) > MOST_JOBS else ""
        nodes = sorted({row.node for row in same if row.node})
        lines.append(
            f"{counted(number, 'job')} {state.lower().replace('_', ' ')}"
            + (f" ({words})" if words else "")
            + (f" on {', '.join(nodes[:MOST_JOBS])}" if nodes else "")
            + f": {', '.join(ids[:MOST_JOBS])}{more}"
        )
        if not same[0].is_active:
            lines += _ended(submitted, ids)
    return "\n".join(lines)


def _ended(submitted: Sequence[dict[str, object]], ids: Sequence[str]) -> list[str]:
    """Where to read on about jobs that did not end well."""
    lines = []
    for job in ids[:MOST_JOBS]:
        log = log_path(submitted, job)
        if log is not None and log.exists():
            lines.append(f"  log {log}")
        elif log is not None:
            lines.append(
                f"  job {job} left no log: it ended before it began, or its node does not see {log.parent} (the root must be on all nodes)"
            )
    return lines


def jobs_of(sweep: SweepDir) -> tuple[SlurmQueue, Answer] | None:
    """The sweep's jobs as SLURM tells them now; None where it was never on a cluster."""
    queue = SlurmQueue(sweep)
    return (queue, queue.ask()) if queue.was_used else None
