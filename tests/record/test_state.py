"""The state of a run follows from its claims and events alone."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from accum_sweeps.record.state import STATUSES, boot_id, file_system_now, is_alive, process_start, run_state, shown_status
from accum_sweeps.record.store import RootDir, open_root
from tests.specs import make_spec

ENV = "0123456789ab"
RUN = make_spec().run_id


@pytest.fixture
def root(tmp_path: Path) -> RootDir:
    root = open_root(tmp_path / "root", create=True)
    root.run_dir(RUN, ENV).create(make_spec(), {})
    return root


def claim(root: RootDir, number: int = 1, **changes: Any) -> Path:
    facts = {"pid": os.getpid(), "pid_start": process_start(os.getpid()), "boot_id": boot_id(), "env_id": ENV, "expiry_s": 30, **changes}
    path = root.run_folder(RUN) / f"claim.{number}"
    path.write_text(json.dumps(facts))
    return path


def test_without_a_claim_a_run_is_planned(root: RootDir) -> None:
    assert run_state(root, RUN).status == "planned"
    assert run_state(root, "f" * 20).status == "planned"


def test_a_claim_of_a_living_owner_is_running(root: RootDir) -> None:
    claim(root)
    assert run_state(root, RUN).status == "running"
    with root.run_dir(RUN, ENV).writer(1) as writer:
        writer.start(None, 0)
        writer.metrics(7, {"a": 1.0})
    assert (run_state(root, RUN).status, run_state(root, RUN).step) == ("running", 7)


@pytest.mark.parametrize("outcome", ["finished", "diverged", "failed", "released"])
def test_an_outcome_decides_whatever_the_owner_does(root: RootDir, outcome: str) -> None:
    claim(root)
    with root.run_dir(RUN, ENV).writer(1) as writer:
        if outcome == "failed":
            writer.failed(3, "ValueError: no")
        elif outcome == "released":
            writer.released(3, "interrupted")
        else:
            writer.end(outcome, 3, {"x": 2.0})
    state = run_state(root, RUN)
    assert state.status == {"released": "planned"}.get(outcome, outcome)
    assert state.reason == {"failed": "ValueError: no", "released": "interrupted"}.get(outcome, "")
    assert state.is_done == (outcome in ("finished", "diverged"))


def test_a_cancelled_sweep_shows_as_cancelled_what_nobody_works_on() -> None:
    shown = {status: shown_status(status, is_cancelled=True) for status in STATUSES}
    assert {status for status, word in shown.items() if word == "cancelled"} == {"planned", "lost", "cancelled"}
    assert {status: word for status, word in shown.items() if word != "cancelled"} == {
        status: status for status in ("running", "finished", "diverged", "failed")
    }
    assert [shown_status(status, is_cancelled=False) for status in STATUSES] == list(STATUSES)


def test_a_dead_process_on_this_machine_is_lost_at_once(root: RootDir) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    start = process_start(child.pid)
    child.wait()
    claim(root, pid=child.pid, pid_start=start)
    assert run_state(root, RUN).status == "lost"
    claim(root, pid_start=process_start(os.getpid()) + 1)  # the id was given to another process
    assert "is gone" in run_state(root, RUN).reason


def test_elsewhere_only_the_heartbeat_tells(root: RootDir) -> None:
    path = claim(root, boot_id="another machine", pid=1, pid_start=1)
    assert run_state(root, RUN).status == "running"
    old = time.time() - 31
    os.utime(path, (old, old))
    assert run_state(root, RUN).status == "lost"
    assert "no sign of life for 31 s" in run_state(root, RUN).reason


def test_the_file_systems_clock_decides_not_ours(root: RootDir, monkeypatch: pytest.MonkeyPatch) -> None:
    claim(root, boot_id="another machine", pid=1, pid_start=1)
    monkeypatch.setattr(time, "time", lambda: 4e9)
    assert run_state(root, RUN).status == "running"
    assert abs(file_system_now(root.path) - root.run_folder(RUN).stat().st_mtime) < 60
    assert run_state(root, RUN, now=4e9).status == "lost"


def test_a_witness_of_death_is_believed(root: RootDir) -> None:
    claim(root)
    (root.run_folder(RUN) / "lost.1").write_text("killed by signal 9")
    assert (run_state(root, RUN).status, run_state(root, RUN).reason) == ("lost", "killed by signal 9")


def test_the_newest_claim_counts_and_a_torn_one_has_no_owner(root: RootDir) -> None:
    claim(root)
    with root.run_dir(RUN, ENV).writer(1) as writer:
        writer.failed(1, "first")
    claim(root, 2)
    assert (run_state(root, RUN).status, run_state(root, RUN).attempt) == ("running", 2)
    (root.run_folder(RUN) / "claim.10").write_text("{")
    assert (run_state(root, RUN).status, run_state(root, RUN).attempt) == ("lost", 10)


def test_this_process_is_alive_and_a_zombie_is_not() -> None:
    assert is_alive(os.getpid(), process_start(os.getpid()))
    child = subprocess.Popen([sys.executable, "-c", ""])
    start = process_start(child.pid)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not is_alive(child.pid, start)
    child.wait()
