"""What state a run is in, derived from its claims and event files; stored nowhere else.

A claim is the file ``claim.<attempt>`` in the run's folder. Its modification time is its owner's heartbeat, judged by the
file system's own clock, so that clocks of different machines do not matter. ``lost.<attempt>`` says that somebody saw the
owner die.
"""

import contextlib
import functools
import json
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from accum_sweeps.record.events import DONE, Attempt, read_tail
from accum_sweeps.record.store import RootDir

INTERRUPTED = "interrupted"  # begins the reason of an attempt that ended through no fault of the run: preemption, a lost node
STATUSES = ("planned", "running", *DONE, "failed", "lost", "cancelled")


@dataclass(frozen=True, kw_only=True)
class RunState:
    """The state of a run as of its newest attempt. ``reason`` says why it failed, was released or was lost."""

    run_id: str
    status: str = "planned"
    attempt: int = 0
    env_id: str = ""
    step: int = 0
    reason: str = ""
    claim: dict[str, Any] = field(default_factory=dict)
    final: dict[str, float] = field(default_factory=dict)
    outcome: str | None = None

    @property
    def is_done(self) -> bool:
        """Whether nothing more is to be run."""
        return self.status in DONE


def run_state(root: RootDir, run_id: str, *, now: float | None = None) -> RunState:
    """The state of a run; ``now`` is the file system's time (seconds), asked for if needed and not given."""
    folder = root.run_folder(run_id)
    number = newest_claim(folder)
    if number == 0:
        return RunState(run_id=run_id)
    claim = read_claim(folder, number)
    env_id = str(claim.get("env_id", ""))
    attempt = _read(root, run_id, env_id, number)
    known: dict[str, Any] = {
        "run_id": run_id,
        "attempt": number,
        "env_id": env_id,
        "claim": claim,
        "step": attempt.step,
        "outcome": attempt.outcome,
    }
    if attempt.outcome in DONE:
        return RunState(**known, status=attempt.outcome, final=attempt.final)
    if attempt.outcome == "failed":
        return RunState(**known, status="failed", reason=attempt.message)
    if attempt.outcome == "released":
        return RunState(**known, status="planned", reason=attempt.message)
    reason = why_lost(folder, number, claim, now)
    return RunState(**known, status="lost" if reason else "running", reason=reason)


def shown_status(status: str, *, is_cancelled: bool) -> str:
    """What a sweep's table, status and MLflow say of a run with this status: cancelled where the sweep is and nobody goes on with it."""
    return "cancelled" if is_cancelled and status in ("planned", "lost") else status


def outcomes(root: RootDir, run_id: str) -> dict[str, str | None]:
    """The outcome of the newest attempt in each environment in which the run was ever started."""
    return {env_id: root.run_dir(run_id, env_id).history().outcome for env_id in root.environments(run_id)}


def newest_claim(folder: Path) -> int:
    """Number of the newest attempt claimed in a run's folder; 0 if there is none."""
    try:
        names = os.listdir(folder)  # noqa: PTH208 (half the cost of iterdir, and status asks for every run)
    except FileNotFoundError:
        return 0
    return max((int(name[6:]) for name in names if name.startswith("claim.") and name[6:].isdigit()), default=0)


def read_claim(folder: Path, number: int) -> dict[str, Any]:
    """The claim's content; empty if it is unreadable (then nobody can be its living owner)."""
    try:
        return dict(json.loads((folder / f"claim.{number}").read_text()))
    except (OSError, ValueError, TypeError):
        return {}


def why_lost(folder: Path, number: int, claim: dict[str, Any], now: float | None = None) -> str:
    """Why the attempt's owner is taken for dead; empty while it is alive as far as anybody can tell."""
    with contextlib.suppress(OSError):
        return (folder / f"lost.{number}").read_text() or "its worker died"
    if not claim:
        return "its claim is unreadable"
    if boot_id() and claim.get("boot_id") == boot_id() and not is_alive(int(claim.get("pid", 0)), int(claim.get("pid_start", 0))):
        return f"its worker (process {claim.get('pid')}) is gone"
    try:
        age = (file_system_now(folder) if now is None else now) - (folder / f"claim.{number}").stat().st_mtime
    except OSError:
        return "its claim is unreadable"
    return f"no sign of life for {age:.0f} s" if age > float(claim.get("expiry_s", 0)) else ""


def file_system_now(folder: Path) -> float:
    """Seconds since the epoch by the clock of the file system that holds ``folder``."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".clock.") as file:
        return os.fstat(file.fileno()).st_mtime


@functools.cache
def boot_id() -> str:
    """Names this machine since its last start; processes can only be judged on their own machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip() + _namespace()
    except OSError:
        return ""


def _namespace() -> str:
    # In a container process ids mean something else than outside it.
    try:
        return str(os.stat("/proc/self/ns/pid").st_ino)  # noqa: PTH116
    except OSError:
        return ""


def process_start(pid: int) -> int:
    """Start time of a process in clock ticks since boot (tells a process from a later one of the same id); 0 if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in ("Z", "X") else int(fields[19])


def is_alive(pid: int, start: int) -> bool:
    """Whether the very process with this id and start time still runs on this machine."""
    return process_start(pid) == start != 0


def _read(root: RootDir, run_id: str, env_id: str, number: int) -> Attempt:
    try:
        return read_tail(root.run_dir(run_id, env_id).events_path(number), number)
    except OSError:
        return Attempt(number)
