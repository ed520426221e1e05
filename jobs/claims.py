"""Claims: which worker runs what. Exclusive files with a heartbeat, safe against crashes and shared file systems.

A run's attempt n+1 belongs to the one worker that created ``claim.<n+1>``, and that may be created once attempt n is over or
its owner is known or believed dead (record.state says so). Attempts write into files of their own, so an owner that was only
asleep can do no harm when it wakes; its heartbeat then finds the newer claim, and it stops.
"""

import json
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accum_sweeps.record.files import create_exclusive
from accum_sweeps.record.state import boot_id, newest_claim, process_start
from accum_sweeps.record.store import RootDir


@dataclass(frozen=True)
class Claim:
    """One attempt of one run, held by this process."""

    folder: Path
    run_id: str
    attempt: int

    @property
    def path(self) -> Path:
        """The claim's file; its modification time is the heartbeat."""
        return self.folder / f"claim.{self.attempt}"

    def beat(self) -> str:
        """Give a sign of life. Returns why the claim is lost, or an empty text while it is held."""
        try:
            os.utime(self.path)  # without times: a file server stamps its own clock
        except FileNotFoundError:
            return "its claim was removed"
        if (self.folder / f"claim.{self.attempt + 1}").exists():
            return f"attempt {self.attempt + 1} has taken the run over"
        return "it was given up as lost" if (self.folder / f"lost.{self.attempt}").exists() else ""

    def withdraw(self) -> None:
        """Undo a claim under which nothing was written."""
        self.path.unlink(missing_ok=True)


def take(root: RootDir, run_id: str, after: int, content: dict[str, Any]) -> Claim | None:
    """Claim the attempt that follows attempt ``after``, found over; None if another worker was first.

    ``content`` goes into the claim's file beside attempt, host and process; its ``env_id`` names the environment.
    """
    folder = root.run_folder(run_id)
    folder.mkdir(parents=True, exist_ok=True)
    written = max(root.run_dir(run_id, content["env_id"]).attempts(), default=0)
    if written > after and newest_claim(folder) > after:
        return None
    # Event files without a claim: somebody deleted claims. Their numbers are used up all the same.
    claim = Claim(folder, run_id, max(after, written) + 1)
    text = json.dumps({**content, **process_facts(os.getpid()), "attempt": claim.attempt})
    # Not synced: a power cut ends the owner as well, and an empty claim is as good as a dead owner's.
    return claim if create_exclusive(claim.path, text + "\n", sync=False) else None


def process_facts(pid: int) -> dict[str, Any]:
    """What tells a process from every other, as claims and journals keep it."""
    return {"host": socket.gethostname(), "pid": pid, "pid_start": process_start(pid), "boot_id": boot_id()}


def mark_lost(root: RootDir, run_id: str, attempt: int, reason: str) -> bool:
    """Say that the attempt's owner is dead, so that nobody waits for its claim to expire. False if it was said before."""
    return create_exclusive(root.run_folder(run_id) / f"lost.{attempt}", reason)
