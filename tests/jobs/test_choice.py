"""Which runs are to be done: what is done, where, and how often it was tried."""

from typing import Any

import pytest

from accum_sweeps.jobs.choice import Queue, judge
from accum_sweeps.jobs.claims import mark_lost, take
from accum_sweeps.record.state import file_system_now
from accum_sweeps.record.store import RootDir, open_root
from accum_sweeps.record.sweep import PlannedRun

HERE, ELSEWHERE = "a" * 12, "b" * 12
RUN = "ab" + "0" * 18


@pytest.fixture
def root(tmp_path: Any) -> RootDir:
    return open_root(tmp_path / "root", create=True)


def attempt(root: RootDir, number: int, outcome: str | None, env_id: str = HERE, dispatch: str = "d") -> None:
    """One attempt that ended in ``outcome``; None: its worker died before it wrote a line."""
    claim = take(root, RUN, number - 1, {"env_id": env_id, "dispatch": dispatch, "expiry_s": 60.0})
    assert claim is not None
    if outcome is None:
        mark_lost(root, RUN, number, "died")
        return
    run_dir = root.run_dir(RUN, env_id)
    run_dir.path.mkdir(exist_ok=True)
    with run_dir.writer(number) as writer:
        writer.start(None, 0)
        if outcome in ("finished", "diverged"):
            writer.end(outcome, 3, {})
        elif outcome == "failed":
            writer.failed(3, "ValueError: x")
        elif outcome == "released":
            writer.released(3, "asked")


def verdict(root: RootDir, reuse: str = "strict", dispatch: str = "d", max_attempts: int = 2) -> str:
    now = file_system_now(root.path)
    return judge(root, RUN, env_id=HERE, reuse=reuse, dispatch=dispatch, max_attempts=max_attempts, now=now).verdict


@pytest.mark.parametrize("outcome", ["finished", "diverged"])
def test_what_is_done_here_is_done(root: RootDir, outcome: str) -> None:
    assert verdict(root) == "open"
    attempt(root, 1, outcome)
    assert verdict(root) == "done"


def test_what_is_done_elsewhere_depends_on_reuse(root: RootDir) -> None:
    attempt(root, 1, "finished", ELSEWHERE)
    assert [verdict(root, reuse) for reuse in ("strict", "warn", "any")] == ["open", "reused", "reused"]


@pytest.mark.parametrize("later", ["failed", "released", None])
def test_what_was_done_here_stays_done_whatever_happened_elsewhere_since(root: RootDir, later: str | None) -> None:
    attempt(root, 1, "finished", HERE)
    attempt(root, 2, later, ELSEWHERE)
    assert verdict(root) == "done"


def test_a_run_of_a_living_worker_is_busy(root: RootDir) -> None:
    attempt(root, 1, "running")
    assert verdict(root) == "busy"


@pytest.mark.parametrize("outcomes", [["failed", "failed"], [None, "failed"], ["failed", None], [None, None]])
def test_failed_and_lost_attempts_use_up_the_commands_attempts(root: RootDir, outcomes: list[str | None]) -> None:
    attempt(root, 1, outcomes[0])
    assert verdict(root) == "open"
    attempt(root, 2, outcomes[1])
    assert verdict(root) == "exhausted"
    assert verdict(root, max_attempts=3) == "open"
    assert verdict(root, dispatch="the command typed again") == "open"


def test_attempts_stopped_on_request_and_those_of_other_commands_do_not_count(root: RootDir) -> None:
    attempt(root, 1, "failed", dispatch="earlier")
    attempt(root, 2, "released")
    attempt(root, 3, "released")
    attempt(root, 4, "failed")
    assert verdict(root) == "open"
    attempt(root, 5, "failed")
    assert verdict(root) == "exhausted"


def test_a_queue_keeps_order_and_takes_what_was_put_off_last() -> None:
    runs = [PlannedRun(name, 0, 1, 0, 0, 0, 0, "none", 0) for name in "abc"]
    queue = Queue.of(runs)
    first = queue.pop()
    assert first == runs[0]
    queue.later.append(first)
    assert [queue.pop(), queue.pop(), queue.pop()] == [runs[1], runs[2], None]
    assert queue.next_pass() and queue.pop() == runs[0]
    assert not queue.next_pass()
