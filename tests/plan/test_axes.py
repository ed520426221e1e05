"""Tests of accum_sweeps.plan.axes: the forms of an axis and of conditions."""

from typing import Any

import pytest

from accum_sweeps.plan.axes import contains, mark, matches, parse_axes, parse_axis, parse_rules, parse_zip, prefix_clash, show
from accum_sweeps.plan.errors import ConfigError


@pytest.mark.parametrize(
    ("raw", "values"),
    [
        ([1, 2, 4], [1, 2, 4]),
        ({"range": 3}, [0, 1, 2]),
        ({"range": [3]}, [0, 1, 2]),
        ({"range": [2, 5]}, [2, 3, 4]),
        ({"range": [8, 0, -3]}, [8, 5, 2]),
        ({"values": ["a", "b"]}, ["a", "b"]),
        ({"range": None, "values": [5]}, [5]),
        ("adamw", ["adamw"]),
        ([[0.9, 0.95], [0.9, 0.999]], [[0.9, 0.95], [0.9, 0.999]]),
        ([None, 1.0], [None, 1.0]),
        ([True, 1], [True, 1]),
    ],
)
def test_forms_of_an_axis(raw: Any, values: list[Any]) -> None:
    assert list(parse_axis("x", raw).values) == values


def test_range_is_not_written_out() -> None:
    assert parse_axis("seed", {"range": 10**12}).values == range(10**12)


def test_condition_of_an_axis_lists_values() -> None:
    axis = parse_axis("optimizer.momentum", {"values": [0.9], "when": {"optimizer": "sgd", "seed": {"range": 2}}})
    assert axis.when == {"optimizer": ["sgd"], "seed": range(2)}


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ([], "axes.x=[]: an axis needs at least one value"),
        ({"range": 0}, "axes.x=[]: an axis needs at least one value"),
        ({"range": [3, 3]}, "axes.x=[]: an axis needs at least one value"),
        ([1, 2, 1], "axes.x=1: stands twice in the axis"),
        ([1, 1.0], "axes.x=1.0: stands twice in the axis"),
        ([[1, 2], [1, 2]], "axes.x=[1, 2]: stands twice in the axis"),
        (None, "axes.x=None: must be a list of values"),
        ({"range": "3"}, "axes.x.range='3': must be n, [start, stop] or [start, stop, step]"),
        ({"range": True}, "axes.x.range=True: must be n"),
        ({"range": [0, 1, 0.1]}, "axes.x.range=[0, 1, 0.1]: must be n"),
        ({"range": [0, 3, 0]}, "axes.x.range=[0, 3, 0]: the step must not be 0"),
        ({"range": [0, 1, 2, 3]}, "axes.x.range=[0, 1, 2, 3]: must be n"),
        ({"range": 3, "values": [1]}, "axes.x={'range': 3, 'values': [1]}: needs either values or range"),
        ({"when": {"a": 1}}, "axes.x={'when': {'a': 1}}: needs either values or range"),
        ({"values": 3}, "axes.x.values=3: must be a list"),
        ({"norm": [1]}, "axes.x.norm=[1]: an axis must be a list of values"),
        ({"values": [1], "when": {}}, "axes.x.when={}: a condition must name at least one axis"),
        ({"values": [1], "when": {"a": []}}, "axes.x.when={'a': []}: a condition must name at least one axis"),
        ({"values": [1], "when": "a"}, "axes.x.when='a': must be a mapping"),
    ],
)
def test_malformed_axis_is_refused(raw: Any, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_axis("x", raw)
    assert str(caught.value).startswith(words)


def test_nested_mapping_is_told_how_to_write_a_dotted_axis() -> None:
    with pytest.raises(ConfigError, match=r"write the axis model.norm: \[\.\.\.\]"):
        parse_axes({"model": {"norm": ["none"]}})


@pytest.mark.parametrize("raw", [1, ["a"], [{}], [{"a": []}]])
def test_malformed_conditions_are_refused(raw: Any) -> None:
    with pytest.raises(ConfigError, match=r"^exclude="):
        parse_rules(raw, "exclude")


@pytest.mark.parametrize("raw", [["a", "b"], [["a"]], "a", [["a", "b"], ["b", "c"]]])
def test_malformed_zip_is_refused(raw: Any) -> None:
    with pytest.raises(ConfigError, match=r"^zip="):
        parse_zip(raw, "zip")


def test_rule_needs_all_its_axes_and_one_value_of_each() -> None:
    rule = {"a": [1, 2], "b": range(3)}
    assert matches(rule, {"a": 2, "b": 0, "c": 9})
    assert not matches(rule, {"a": 2, "b": 3})
    assert not matches(rule, {"a": 2})


def test_true_is_not_one_but_one_point_zero_is() -> None:
    assert mark(1) == mark(1.0)
    assert mark(1) != mark(True)
    assert not contains([1, 2], True)
    assert not contains(range(2), True)
    assert contains([[1, 2]], (1, 2))
    assert not contains(range(3), "1")


def test_values_are_shown_as_on_the_command_line() -> None:
    assert [show(v) for v in (None, True, 1e-8, [0.9, 0.95], "sgd", {"a": 1})] == ["null", "true", "1e-08", "0.9,0.95", "sgd", '{"a": 1}']


def test_whole_and_inner_key_clash_but_not_a_group_and_its_key() -> None:
    assert prefix_clash(["subject.args.a", "subject.args"], ()) == ("subject.args", "subject.args.a")
    assert prefix_clash(["optimizer", "optimizer.lr", "optimizer.lr_extra"], ("optimizer",)) is None
