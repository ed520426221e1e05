"""The journal of a replay, and its lock."""

import os
import signal
import time
from pathlib import Path

from accum_sweeps.record.mlflow_cursor import Cursor, exclusive
from tests.record.replays import forked


def test_facts_are_merged_forgotten_and_survive(tmp_path: Path) -> None:
    cursor = Cursor(tmp_path)
    with cursor.writing():
        cursor.update("a", id="1", sent=5)
        cursor.update("a", sent=9)
        cursor.update("b", id="2")
        cursor.forget("b")
    assert cursor.entries == Cursor(tmp_path).entries == {"a": {"id": "1", "sent": 9}}


def test_half_a_line_and_rubbish_are_no_facts_and_harm_no_later_line(tmp_path: Path) -> None:
    (tmp_path / "cursor.jsonl").write_text('{"of":"a","sent":1}\nrubbish\n[1]\n{"of":"a","sent":')
    cursor = Cursor(tmp_path)
    assert cursor.entries == {"a": {"sent": 1}}
    with cursor.writing():
        cursor.update("a", sent=2)
    assert Cursor(tmp_path).entries == {"a": {"sent": 2}}


def test_an_unchanged_fact_is_not_written_again(tmp_path: Path) -> None:
    cursor = Cursor(tmp_path)
    with cursor.writing():
        cursor.update("a", told=["RUNNING", None])
        size = cursor.path.stat().st_size
        cursor.update("a", told=["RUNNING", None])
    assert cursor.path.stat().st_size == size


def test_what_another_process_wrote_is_read_before_the_next_pass(tmp_path: Path) -> None:
    one, other = Cursor(tmp_path), Cursor(tmp_path)
    with other.writing():
        other.update("a", sent=3)
    with one.writing():
        assert one.entries == {"a": {"sent": 3}}


def test_the_lock_excludes_and_ends_with_its_process(tmp_path: Path) -> None:
    lock = tmp_path / "lock"

    def hold() -> None:
        with exclusive(lock, lambda: False):
            (tmp_path / "held").touch()
            time.sleep(60)

    pid = forked(hold)
    while not (tmp_path / "held").exists():
        time.sleep(0.01)
    with exclusive(lock, lambda: True) as is_held:
        assert not is_held
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    with exclusive(lock, lambda: True) as is_held:
        assert is_held
