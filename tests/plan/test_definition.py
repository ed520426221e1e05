"""Tests of accum_sweeps.plan.definition: what is seen without expanding, and the command line's changes."""

from typing import Any

import pytest

from accum_sweeps.plan.axes import parse_axes
from accum_sweeps.plan.definition import Edits, merge_axes
from accum_sweeps.plan.errors import ConfigError
from tests.plan.grids import cells, grid

TWO = {"dtype": ["fp32", "bf16"], "accum": [1, 2, 4]}


@pytest.mark.parametrize(
    ("definition", "words"),
    [
        ({"axes": {"dtpye": ["fp32"]}}, "axes.dtpye='fp32': there is no such setting of a run; must be one of accum, accumulator"),
        ({"axes": {"lr": [1.0]}}, "axes.lr='1.0': there is no such setting of a run"),
        ({"axes": {"launcher.slots": [1]}}, "axes.launcher.slots='1': there is no such setting of a run"),
        ({"axes": {"optimizer": ["adam"]}}, "axes.optimizer='adam': there is no such option; must be one of adamw, sgd (did"),
        ({"axes": {"subject.args": [{}], "subject.args.a": [1]}}, "axes.subject.args.a='1': is set already by the axis subject.args"),
        ({"axes": TWO, "exclude": [{"dtyp": "fp32"}]}, "exclude.dtyp=['fp32']: there is no such axis here; must be one of accum, dtype"),
        (
            {"axes": TWO, "exclude": [{"accum": 3}]},
            "exclude.accum=3: matches nothing, as the axis does not take this value; must be one of 1, 2, ",
        ),
        ({"axes": TWO, "only": [{"accum": [1, 8]}]}, "only.accum=8: matches nothing"),
        ({"axes": TWO, "zip": [["dtype", "acum"]]}, "zip='acum': there is no such axis; must be one of accum, dtype (did you mean accum?)"),
        ({"axes": TWO, "zip": [["dtype", "accum"]]}, "zip=['dtype', 'accum']: zipped axes must have equally many values: dtype has 2, acc"),
        (
            {"axes": {"seed": [1, 2], "steps": {"values": [5, 6], "when": {"seed": 1}}}, "zip": [["seed", "steps"]]},
            "zip=['seed', 'steps']: zipped axes must have the same condition (when)",
        ),
        (
            {"axes": {"seed": {"values": [1], "when": {"dtype": "fp32"}}, **TWO}},
            "axes.seed.when='dtype': must be an axis that comes before",
        ),
        ({"axes": {**TWO, "seed": {"values": [1], "when": {"dtype": "fp16"}}}}, "axes.seed.when.dtype='fp16': matches nothing"),
        ({"axes": {**TWO, "seed": {"values": [1], "when": {"x": 1}}}}, "axes.seed.when.x=[1]: there is no such axis here"),
        ({"axes": {}, "grids": {"a": {"axs": {}}}}, "grids.a.axs={}: there is no such key; must be one of axes, exclude, extra, only, zip"),
        ({"grids": {"a": [1]}}, "grids.a=[1]: must be a mapping"),
        ({"grids": [1]}, "grids=[1]: must be a mapping"),
        ({"grids": {"a": {"axes": {"seed": []}}}}, "grids.a.axes.seed=[]: an axis needs at least one value"),
        ({"axes": TWO, "grids": {"a": {}}, "exclude": [{"accum": 1}]}, "exclude=[{'accum': 1}]: with sub-grids it must stand inside"),
        ({"extra": {"accum": 1}}, "extra={'accum': 1}: must be a list of mappings"),
        ({"extra": [{"optimizer": "adam"}]}, "extra[0].optimizer='adam': there is no such option"),
    ],
)
def test_wrong_definition_is_refused_at_once(definition: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        grid(**definition)
    assert str(caught.value).startswith(words)


def test_bare_name_of_an_inner_key_is_completed() -> None:
    with pytest.raises(ConfigError, match=r"Did you mean optimizer\.lr\?"):
        grid(axes={"lr": [1.0]})


def test_new_axes_replace_in_place_or_come_before_accum() -> None:
    merged = merge_axes(parse_axes({"seed": [1], "accum": [1, 2]}), parse_axes({"steps": [5], "seed": [7, 8], "replicate": [0]}))
    assert list(merged) == ["seed", "steps", "replicate", "accum"]
    assert merged["seed"].values == [7, 8]
    assert list(merge_axes(parse_axes({"seed": [1]}), parse_axes({"accum": [1]}))) == ["seed", "accum"]


def test_edited_axes_replace_and_add() -> None:
    made = grid(Edits(axes={"accum": {"range": [1, 3]}, "seed": [5]}), axes=TWO)
    assert cells(made) == [("fp32", 5, 1), ("fp32", 5, 2), ("bf16", 5, 1), ("bf16", 5, 2)]
    assert made.notices == ("axis accum replaced: 1,2,4 -> 1,2",)


def test_removed_axis_takes_the_base_value_and_is_told() -> None:
    made = grid(Edits(removed=("dtype",)), axes=TWO)
    assert cells(made) == [(1,), (2,), (4,)]
    assert made.notices == ("axis dtype removed: it takes the configuration's value",)


def test_removing_what_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"~axes\.dtyp=None: there is no such axis; must be one of accum, dtype \(did you mean dtype\?\)"):
        grid(Edits(removed=("dtyp",)), axes=TWO)
    with pytest.raises(ConfigError, match="the grid has none"):
        grid(Edits(removed=("dtype",)))


