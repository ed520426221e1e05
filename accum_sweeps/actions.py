"""What the command's actions do: the one place that wires planning, dispatch, replay and report."""

import sys
from collections.abc import Callable
from pathlib import Path

from accum_sweeps import on_cluster, planning
from accum_sweeps.jobs.board import Board
from accum_sweeps.jobs.dispatch import DispatchResult, dispatch
from accum_sweeps.jobs.order import Group, slot_pools
from accum_sweeps.jobs.progress import shown_progress
from accum_sweeps.jobs.resources import Resources, read_resources
from accum_sweeps.jobs.slurm_gone import mark_gone
from accum_sweeps.jobs.slurm_queue import SlurmQueue
from accum_sweeps.jobs.status import SweepStatus, cancel, sweep_status
from accum_sweeps.jobs.worker import disk_full
from accum_sweeps.plan.config import Config
from accum_sweeps.plan.design import own_setups
from accum_sweeps.plan.spec import RunSpec
from accum_sweeps.plan.words import counted
from accum_sweeps.preview import preview
from accum_sweeps.pruning import prune
from accum_sweeps.record import events
from accum_sweeps.record.files import is_disk_full
from accum_sweeps.record.mlflow_sync import SyncReport
from accum_sweeps.record.store import RootDir, open_root
from accum_sweeps.record.sweep import Plan, SweepDir, open_sweep, sweep_names
from accum_sweeps.reporting import Report, ReportError, report, report_apart
from accum_sweeps.snapshot import kept_code, read_settings
from accum_sweeps.texts import aligned
from accum_sweeps.tracking import Replay, lag_text, prepare, replay_once, report_text

DONE, SOME_FAILED, MLFLOW_LAGS, FAULT_FOUND, INTERRUPTED = 0, 1, 3, 4, 130
MOST_LINES = 20
CANCEL_WAIT_S = 60.0


def perform(config: Config) -> int:
    """Carry out the configuration's action; the exit code. Raises UserError for what the user has to correct."""
    try:
        return ACTIONS[config.action](config)
    except ReportError as error:
        print(f"stopped: {error}", file=sys.stderr)
    except OSError as error:
        if not is_disk_full(error):
            raise
        print(f"stopped: {disk_full(str(config.root))}", file=sys.stderr)
    return SOME_FAILED


def _run(config: Config) -> int:
    """Plan, start what is missing, stay until it is done, and tell how it came out."""
    cwd = Path.cwd()
    resources, specs = _checked(config, cwd)
    is_away = resources.kind == "slurm"
    if is_away:
        on_cluster.check(config.root, resources, {Group.of(spec.setup) for spec in specs})
    sweep = open_sweep(_prepared(config), config.sweep)
    header = planning.header(config, cwd)
    plan = sweep.write_plan(header, specs, planning.labels_of(specs))
    sweep.set_cancelled(False)
    code = kept_code(config, sweep, specs, cwd, resources.kind)
    del specs  # the plan's compact rows are enough from here on, whatever the sweep's size
    print(_opening(sweep, plan))
    facts = {key: header[key] for key in ("command", "git_commit")} | ({"snapshot": code.name} if code else {})
    start = _starter(config, resources, sweep, plan, facts, code.environment if code else {})
    if is_away and not resources.slurm.wait:
        result = start(lambda _board: None)
        if result.submitted or result.active:
            print(on_cluster.submitted_text(sweep, result))
            return DONE
        return _close(config, sweep, result)
    with Replay(sweep, config.tracking) as replay:
        with shown_progress(sys.stderr) as show:
            result = start(show)
        if is_away and result.is_interrupted:
            print(on_cluster.submitted_text(sweep, result))
            return INTERRUPTED
        made = _reported(config, sweep, result)
        replay.keep(made.paths, made.note)
    return _outcome(config, result, made, replay.report)


