"""Progress: calm lines elsewhere, a table on a terminal, both true."""

import io
import os
import pty
from pathlib import Path

import pytest

from accum_sweeps.jobs.board import Board
from accum_sweeps.jobs.progress import FIRST_LINE_S, Lines, duration, running_lines, shown_progress, table
from tests.jobs.sweeps import make_sweep, seeds

ENV, NOW = "e" * 12, 1_000_000


@pytest.fixture
def board(tmp_path: Path) -> Board:
    """Two setups of four and two runs; one run is done, one runs, one failed."""
    root, _, plan = make_sweep(tmp_path / "root", [*seeds(4), *seeds(2, dtype="fp64")])
    board = Board(root, plan, status={run.run_id: "planned" for run in plan.runs})
    ids = [run.run_id for run in plan.runs]
    run_dir = root.run_dir(ids[1], ENV)
    run_dir.path.mkdir(parents=True)
    with run_dir.writer(1) as writer:
        writer.start(None, 0)
        for step in range(1, 6):
            writer.metrics(step, {"train_loss": 1 / step})
    for worker, run_id in (("w1", ids[0]), ("w2", ids[1])):
        board.apply(worker, {"event": "slot", "slot": f"core {worker[1]}", "time": 0})
        board.apply(worker, {"event": "claimed", "run": run_id, "attempt": 1, "env_id": ENV, "time": NOW * 1000})
    board.apply("w1", {"event": "ended", "run": ids[0], "attempt": 1, "status": "finished", "error": "", "time": (NOW + 20) * 1000})
    board.apply("w3", {"event": "claimed", "run": ids[4], "attempt": 1, "env_id": ENV, "time": NOW * 1000})
    board.apply(
        "w3", {"event": "ended", "run": ids[4], "attempt": 1, "status": "failed", "error": "ValueError: no", "time": (NOW + 2) * 1000}
    )
    board.refresh_running()
    return board


def test_counts_by_setup_and_running_runs(board: Board) -> None:
    assert board.counts_by_setup() == [{"finished": 1, "running": 1, "planned": 2}, {"failed": 1, "planned": 1}]
    assert running_lines(board) == ["core 2  fp32 k=1 s=1  step 5/10  loss 0.2"]
    board.apply("w1", {"event": "waiting", "reason": "no free core"})
    assert running_lines(board)[1:] == ["waiting: no free core"]


def test_a_line_says_what_is_waited_for_when_nothing_runs(board: Board) -> None:
    board.apply("w1", {"event": "waiting", "reason": "no free core"})
    stream = io.StringIO()
    Lines(stream)(board)
    assert "waiting" not in stream.getvalue(), "another worker is at work"
    board.apply(
        "w2",
        {"event": "ended", "run": board.plan.runs[1].run_id, "attempt": 1, "status": "finished", "error": "", "time": (NOW + 9) * 1000},
    )
    Lines(stream)(board)
    assert stream.getvalue().splitlines()[-1].endswith("; waiting: no free core")


def test_time_left_comes_from_the_runs_of_each_setup(board: Board) -> None:
    # fp32: a run took 20 s, half of another 10 s, so that 2.5 runs are left; fp64: one took 2 s, one is left. One worker is at work.
    assert board.remaining_s(now=NOW + 10) == pytest.approx(2.5 * 20 + 2, rel=1e-9)
    # A setup without a run so far is taken for as long as the others' runs on average.
    board.spent.pop(1)
    assert board.remaining_s(now=NOW + 10) == pytest.approx(3.5 * 20, rel=1e-9)


def test_a_node_whose_clock_is_ahead_gives_no_negative_time(tmp_path: Path) -> None:
    root, _, plan = make_sweep(tmp_path / "root", seeds(3))
    board = Board(root, plan, status={run.run_id: "planned" for run in plan.runs})
    board.apply("w1", {"event": "claimed", "run": plan.runs[0].run_id, "attempt": 1, "env_id": ENV, "time": 180_000})
    board.running["w1"].step = 5
    left = board.remaining_s(now=10)
    assert left is not None and left >= 0


def test_short_steps_of_one_setup_say_nothing_of_the_steps_of_another(tmp_path: Path) -> None:
    root, _, plan = make_sweep(tmp_path / "root", [*seeds(2, steps=1), *seeds(2, dtype="fp64", steps=1000)])
    board = Board(root, plan, status={run.run_id: "planned" for run in plan.runs})
    first = plan.runs[0].run_id
    board.apply("w1", {"event": "claimed", "run": first, "attempt": 1, "env_id": ENV, "time": 0})
    assert board.remaining_s(now=5) is None
    board.apply("w1", {"event": "ended", "run": first, "attempt": 1, "status": "finished", "error": "", "time": 10_000})
    assert board.remaining_s(now=10) == pytest.approx(3 * 10)


def test_a_failure_is_said_at_once_with_its_log_and_counts_at_growing_intervals(board: Board) -> None:
    stream, clock = io.StringIO(), [100.0]
    lines = Lines(stream, now=lambda: clock[0])
    lines(board)
    said = stream.getvalue().splitlines()
    assert said[0] == "fp64 k=1 s=0: failed: ValueError: no"
    assert said[1].endswith(f"{ENV}/log.1.txt") and said[2].startswith("1 of 6 runs done")
    for _ in range(100):
        lines(board)
    board.note("something happened")
    lines(board)
    assert stream.getvalue().splitlines()[3:] == ["something happened"]
    clock[0] += FIRST_LINE_S
    board.status = dict.fromkeys(board.status, "finished")
    lines(board)
    assert stream.getvalue().splitlines()[4:] == ["6 of 6 runs done"]


def test_a_run_of_another_revision_is_ignored(board: Board) -> None:
    before = dict(board.status)
    board.apply("w9", {"event": "claimed", "run": "unknown", "attempt": 1, "env_id": ENV, "time": 0})
    assert board.status == before and "w9" not in board.running


def test_the_table_has_a_row_a_setup_and_the_rest_in_one(board: Board) -> None:
    drawn = table(board)
    assert [column.header for column in drawn.columns] == ["setup", "planned", "running", "finished", "failed"]
    assert drawn.row_count == 2
    board.plan = type(board.plan)(1, {}, list(board.plan.setups) * 30, list(board.plan.labels) * 30, board.plan.runs)
    assert table(board).row_count == 21


def test_on_a_terminal_the_table_is_drawn_and_elsewhere_lines(board: Board) -> None:
    leader, follower = pty.openpty()
    with os.fdopen(follower, "w") as stream, shown_progress(stream) as show:
        show(board)
    shown = os.read(leader, 1 << 16).decode()
    os.close(leader)
    assert "fp64" in shown and "ValueError: no" in shown and "step 5/10" in shown
    text = io.StringIO()
    with shown_progress(text) as show:
        show(board)
    assert "\x1b" not in text.getvalue() and "1 of 6 runs done" in text.getvalue()


@pytest.mark.parametrize(("seconds", "words"), [(0.4, "0 s"), (89, "89 s"), (600, "10 min"), (5400, "1.5 h"), (200_000, "2.3 days")])
def test_durations_in_words(seconds: float, words: str) -> None:
    assert duration(seconds) == words
