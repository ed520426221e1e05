"""Event files: what is written is read back, and a torn or damaged line is never taken for data."""

import math
from pathlib import Path

import pytest

from accum_sweeps.record.events import EventWriter, read_attempt, read_tail


def write(path: Path, steps: int = 3) -> None:
    with EventWriter(path, 2) as writer:
        writer.start(1, 4, host="here")
        for step in range(5, 5 + steps):
            writer.metrics(step, {"train_loss": step / 3, "lr": 1e-3}, time_ms=1000 + step)


def test_values_come_back_bit_for_bit_with_their_frozen_times(tmp_path: Path) -> None:
    write(tmp_path / "e")
    attempt = read_attempt(tmp_path / "e", 2)
    assert [(p.step, p.time_ms, p.values["train_loss"]) for p in attempt.points] == [(5, 1005, 5 / 3), (6, 1006, 2.0), (7, 1007, 7 / 3)]
    assert (attempt.from_attempt, attempt.from_step, attempt.facts, attempt.outcome) == (1, 4, {"host": "here"}, None)


def test_non_finite_values_survive(tmp_path: Path) -> None:
    with EventWriter(tmp_path / "e", 1) as writer:
        writer.metrics(1, {"a": math.nan, "b": math.inf, "c": -math.inf})
        writer.end("diverged", 1, {"x": math.nan})
    attempt = read_attempt(tmp_path / "e", 1)
    values = attempt.points[0].values
    assert math.isnan(values["a"]) and values["b"] == math.inf and values["c"] == -math.inf
    assert attempt.outcome == "diverged" and math.isnan(attempt.final["x"])


@pytest.mark.parametrize("cut", [1, 10, 40])
def test_half_a_line_is_not_data(tmp_path: Path, cut: int) -> None:
    write(tmp_path / "e")
    content = (tmp_path / "e").read_bytes()
    (tmp_path / "e").write_bytes(content[:-cut])
    attempt = read_attempt(tmp_path / "e", 2)
    assert [p.step for p in attempt.points] == [5, 6]
    assert attempt.damaged_lines == 0


def test_a_line_damaged_by_hand_is_counted_and_left_out(tmp_path: Path) -> None:
    write(tmp_path / "e")
    lines = (tmp_path / "e").read_bytes().splitlines(keepends=True)
    lines[2] = b'{"event":"metrics","step":"x"}\n'
    (tmp_path / "e").write_bytes(b"".join([*lines, b"\x00\xff\n", b"[]\n", b'{"event":"new"}\n']))
    attempt = read_attempt(tmp_path / "e", 2)
    assert [p.step for p in attempt.points] == [5, 7]
    assert attempt.damaged_lines == 4


def test_a_line_that_is_two_events_is_damaged(tmp_path: Path) -> None:
    write(tmp_path / "e")
    lines = (tmp_path / "e").read_bytes().splitlines()
    lines[1:3] = [lines[1] + b"," + lines[2]]
    (tmp_path / "e").write_bytes(b"\n".join([*lines, b""]))
    attempt = read_attempt(tmp_path / "e", 2)
    assert ([p.step for p in attempt.points], attempt.damaged_lines) == ([7], 1)


@pytest.mark.parametrize("size", [200, 1 << 14])
def test_the_tail_of_a_long_file_tells_step_and_outcome(tmp_path: Path, size: int) -> None:
    write(tmp_path / "e", steps=1000)
    assert read_tail(tmp_path / "e", 2, size).step == 1004
    with EventWriter(tmp_path / "e", 2) as writer:
        writer.failed(1004, "ValueError: no")
    tail = read_tail(tmp_path / "e", 2, size)
    assert (tail.outcome, tail.message, tail.step) == ("failed", "ValueError: no", 1004)


def test_points_reach_the_disk_within_the_flush_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accum_sweeps.record.events.FLUSH_S", 0.0)
    writer = EventWriter(tmp_path / "e", 1)
    writer.metrics(1, {"a": 1.0})
    assert len(read_attempt(tmp_path / "e", 1).points) == 1
    writer.close()