def _starter(
    config: Config, resources: Resources, sweep: SweepDir, plan: Plan, facts: dict[str, str], environment: dict[str, str]
) -> Callable[[Callable[[Board], None]], DispatchResult]:
    """Dispatches the plan, given what shows its progress."""
    closing_facts = {"tracking": dict(config.tracking), "asked": dict(config.judging.asked())}

    def start(show: Callable[[Board], None]) -> DispatchResult:
        return dispatch(
            sweep.root,
            sweep,
            plan,
            resources,
            reuse=config.reuse,
            on_progress=show,
            facts=facts,
            environment=environment,
            closing="accum_sweeps.closing",
            closing_facts=closing_facts,
        )

    return start


def _close(config: Config, sweep: SweepDir, result: DispatchResult) -> int:
    """Report and replay of a sweep that needs no job any more."""
    with Replay(sweep, config.tracking) as replay:
        made = _reported(config, sweep, result)
        replay.keep(made.paths, made.note)
    return _outcome(config, result, made, replay.report)


def _reported(config: Config, sweep: SweepDir, result: DispatchResult) -> Report:
    print(_closing(sweep, result))
    made = report_apart(sweep, config.judging.asked())
    made.print()
    return made


def _outcome(config: Config, result: DispatchResult, made: Report, arrived: SyncReport | None) -> int:
    """The exit code, once what arrived in MLflow is told."""
    print(report_text(arrived, config.tracking))
    if result.is_interrupted:
        return INTERRUPTED
    if result.error or result.failed or result.is_cancelled:
        return SOME_FAILED
    if made.faults:
        return FAULT_FOUND
    return DONE if arrived is None or arrived.is_complete else MLFLOW_LAGS


def _plan(config: Config) -> int:
    """Tell what would run; nothing is started and nothing written."""
    resources, specs = _checked(config, Path.cwd())
    print(preview(config, specs, resources))
    return DONE


def _checked(config: Config, cwd: Path) -> tuple[Resources, list[RunSpec]]:
    """Resources and runs, each possible here: UserError for what the launcher or a run cannot have, before anything is written."""
    resources = read_resources(config.launcher)
    read_settings(config.snapshot)
    specs = planning.planned_runs(config, cwd)
    slot_pools({Group.of(spec.setup) for spec in specs}, resources)
    return resources, specs


def _prepared(config: Config) -> RootDir:
    """The root, made where it is missing, and what tracking needs. A database elsewhere comes first: a wrong one leaves no root."""
    is_inside = str(config.tracking["uri"]).startswith(f"sqlite:///{config.root}/")
    if not is_inside:
        prepare(config.tracking)
    root = open_root(config.root, create=True)
    if is_inside:
        prepare(config.tracking)
    return root


def _status(config: Config) -> int:
    sweep = open_sweep(open_root(config.root), config.sweep)
    plan, jobs = sweep.read_plan(), on_cluster.jobs_of(sweep)
    status = sweep_status(sweep, plan)
    if jobs is not None and mark_gone(sweep.root, plan, jobs[1], {line.run_id: line.status for line in status.lines}):
        status = sweep_status(sweep, plan)
    print(_status_text(sweep, status))
    if jobs is not None:
        print(on_cluster.jobs_text(*jobs) or "no job of this sweep is queued or running")
    print(lag_text(sweep, config.tracking))
    return DONE


def _report(config: Config) -> int:
    sweep = open_sweep(open_root(config.root), config.sweep)
    made = report(sweep, config.judging.asked())
    made.print()
    return FAULT_FOUND if made.faults else DONE


def _sync(config: Config) -> int:
    """Bring all runs of the sweep into MLflow, a lost database included."""
    sweep = open_sweep(open_root(config.root), config.sweep)
    made = report(sweep, config.judging.asked())
    prepare(config.tracking)
    arrived = replay_once(sweep, config.tracking, made.paths, made.note)
    print(report_text(arrived, config.tracking))
    return DONE if arrived is None or arrived.is_complete else MLFLOW_LAGS


