"""Claims: one owner at a time, whoever races, sleeps or dies."""

import json
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from accum_sweeps.jobs.claims import Claim, mark_lost, take
from accum_sweeps.record.state import file_system_now, run_state
from accum_sweeps.record.store import RootDir, open_root

CONTENT: dict[str, Any] = {"owner": "w", "env_id": "e" * 12, "dispatch": "d", "expiry_s": 30.0}
RUN = "ab" + "0" * 18


@pytest.fixture
def root(tmp_path: Path) -> RootDir:
    return open_root(tmp_path / "root", create=True)


def run_ids(count: int) -> list[str]:
    return [f"{number:020x}" for number in range(count)]


def _race(path: Path, runs: list[str], after: int, start: float, result: "multiprocessing.Queue[list[str]]") -> None:
    root = open_root(path)
    time.sleep(max(0.0, start - time.monotonic()))
    result.put([run for run in runs if take(root, run, after, CONTENT)])


def race(root: RootDir, runs: list[str], after: int) -> list[str]:
    """Eight processes take all they can get; returns all claims, doubled ones twice."""
    context = multiprocessing.get_context("fork")
    result: multiprocessing.Queue[list[str]] = context.Queue()
    start = time.monotonic() + 0.2
    racers = [context.Process(target=_race, args=(root.path, runs, after, start, result)) for _ in range(8)]
    for racer in racers:
        racer.start()
    won = [result.get(timeout=60) for _ in racers]
    for racer in racers:
        racer.join()
    assert sum(bool(w) for w in won) > 1, "one process took everything: this was no race"
    return [run for w in won for run in w]


def test_eight_racing_processes_never_take_a_run_twice(root: RootDir) -> None:
    assert sorted(race(root, run_ids(100), after=0)) == run_ids(100)


def test_a_stale_claim_is_taken_over_exactly_once(root: RootDir) -> None:
    for run in run_ids(60):
        claim = take(root, run, 0, {**CONTENT, "expiry_s": 1.0})
        assert claim is not None
        claim.path.write_text(json.dumps({**json.loads(claim.path.read_text()), "boot_id": "another machine"}))
        old = file_system_now(root.path) - 2
        os.utime(claim.path, (old, old))
        assert run_state(root, run).status == "lost"
    assert sorted(race(root, run_ids(60), after=1)) == run_ids(60)


@pytest.mark.parametrize("meanwhile", [1, 2, 3])
def test_who_looked_before_others_went_on_takes_nothing(root: RootDir, meanwhile: int) -> None:
    """Others took and wrote further attempts between this worker's look at the run and its claim."""
    for number in range(1 + meanwhile):
        claim = take(root, RUN, number, CONTENT)
        assert claim is not None
        path = root.run_dir(RUN, CONTENT["env_id"]).events_path(claim.attempt)
        path.parent.mkdir(exist_ok=True)
        path.write_text("{}\n")
    assert take(root, RUN, 1, CONTENT) is None
    assert {path.name for path in root.run_folder(RUN).glob("claim.*")} == {f"claim.{n}" for n in range(1, 2 + meanwhile)}


def test_a_claim_says_who_has_it_and_nothing_else_is_left(root: RootDir) -> None:
    claim = take(root, RUN, 0, CONTENT)
    assert claim == Claim(root.run_folder(RUN), RUN, 1)
    content = json.loads(claim.path.read_text())
    assert content.items() >= {**CONTENT, "attempt": 1, "pid": os.getpid()}.items()
    assert content["host"] and content["pid_start"] > 0 and content["boot_id"]
    assert [path.name for path in claim.folder.iterdir()] == ["claim.1"]
    assert run_state(root, RUN).status == "running"
    assert take(root, RUN, 0, CONTENT) is None


def test_the_heartbeat_is_the_file_systems_time_not_ours(root: RootDir, monkeypatch: pytest.MonkeyPatch) -> None:
    claim = take(root, RUN, 0, CONTENT)
    assert claim is not None
    os.utime(claim.path, (0, 0))
    monkeypatch.setattr(time, "time", lambda: 86400.0)
    monkeypatch.setattr(time, "time_ns", lambda: 86400 * 10**9)
    assert claim.beat() == ""
    assert abs(claim.path.stat().st_mtime - file_system_now(root.path)) < 5
    assert run_state(root, RUN).status == "running"


def test_the_owner_learns_that_it_lost_its_claim(root: RootDir) -> None:
    claim = take(root, RUN, 0, CONTENT)
    assert claim is not None and claim.beat() == ""
    assert mark_lost(root, RUN, 1, "seen dead") and not mark_lost(root, RUN, 1, "seen again")
    assert claim.beat() == "it was given up as lost"
    assert run_state(root, RUN).reason == "seen dead"
    assert take(root, RUN, 1, CONTENT) is not None
    assert claim.beat() == "attempt 2 has taken the run over"
    claim.withdraw()
    assert claim.beat() == "its claim was removed"


def test_the_claim_of_a_dead_process_of_this_machine_is_lost_at_once(root: RootDir) -> None:
    code = (
        "import sys; from pathlib import Path; from accum_sweeps.jobs.claims import take; from accum_sweeps.record.store import open_root\n"
        f"take(open_root(Path(sys.argv[1])), {RUN!r}, 0, {CONTENT!r})"
    )
    subprocess.run([sys.executable, "-c", code, str(root.path)], cwd=Path(__file__).parents[2], check=True)
    state = run_state(root, RUN)
    assert state.status == "lost" and "is gone" in state.reason
