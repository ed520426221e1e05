"""What came of a run, read from its run directories."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from accum_sweeps.record.events import DONE, Point
from accum_sweeps.record.state import RunState, run_state
from accum_sweeps.record.store import DamagedRunError, History, RootDir, RunDir


@dataclass(kw_only=True, eq=False)
class Outcome:
    """One run in one environment: ``values`` by outcome column of the table, the curve as far as it counts, and what is damaged."""

    values: dict[str, Any]
    points: list[Point] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def is_done(self) -> bool:
        """Whether it will never change."""
        return self.values["status"] in DONE


def read_outcomes(root: RootDir, run_id: str, now: float | None = None) -> Iterator[Outcome]:
    """The run's outcome in each environment where it is done; if it is done nowhere, that of its newest claim.

    A directory that cannot be read, or whose spec.json is not this run's, is set aside: status failed, its values left out,
    what is wrong with it in ``problems``. ``now`` is the file system's time in seconds, asked for if needed and not given.
    """
    found = [_read(root.run_dir(run_id, env_id), env_id) for env_id in root.environments(run_id)]
    done = [outcome for outcome in found if outcome.is_done]
    if not done:
        state = run_state(root, run_id, now=now)
        newest = next((outcome for outcome in found if outcome.values["env_id"] == state.env_id), None)
        done = [_unfinished(newest or Outcome(values={"env_id": state.env_id or None}), state)]
    # What is damaged is told even of an environment that gives no row.
    done[0].problems += [problem for outcome in found if outcome not in done for problem in outcome.problems]
    yield from done


def _read(run_dir: RunDir, env_id: str) -> Outcome:
    try:
        run_dir.read_spec()
        history, environment = run_dir.history(), run_dir.read_environment()
    except (DamagedRunError, OSError) as error:
        reason = str(error)
        return Outcome(values={"env_id": env_id, "status": "failed", "error": f"damaged: {reason}"}, problems=[reason])
    damaged = {run_dir.events_path(number): attempt.damaged_lines for number, attempt in history.attempts.items()}
    problems = [f"{path}: {lines} damaged lines, left out" for path, lines in damaged.items() if lines]
    return Outcome(values=_values(env_id, history, environment), points=history.points(), problems=problems)


def _values(env_id: str, history: History, environment: dict[str, Any]) -> dict[str, Any]:
    newest = history.newest
    facts = newest.facts if newest else {}
    values = {
        "env_id": env_id,
        "status": history.outcome,
        "attempt": newest.number if newest else None,
        "steps_done": newest.step if newest else None,
        "git_commit": facts.get("git_commit") or environment.get("git_commit"),
    }
    if newest is not None and history.is_finished:
        values |= {name: value for name, value in newest.final.items() if name != "steps"}
        values |= newest.texts
    return values


def _unfinished(outcome: Outcome, state: RunState) -> Outcome:
    """``outcome`` under the status that its claim gives it; a damaged directory stays failed."""
    if not outcome.problems or outcome.values.get("status") != "failed":
        outcome.values |= {"status": state.status, "attempt": state.attempt or None, "error": state.reason or None}
    return outcome