def test_fixed_value_reduces_the_axis_even_to_a_value_it_did_not_have() -> None:
    made = grid(Edits(fixed={"accum": 16, "steps": 5}), axes=TWO)
    assert cells(made) == [("fp32", 16), ("bf16", 16)]
    assert made.notices == ("axis accum reduced to 16, as the command line sets it",)


def test_fixed_axis_leaves_its_zip() -> None:
    axes = {"seed": [1, 2], "steps": [5, 6], "optimizer.lr": [0.1, 0.2]}
    made = grid(Edits(fixed={"seed": 9}), axes=axes, zip=[["seed", "steps", "optimizer.lr"]])
    assert cells(made) == [(9, 5, 0.1), (9, 6, 0.2)]


def test_condition_emptied_by_the_command_line_is_told_not_refused() -> None:
    made = grid(Edits(fixed={"dtype": "fp32"}), axes=TWO, exclude=[{"dtype": "bf16", "accum": 4}])
    assert cells(made) == [("fp32", 1), ("fp32", 2), ("fp32", 4)]
    assert made.notices == (
        "exclude: the condition dtype=bf16 accum=4 matches nothing with the axes of the command line",
        "axis dtype reduced to fp32, as the command line sets it",
    )


def test_condition_may_name_values_that_the_command_line_brings() -> None:
    made = grid(Edits(axes={"accum": [1, 16]}), axes=TWO, exclude=[{"accum": 16, "dtype": "bf16"}])
    assert cells(made) == [("fp32", 1), ("fp32", 16), ("bf16", 1)]


def test_conditional_axis_whose_condition_the_command_line_rules_out_is_left_out() -> None:
    axes = {"optimizer": ["adamw", "sgd"], "optimizer.eps": {"values": [1e-8, 1e-4], "when": {"optimizer": "adamw"}}}
    made = grid(Edits(fixed={"optimizer": "sgd"}), axes=axes)
    assert cells(made) == [("sgd",)]
    assert made.notices[0] == "axis optimizer.eps left out: no axis of the command line meets its condition optimizer=adamw"


def test_extra_cells_follow_a_fixed_value() -> None:
    extra = [{"accum": [8, 16], "seed": 3}, {"accum": 1, "seed": 4}]
    made = grid(Edits(fixed={"accum": 8}), axes={"accum": [1, 2]}, extra=extra)
    assert [(run.seed, run.accum) for run in made.expand()] == [(0, 8), (3, 8)]
    assert made.notices[0] == "extra[1] is left out: it is for accum=1, not for 8"


@pytest.mark.parametrize(
    ("edits", "notice"),
    [
        (Edits(axes={"seed": [9]}), "axis seed replaced: 1,2 -> 9"),
        (Edits(removed=("seed",)), "axis seed removed: it takes the configuration's value"),
    ],
)
def test_extra_cells_that_keep_their_own_values_are_told(edits: Edits, notice: str) -> None:
    made = grid(edits, axes={"seed": [1, 2]}, extra=[{"seed": 5, "accum": 2}])
    assert made.notices == (f"{notice}; extra cells keep their own",)
    assert cells(made)[-1] == (5, 2)
    assert grid(edits, axes={"seed": [1, 2]}, extra=[{"accum": 2}]).notices == (notice,)


def test_value_inside_or_around_an_axis_is_refused() -> None:
    axes = {"subject.args.n": [1, 2]}
    for name, value in {"subject.args": {"n": 7}, "subject.args.n.m": 3}.items():
        with pytest.raises(ConfigError, match=r"is set again by the axis subject\.args\.n"):
            grid(Edits(fixed={name: value}), axes=axes)
    assert len(cells(grid(Edits(fixed={"subject.args": {"n": 7}}, removed=("subject.args.n",)), axes=axes))) == 1


def test_edits_reach_every_sub_grid() -> None:
    grids = {"a": {"axes": {"seed": [1, 2]}}, "b": {"axes": {"steps": [5]}}}
    made = grid(Edits(axes={"seed": [7]}, fixed={"accum": 2}), axes={"accum": [1, 2]}, grids=grids)
    assert cells(made) == [(7, 2), (5, 7, 2)]
