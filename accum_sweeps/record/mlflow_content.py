"""What a person sees of a sweep in MLflow: names, tags, parameters, states and the note on the sweep's page."""

import contextlib
import functools
import getpass
import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from accum_sweeps.plan.errors import UserError
from accum_sweeps.plan.flat import flatten
from accum_sweeps.plan.words import counted
from accum_sweeps.record.files import whole_lines
from accum_sweeps.record.mlflow_points import clean_params, clean_text
from accum_sweeps.record.mlflow_tracker import PARAM_LENGTH, TAG_LENGTH
from accum_sweeps.record.state import STATUSES, RunState
from accum_sweeps.record.store import History
from accum_sweeps.record.sweep import Plan, PlannedRun, SweepDir

NAME_LIMIT = 250
NOTE = "mlflow.note.content"
RUNNING, FINISHED, FAILED, KILLED = "RUNNING", "FINISHED", "FAILED", "KILLED"


@dataclass(frozen=True, kw_only=True)
class SweepRun:
    """A run of a sweep with the newest revision of the plan that holds it."""

    plan: Plan
    planned: PlannedRun

    @property
    def steps(self) -> int:
        """Planned length in optimizer steps."""
        return self.plan.setups[self.planned.setup].steps

    def name(self, other_env: str = "") -> str:
        """The run in words; ``other_env`` is its environment where it is also shown in one that is older."""
        ending = f" env={other_env[:6]}" if other_env else ""
        return clean_text(self.plan.run_name(self.planned), NAME_LIMIT - len(ending), "the run's name", {}) + ending

    def params(self, altered: dict[str, None]) -> dict[str, str]:
        """All configuration keys under their dotted names, and the micro-batch that follows from them."""
        spec = self.plan.spec(self.planned)
        return clean_params({**flatten(spec.to_dict()), "micro_batch": spec.micro_batch}, PARAM_LENGTH, altered)

    def tags(self, sweep: SweepDir, parent: str, env_id: str) -> dict[str, str]:
        """What identifies the run and groups it; ``group`` is shared by the runs of all seeds (and environments)."""
        setup, control = self.plan.setups[self.planned.setup], self.planned.control
        cell = self.plan.cell_label(self.planned)
        values = {
            **identity(sweep, self.planned.run_id, env_id),
            "mlflow.parentRunId": parent,
            "mlflow.user": user(),
            "setup": self.plan.labels[self.planned.setup],
            "setup_id": setup.setup_id,
            "cell": cell,
            "group": cell if control == "none" else f"{cell} ctl={control}",
        }
        return {key: clean_text(value, TAG_LENGTH, key, {}) for key, value in values.items()}


def sweep_runs(sweep: SweepDir) -> dict[str, SweepRun]:
    """The runs of all revisions of the plan, by run_id, in the order of the newest; UserError if there is none."""
    found: dict[str, SweepRun] = {}
    for place, revision in enumerate(reversed(sweep.revisions() or [0])):
        try:
            plan = sweep.read_plan(revision)
        except UserError:
            if place == 0:
                raise
            continue  # an older revision damaged by hand must not keep the newest from MLflow
        for planned in plan.runs:
            if planned.run_id not in found:
                found[planned.run_id] = SweepRun(plan=plan, planned=planned)
    return found


def identity(sweep: SweepDir, run_id: str, env_id: str) -> dict[str, str]:
    """The tags that tell one run of one sweep from all others, also from those of another root with a sweep of that name."""
    return {"sweep": sweep.name, "sweep_id": sweep_id(sweep), "run_id": run_id, "env_id": env_id}


@functools.cache
def sweep_id(sweep: SweepDir) -> str:
    """Sixteen hex digits that follow from the sweep's first plan, its time of creation included."""
    first = next(iter(whole_lines(sweep.path / f"plan.{sweep.revisions()[0]}.jsonl")), b"")
    return hashlib.sha256(first).hexdigest()[:16]


