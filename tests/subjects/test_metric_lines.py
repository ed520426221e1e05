import math
from pathlib import Path

import pytest

from accum_sweeps.subjects.metric_lines import MetricLines, earlier_values


def line(step: int, key: str, value: float) -> str:
    return f'{{"step": {step}, "key": "{key}", "value": {value}}}\n'


def test_a_step_is_complete_when_another_begins(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = MetricLines(path)
    assert list(lines.read(to_end=False)) == []
    path.write_text(line(1, "train_loss", 3) + line(1, "lr", 0.1) + line(2, "train_loss", 2))
    assert list(lines.read(to_end=False)) == [(1, {"train_loss": 3.0, "lr": 0.1})]
    assert list(lines.read(to_end=False)) == []
    with path.open("a") as file:
        file.write(line(2, "eval_loss", 2.5))
    assert list(lines.read(to_end=True)) == [(2, {"train_loss": 2.0, "eval_loss": 2.5})]
    assert list(lines.read(to_end=True)) == []


def test_half_a_line_waits_for_its_other_half(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = MetricLines(path)
    whole = line(1, "train_loss", 3.25)
    for end in range(len(whole)):
        path.write_text(whole[:end])
        assert list(lines.read(to_end=False)) == []
    path.write_text(whole + line(2, "train_loss", 1))
    assert list(lines.read(to_end=False)) == [(1, {"train_loss": 3.25})]


def test_at_the_end_a_cut_line_is_reported_and_a_whole_one_without_newline_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, cut = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl"
    whole.write_text(line(1, "eval_loss", 3).rstrip())
    cut.write_text(line(1, "eval_loss", 3) + '{"step": 2, "key": "eval_l')
    assert list(MetricLines(whole).read(to_end=True)) == [(1, {"eval_loss": 3.0})]
    assert list(MetricLines(cut).read(to_end=True)) == [(1, {"eval_loss": 3.0})]
    assert "cut.jsonl: line 2 skipped (Unterminated string" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("loss is 3", "Expecting value"),
        ("[1, 2, 3]", 'it must be {"step": int, "key": str, "value": number}'),
        ('{"step": 1, "value": 2}', 'it must be {"step": int, "key": str, "value": number}'),
        ('{"step": 1.5, "key": "a", "value": 2}', "step must be a whole number from 0 on, not 1.5"),
        ('{"step": true, "key": "a", "value": 2}', "step must be a whole number from 0 on, not True"),
        ('{"step": -1, "key": "a", "value": 2}', "step must be a whole number from 0 on, not -1"),
        ('{"step": 1, "key": "", "value": 2}', "key must be a name, not ''"),
        ('{"step": 1, "key": "a", "value": "high"}', "value must be a number, not 'high'"),
        ('{"step": 1, "key": "a", "value": null}', "value must be a number, not None"),
        ('{"step": 1, "key": "a", "value": false}', "value must be a number, not False"),
        ("\xff\xfe", "Expecting value"),
    ],
)
def test_a_line_that_is_no_metric_is_reported_and_the_others_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, reason: str
) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(line(1, "a", 1) + text + "\n\n" + line(2, "a", 2))
    assert list(MetricLines(path).read(to_end=True)) == [(1, {"a": 1.0}), (2, {"a": 2.0})]
    assert f"metrics.jsonl: line 2 skipped ({reason}" in capsys.readouterr().err


def test_ten_bad_lines_are_shown_and_all_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "metrics.jsonl").write_text("?\n" * 1000)
    assert list(MetricLines(tmp_path / "metrics.jsonl").read(to_end=True)) == []
    printed = capsys.readouterr().err.splitlines()
    assert len(printed) == 11 and printed[-1] == "metrics.jsonl: 1000 lines skipped in all"


def test_numbers_that_are_not_finite_are_read_in_both_forms(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "key": "a", "value": NaN}\n{"step": 1, "key": "b", "value": "-inf"}\n')
    ((step, values),) = MetricLines(path).read(to_end=True)
    assert step == 1 and math.isnan(values["a"]) and values["b"] == -math.inf


def test_a_metric_is_taken_once_for_each_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(line(1, "a", 1) + line(2, "a", 2) + line(1, "a", 9) + line(1, "b", 3) + line(3, "a", 3))
    assert list(MetricLines(path).read(to_end=True)) == [(1, {"a": 1.0}), (2, {"a": 2.0}), (1, {"b": 3.0}), (3, {"a": 3.0})]
    assert "line 3 skipped (a was given at step 2 already)" in capsys.readouterr().err


def test_earlier_attempts_count_up_to_where_the_next_one_began(tmp_path: Path) -> None:
    paths = [tmp_path / f"metrics.{number}.jsonl" for number in (1, 2, 3)]
    paths[0].write_text("".join(line(step, "a", 10 + step) for step in (1, 2, 3, 4)))
    paths[2].write_text("".join(line(step, "a", 30 + step) for step in (3, 4)))
    assert earlier_values(paths) == {1: {"a": 11.0}, 2: {"a": 12.0}, 3: {"a": 33.0}, 4: {"a": 34.0}}
