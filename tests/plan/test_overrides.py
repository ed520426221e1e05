"""Tests of accum_sweeps.plan.overrides: how a command line is sorted, and what is refused with which advice."""

from typing import Any

import pytest

from accum_sweeps.plan.errors import UserError
from accum_sweeps.plan.overrides import parse, translate_multirun

GROUPS = {"optimizer": ("adamw", "sgd"), "grid": ("adamw", "smoke"), "launcher": ("local",)}


def test_options_values_and_axes_are_told_apart() -> None:
    line = parse(["+grid=adamw", "optimizer=sgd", "optimizer.lr=1e-3", "steps=5", "axes={seed:{range:3}}", "~axes.dtype"], GROUPS)
    assert line.choices == {"grid": "adamw", "optimizer": "sgd"}
    assert line.values == {"optimizer.lr": 1e-3, "steps": 5}
    assert line.lines == ("optimizer.lr=1e-3", "steps=5")
    assert line.axes == {"seed": {"range": 3}}
    assert (line.removed, line.removes_all) == (("dtype",), False)


@pytest.mark.parametrize("text", ["grid=adamw", "+grid=adamw", "++grid=adamw"])
def test_grid_is_chosen_with_and_without_plus(text: str) -> None:
    assert parse([text], GROUPS).choices == {"grid": "adamw"}


@pytest.mark.parametrize("plus", ["", "+", "++"])
@pytest.mark.parametrize(
    ("text", "axes"),
    [
        (
            "axes={accum:[1,16],model.norm:[rmsnorm,none],seed:{range:3}}",
            {"accum": [1, 16], "model.norm": ["rmsnorm", "none"], "seed": {"range": 3}},
        ),
        ("axes={ accum : [1, 16] , seed: {range: [0, 4, 2]} }", {"accum": [1, 16], "seed": {"range": [0, 4, 2]}}),
        ("axes={a:{values:[1],when:{optimizer:sgd}},b:'x,y:z'}", {"a": {"values": [1], "when": {"optimizer": "sgd"}}, "b": "x,y:z"}),
        ("axes.model.norm=[rmsnorm,none]", {"model.norm": ["rmsnorm", "none"]}),
        ("axes.seed={range:3}", {"seed": {"range": 3}}),
        ("axes.seed=3", {"seed": 3}),
        ("axes.seed=1,2", {"seed": [1, 2]}),
        ("axes.model.norm='rmsnorm',none", {"model.norm": ["rmsnorm", "none"]}),
        ("axes.seed=range(3)", {"seed": {"range": [0, 3, 1]}}),
        ("axes.optimizer.lr=range(0.5,1.5,0.5)", {"optimizer.lr": [0.5, 1.0]}),
        ("axes.optimizer.betas=[[0.9,0.95],[0.9,0.999]]", {"optimizer.betas": [[0.9, 0.95], [0.9, 0.999]]}),
    ],
)
def test_axes_in_every_spelling(plus: str, text: str, axes: dict[str, Any]) -> None:
    line = parse([plus + text], GROUPS)
    assert (line.axes, line.lines, line.values) == (axes, (), {})


def test_lines_can_leave_out_keys() -> None:
    line = parse(["steps=5", "+optimizer.lr=1e-3", "~seed", "optimizer.lr_end=0"], GROUPS)
    assert line.lines_without({"optimizer.lr", "seed"}) == ("steps=5", "~seed", "optimizer.lr_end=0")


def test_all_axes_can_be_removed_and_others_given() -> None:
    line = parse(["~axes", "axes.seed=[1]"], GROUPS)
    assert (line.removes_all, line.removed, line.axes) == (True, (), {"seed": [1]})