@functools.cache
def user() -> str:
    """Who is logged in, as far as the system knows."""
    with contextlib.suppress(OSError, KeyError, ImportError):
        return getpass.getuser()
    return "unknown"


def mlflow_status(state: RunState) -> str:
    """MLflow's word for a run's state: diverged is an outcome, and what stopped on request or died can go on later."""
    return {"running": RUNNING, "finished": FINISHED, "diverged": FINISHED, "failed": FAILED}.get(state.status, KILLED)


def sweep_status(counts: Mapping[str, int], *, is_over: bool) -> str:
    """MLflow's word for a whole sweep; ``is_over``: nobody is at work on it any more."""
    if counts.get("running") or not is_over:
        return RUNNING
    if counts.get("failed"):
        return FAILED
    return KILLED if any(counts.get(status) for status in ("planned", "lost", "cancelled")) else FINISHED


def facts_tags(history: History, state: RunState, altered: Mapping[str, None]) -> dict[str, str]:
    """Tags that follow from what came of the run."""
    facts = history.newest.facts if history.newest else {}
    values: dict[str, Any] = {"status": state.status, "attempt": state.attempt}
    if state.reason:
        values["reason"] = state.reason
    if history.newest and history.is_finished:
        values |= history.newest.texts
    if altered:
        values["altered"] = "; ".join(altered)
    if facts.get("git_commit"):
        values["mlflow.source.git.commit"] = facts["git_commit"]
    if facts.get("host"):
        values["host"] = facts["host"]
    return {key: clean_text(value, TAG_LENGTH, key, {}) for key, value in values.items()}


def times(history: History, state: RunState, claimed_ms: int) -> tuple[int, int | None]:
    """Start and end of a run in milliseconds, as its events tell them; no end while it runs."""
    newest = history.newest or max(history.attempts.values(), key=lambda attempt: attempt.number, default=None)
    chain = [attempt for attempt, _ in history.chain(newest.number)] if newest else []
    starts = [attempt.started_ms for attempt in chain if attempt.started_ms is not None]
    measured = [attempt.points[-1].time_ms for attempt in chain[-1:] if attempt.points]
    ended = newest.ended_ms if newest else None
    start = starts[0] if starts else ended or claimed_ms
    if state.status == "running":
        return start, None
    return start, max(start, ended if ended is not None else measured[-1] if measured else claimed_ms)


def counts_in_words(counts: Counter[str]) -> str:
    """As in ``24 runs: 20 finished, 3 planned, 1 failed``."""
    order = ["finished", *(status for status in STATUSES if status != "finished")]
    words = [f"{counts[status]} {status}" for status in order if counts[status]]
    return f"{counted(counts.total(), 'run')}: {', '.join(words)}"


def note(plan: Plan, counts: Counter[str], verdict: str) -> str:
    """The sweep's page in Markdown: command, grid, counts and, where there is one, the answer."""
    header = plan.header
    lines = [f"**{counts_in_words(counts)}**", ""]
    if verdict:
        lines += [verdict, ""]
    if header.get("command"):
        lines += ["```", _in_words(header["command"]), "```", ""]
    lines += [f"- {key}: {value}" for key, value in _grid_lines(header)]
    lines += [f"- setups: {len(plan.labels)}", "", "Runs are grouped by the tags `setup`, `cell` and `group`; sort by a `final/` metric."]
    return clean_text("\n".join(lines), TAG_LENGTH, "the note", {})


def _grid_lines(header: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key in ("grid", "design", "judging", "cwd"):
        if header.get(key):
            yield key, f"`{_in_words(header[key])}`"
    axes = header.get("axes")
    for name, values in axes.items() if isinstance(axes, Mapping) else ():
        yield f"`{name}`", _in_words(values)


def _in_words(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, (list, tuple)):
        return ", ".join(_in_words(item) for item in value)
    return json.dumps(value)
