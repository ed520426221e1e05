"""Which run is to be done next, by whom, and whether it may be tried again."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from accum_sweeps.record.events import DONE, read_tail
from accum_sweeps.record.state import INTERRUPTED, RunState, file_system_now, read_claim, run_state
from accum_sweeps.record.store import RootDir
from accum_sweeps.record.sweep import PlannedRun


def finished_in(root: RootDir, state: RunState) -> list[str]:
    """The environments in which the run was finished (or diverged), as far as the newest attempt in each tells."""
    return [env_id for env_id in root.environments(state.run_id) if _newest_outcome(root, state.run_id, env_id) in DONE]


def _newest_outcome(root: RootDir, run_id: str, env_id: str) -> str | None:
    run_dir = root.run_dir(run_id, env_id)
    attempts = run_dir.attempts()
    return read_tail(run_dir.events_path(attempts[-1]), attempts[-1]).outcome if attempts else None


def spent_attempts(root: RootDir, state: RunState, dispatch: str) -> int:
    """Attempts of one command that ended failed or lost; attempts that were stopped on request or interrupted do not count."""
    folder = root.run_folder(state.run_id)
    spent = 0
    for number in range(1, state.attempt + 1):
        claim = read_claim(folder, number)
        if claim.get("dispatch") == dispatch:
            is_newest = number == state.attempt
            if state.status in ("failed", "lost") if is_newest else _is_spent(root, state.run_id, claim, number):
                spent += not _is_interrupted(folder, number)
    return spent


def _is_interrupted(folder: Path, number: int) -> bool:
    """Whether somebody said that the attempt's owner lost its machine."""
    try:
        return (folder / f"lost.{number}").read_text().startswith(INTERRUPTED)
    except OSError:
        return False


def _is_spent(root: RootDir, run_id: str, claim: dict[str, Any], number: int) -> bool:
    try:
        outcome = read_tail(root.run_dir(run_id, str(claim.get("env_id"))).events_path(number), number).outcome
    except OSError:
        outcome = None  # never started: its worker died before it wrote a line
    return outcome in (None, "failed")


@dataclass(frozen=True)
class Judgement:
    """What a worker makes of a run: ``done``, ``reused`` (done in another environment), ``busy``, ``exhausted`` or ``open``."""

    verdict: str
    state: RunState
    env_id: str = ""


def judge(root: RootDir, run_id: str, *, env_id: str, reuse: str, dispatch: str, max_attempts: int, now: float) -> Judgement:
    """Whether the run is to be started by a worker of ``dispatch`` in the environment ``env_id``; ``now``: file system's clock."""
    state = run_state(root, run_id, now=now)
    if state.attempt == 0:
        return Judgement("open", state)
    if state.is_done and state.env_id == env_id:  # the common case, without a look at other environments
        return Judgement("done", state, env_id)
    done = finished_in(root, state)
    if env_id in done:
        return Judgement("done", state, env_id)
    if done and reuse != "strict":
        return Judgement("reused", state, done[-1])
    if state.status == "running":
        return Judgement("busy", state)
    if state.status in ("failed", "lost") and spent_attempts(root, state, dispatch) >= max_attempts:
        return Judgement("exhausted", state)
    return Judgement("open", state)


@dataclass
class Queue:
    """The runs that a worker still has to look at: ``todo`` in this pass, ``later`` in the next one.

    Runs that others have, and runs to be tried again, wait until everything else was looked at.
    """

    todo: list[PlannedRun]
    later: list[PlannedRun] = field(default_factory=list)
    is_first_pass: bool = False

    @classmethod
    def of(cls, runs: Sequence[PlannedRun]) -> "Queue":
        """All of ``runs``, to be taken in their order."""
        return cls(list(reversed(runs)), is_first_pass=True)

    def pop(self) -> PlannedRun | None:
        """The next run of this pass, None at its end."""
        return self.todo.pop() if self.todo else None

    def next_pass(self) -> bool:
        """Begin again with what was put off; False if that is nothing."""
        self.todo, self.later, self.is_first_pass = self.later[::-1], [], False
        return bool(self.todo)


@dataclass
class Clock:
    """The file system's time, asked for at the beginning of a pass. An older time only makes claims look fresher."""

    root: RootDir
    now: float = 0.0

    def ask(self) -> float:
        """Ask again."""
        self.now = file_system_now(self.root.path)
        return self.now