def test_user_arguments_may_be_new_keys() -> None:
    line = parse(["subject.args.width=32", "+subject.args.depth=2", "subject.args={a:1}", "~subject.args.b"], GROUPS)
    assert line.lines == ("++subject.args.width=32", "++subject.args.depth=2", "++subject.args={a:1}", "~subject.args.b")
    assert line.values == {"subject.args.width": 32, "subject.args.depth": 2, "subject.args": {"a": 1}}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("root=~/runs", "~/runs"),
        ("root=/my (runs)", "/my (runs)"),
        ("root=it's", "it's"),
        ("root=/a b/c", "/a b/c"),
    ],
)
def test_single_values_need_no_quotes_for_hydra(text: str, value: str) -> None:
    line = parse([text], GROUPS)
    assert line.values == {"root": value}
    assert parse(line.lines, GROUPS).values == {"root": value}


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["seed=1,2"], "seed=1,2: several values of a setting are an axis of the grid.\n  Write: 'axes={seed:[1,2]}'"),
        (
            ["seed=range(3)", "steps=5", "optimizer=adamw,sgd", "model.norm=choice(rmsnorm,none)"],
            "seed=range(3) optimizer=adamw,sgd model.norm=choice(rmsnorm,none): several values of a setting are an axis of the grid.\n"
            "  Write: 'axes={seed:{range:[0,3,1]},optimizer:[adamw,sgd],model.norm:[rmsnorm,none]}'",
        ),
        (
            ["optimizer=glob(*)"],
            "optimizer=glob(*): several values of a setting are an axis of the grid.\n  Write: 'axes={optimizer:[adamw,sgd]}'",
        ),
        (["grid=adamw,smoke"], "grid='adamw,smoke': takes one value\n  Several grids go into one file, as sub-grids"),
        (["launcher.slots=1,2"], "launcher.slots='1,2': takes one value"),
        (["grid=adam"], "grid='adam': there is no such option; must be one of adamw, smoke (did you mean adamw?)"),
        (["optimizer={lr:1}"], "optimizer={'lr': 1}: there is no such option; must be one of adamw, sgd"),
        (["optimizer=null"], "optimizer=None: there is no such option"),
        (["seed=1", "seed=1"], "seed is given twice on the command line: seed=1 and seed=1. Keep one."),
        (["+grid=adamw", "grid=smoke"], "grid is given twice on the command line: +grid=adamw and grid=smoke"),
        (["seed=1", "axes.seed=[1,2]"], "axes.seed=[1, 2]: seed is given twice on the command line: once more as 1"),
        (["optimizer=sgd", "axes={optimizer:[sgd]}"], "axes.optimizer=['sgd']: optimizer is given twice on the command line"),
        (["axes={seed:[1]}", "axes.seed=[2]"], "axes.seed=[2]: seed is given twice on the command line: once more as [1]"),
        (["axes={seed:[1],accum:[2],seed:[3]}"], "axes.seed='{seed:[1],accum:[2],seed:[3]}': this axis is given twice"),
        (["axes={}"], "axes='{}': must be a mapping from axis to values"),
        (["axes=[1,2]"], "axes='[1,2]': must be a mapping from axis to values"),
        (["axes=null"], "axes='null': must be a mapping from axis to values"),
        (["axes={seed:[1,2}"], "'axes={seed:[1,2}' is not key=value: no viable alternative at input '{seed:[1,2}'"),
        (["smoke"], "'smoke' is not key=value\n  Did you mean +grid=smoke?"),
        (["+adamw"], "'+adamw' is not key=value\n  Did you mean +grid=adamw or optimizer=adamw?"),
        (["adamwx"], "'adamwx' is not key=value\n  Did you mean +grid=NAME?"),
        (["hydra.run.dir=x"], "hydra.run.dir=x: Hydra's own settings are not used here"),
        (["hydra/launcher=basic"], "hydra/launcher=basic: Hydra's own settings are not used here"),
    ],
)
def test_refusal_says_what_to_write(overrides: list[str], words: str) -> None:
    with pytest.raises(UserError) as caught:
        parse(overrides, GROUPS)
    assert str(caught.value).startswith(words)


def test_translation_into_axes_means_the_same() -> None:
    with pytest.raises(UserError) as caught:
        parse(["model.norm='rmsnorm',none", "seed=range(2,5)", "optimizer.eps=1e-8,null", "model.qk_norm=true,false"], GROUPS)
    written = str(caught.value).split("Write: '")[1].rstrip("'")
    assert parse([written], GROUPS).axes == {
        "model.norm": ["rmsnorm", "none"],
        "seed": {"range": [2, 5, 1]},
        "optimizer.eps": [1e-8, None],
        "model.qk_norm": [True, False],
    }


def test_multirun_is_translated() -> None:
    assert str(translate_multirun(["seed=1,2", "steps=3"], GROUPS)) == (
        "-m (--multirun) is not used here: the grid holds all runs.\n"
        "  seed=1,2: several values of a setting are an axis of the grid.\n"
        "  Write: 'axes={seed:[1,2]}'"
    )
    assert str(translate_multirun(["steps=3"], GROUPS)).endswith("Leave -m out.")