def _cancel(config: Config) -> int:
    sweep = open_sweep(open_root(config.root), config.sweep)
    running = cancel(sweep, wait_s=CANCEL_WAIT_S, queue=SlurmQueue(sweep))
    rest = f"; {counted(running, 'run')} did not stop yet, see action=status" if running else ""
    print(f"sweep {sweep.name} is cancelled{rest}. Nothing is lost: its command typed again goes on where it stopped.")
    return DONE


def _list(config: Config) -> int:
    """One line for each sweep of the root."""
    root = open_root(config.root)
    rows = [("sweep", "runs", "done", "other", "command")]
    for name in sweep_names(root):
        sweep = open_sweep(root, name)
        plan, status = sweep.read_plan(), sweep_status(sweep)
        done = sum(status.counts.get(key, 0) for key in events.DONE)
        others = ", ".join(f"{n} {key}" for key, n in status.counts.items() if key not in events.DONE)
        rows.append((name, str(len(plan.runs)), str(done), others or "-", str(plan.header.get("command", ""))))
    print(f"root {root.path}")
    print(aligned(rows) if len(rows) > 1 else "No sweep is planned here. Start one with +grid=NAME.")
    return DONE


def _prune(config: Config) -> int:
    return prune(open_root(config.root))


ACTIONS: dict[str, Callable[[Config], int]] = {
    "run": _run,
    "plan": _plan,
    "status": _status,
    "report": _report,
    "sync": _sync,
    "cancel": _cancel,
    "list": _list,
    "prune": _prune,
}


def _opening(sweep: SweepDir, plan: Plan) -> str:
    size = f"{counted(len(plan.runs), 'run')} in {counted(len(own_setups(plan.setups)), 'setup')}"
    return f"sweep {sweep.name}: {size} (revision {plan.revision})\nroot  {sweep.root.path}"


def _closing(sweep: SweepDir, result: DispatchResult) -> str:
    """What the sweep came to, and what to do where that was not the end of it."""
    counts = ", ".join(f"{number} {status}" for status, number in sorted(result.counts.items()))
    lines = [f"sweep {sweep.name}: {counts}"]
    for run in result.failed[:MOST_LINES]:
        lines += [f"{run.status}: {run.name}: {run.reason}", f"  log {run.log}"]
    if len(result.failed) > MOST_LINES:
        lines.append(f"and {len(result.failed) - MOST_LINES} more: action=status lists them")
    if result.error:
        lines.append(f"stopped: {result.error}")
    if result.is_interrupted:
        lines.append("interrupted; all that was done is kept. The same command goes on where it stopped.")
    elif result.failed:
        lines.append("The same command tries the failed runs again; the others are done.")
    elif result.is_cancelled:
        lines.append("cancelled; the same command goes on where it stopped.")
    return "\n".join(lines)


def _status_text(sweep: SweepDir, status: SweepStatus) -> str:
    counts = ", ".join(f"{number} {key}" for key, number in status.counts.items())
    lines = [f"sweep {sweep.name}: {counts}" + (" (cancelled)" if status.is_cancelled else ""), f"root  {sweep.root.path}"]
    kinds = [key for key in (*events.DONE, "running", "planned", "failed", "lost", "cancelled") if key in status.counts]
    lines.append(aligned([("setup", *kinds), *((label, *(str(n.get(key, 0)) for key in kinds)) for label, n in status.by_setup.items())]))
    for run in status.lines:
        lines.append(f"{run.status}: {run.name}  attempt {run.attempt}, step {run.step}/{run.steps}, {run.host} job {run.job}")
        lines += [f"  {run.reason}"] if run.reason else []
        lines.append(f"  log {run.log}")
        lines += [f"  log of its job {run.job_log}"] if run.status == "lost" and run.job_log else []
    return "\n".join(lines)
