"""How a sweep stands, read from its run directories, whoever works on it; and stopping it."""

import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from accum_sweeps.jobs.choice import finished_in
from accum_sweeps.jobs.slurm_queue import SlurmQueue
from accum_sweeps.record.state import RunState, file_system_now, run_state, shown_status
from accum_sweeps.record.sweep import Plan, PlannedRun, SweepDir


@dataclass(frozen=True)
class RunLine:
    """One run that somebody is at, or that did not end well: where, how far, why, and where to read on."""

    run_id: str
    name: str
    status: str
    attempt: int
    step: int
    steps: int
    host: str
    job: str
    reason: str
    log: Path
    job_log: str


@dataclass(frozen=True)
class SweepStatus:
    """Runs by status, in all and by setup; ``done_in`` counts the done ones by the environment that did them last."""

    name: str
    is_cancelled: bool
    counts: dict[str, int]
    by_setup: dict[str, dict[str, int]]
    done_in: dict[str, int]
    lines: tuple[RunLine, ...]


def sweep_status(sweep: SweepDir, plan: Plan | None = None) -> SweepStatus:
    """The status of each run of ``plan`` (default: the newest revision).

    A run that is done in any environment counts as done. Raises UserError if the sweep was never planned.
    """
    plan = plan or sweep.read_plan()
    is_cancelled = sweep.is_cancelled
    by_setup: list[Counter[str]] = [Counter() for _ in plan.setups]
    done_in: Counter[str] = Counter()
    lines = []
    now = file_system_now(sweep.root.path)
    for run in plan.runs:
        state = run_state(sweep.root, run.run_id, now=now)
        done = [state.env_id] if state.is_done else finished_in(sweep.root, state) if state.attempt else []
        done_in.update(done)
        status = _status(state, is_done=bool(done), is_cancelled=is_cancelled)
        by_setup[run.setup][status] += 1
        if status in ("running", "failed", "lost"):
            lines.append(_line(sweep, plan, run, state))
    named = {label: dict(counter) for label, counter in zip(plan.labels, by_setup, strict=True)}
    return SweepStatus(sweep.name, is_cancelled, dict(sum(by_setup, Counter())), named, dict(done_in), tuple(lines))


def _status(state: RunState, *, is_done: bool, is_cancelled: bool) -> str:
    if is_done:
        return state.status if state.is_done else "finished"
    return shown_status(state.status, is_cancelled=is_cancelled)


def _line(sweep: SweepDir, plan: Plan, run: PlannedRun, state: RunState) -> RunLine:
    return RunLine(
        run_id=run.run_id,
        name=plan.run_name(run),
        status=state.status,
        attempt=state.attempt,
        step=state.step,
        steps=plan.setups[run.setup].steps,
        host=str(state.claim.get("node") or state.claim.get("host", "")),
        job=str(state.claim.get("job", "")),
        reason=state.reason,
        log=sweep.root.run_dir(run.run_id, state.env_id).log_path(state.attempt),
        job_log=str(state.claim.get("log", "")),
    )


def cancel(sweep: SweepDir, *, wait_s: float = 0.0, queue: SlurmQueue | None = None) -> int:
    """Have all workers of the sweep, whoever started them, save what they have and stop. Other sweeps are not touched.

    Waits up to ``wait_s`` seconds; returns how many runs are still running then. Runs that another sweep shares and works on
    go on there and count as running. The sweep's jobs in the ``queue`` of a cluster are ended: those that wait at once, those that
    run when their runs are saved. Raises UserError if the sweep was never planned.
    """
    plan = sweep.read_plan()
    sweep.set_cancelled(True)
    if queue is None or not queue.was_used:
        return _wait_for(sweep, plan, wait_s)
    queue.end(pending_only=True)
    running = _wait_for(sweep, plan, wait_s)
    queue.end(pending_only=False)
    return running


def _wait_for(sweep: SweepDir, plan: Plan, wait_s: float) -> int:
    until = time.monotonic() + wait_s
    while True:
        now = file_system_now(sweep.root.path)
        running = sum(run_state(sweep.root, run.run_id, now=now).status == "running" for run in plan.runs)
        if not running or time.monotonic() >= until:
            return running
        time.sleep(0.25)
