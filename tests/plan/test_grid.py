"""Tests of accum_sweeps.plan.grid: order, conditions, counts, and what is refused when a grid is expanded."""

import itertools
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accum_sweeps.plan.definition import make_grid
from accum_sweeps.plan.errors import ConfigError, UserError
from accum_sweeps.plan.spec import make_run
from tests.plan.grids import GROUPS, cells, compose, grid

NUMBERS = st.lists(st.integers(0, 6), min_size=1, max_size=4, unique=True)


def test_loops_run_in_the_order_of_the_axes() -> None:
    runs = list(grid(axes={"seed": {"range": 2}, "model.norm": ["layernorm", "none"], "accum": [1, 4]}).expand())
    assert [(r.seed, r.setup.model.norm, r.accum) for r in runs] == list(itertools.product((0, 1), ("layernorm", "none"), (1, 4)))  # type: ignore[union-attr]


def test_group_and_dotted_key_vary_in_one_grid() -> None:
    runs = list(grid(axes={"optimizer": ["adamw", "sgd"], "optimizer.lr": [0.5, 0.25], "dtype": ["fp32", "bf16"]}).expand())
    assert len(runs) == 8
    assert [(r.setup.optimizer.kind, r.setup.optimizer.lr, r.setup.dtype) for r in runs[3:6]] == [
        ("adamw", 0.25, "bf16"),
        ("sgd", 0.5, "fp32"),
        ("sgd", 0.5, "bf16"),
    ]


def test_dotted_key_listed_before_its_group_still_wins() -> None:
    runs = list(grid(axes={"optimizer.lr": [0.5], "optimizer": ["sgd"]}).expand())
    assert (runs[0].setup.optimizer.kind, runs[0].setup.optimizer.lr) == ("sgd", 0.5)


def test_values_of_the_base_and_presets_are_not_changed() -> None:
    before = repr(compose({"optimizer": "sgd"}))
    list(grid(axes={"optimizer": ["sgd"], "optimizer.lr": [0.5], "model.norm": ["none"]}).expand())
    assert repr(compose({"optimizer": "sgd"})) == before


def test_grid_without_axes_is_one_run() -> None:
    assert [run.accum for run in grid().expand()] == [1]


def test_expansion_is_lazy() -> None:
    runs = grid(axes={"seed": {"range": 10**9}}).expand()
    assert [next(runs).seed for _ in range(3)] == [0, 1, 2]


def test_runs_equal_those_made_one_by_one() -> None:
    axes = {"seed": {"range": 3}, "seed_data": [7, None], "model.norm": ["none", "rmsnorm"], "control": ["none", "order"], "accum": [1, 2]}
    made = grid(axes=axes)
    runs = list(made.expand())
    assert len(runs) == 48
    for run in runs:
        values = {key: getattr(run, key) for key in ("seed", "seed_data", "control", "accum", "replicate")}
        one = make_run(run.setup, values)
        assert (one, one.run_id) == (run, run.run_id)
    assert {run.seed_data for run in runs} == {0, 1, 2, 7}


def test_setups_are_shared_and_composed_once() -> None:
    asked: list[Mapping[str, str]] = []

    def counting(choices: Mapping[str, str]) -> Mapping[str, Any]:
        asked.append(dict(choices))
        return compose(choices)

    made = make_grid({"axes": {"seed": {"range": 50}, "optimizer": ["adamw", "sgd"], "accum": [1, 2]}}, counting, GROUPS)
    runs = list(made.expand())
    assert len(runs) == 200
    assert asked == [{"optimizer": "adamw"}, {"optimizer": "sgd"}]
    assert len({id(run.setup) for run in runs}) == 2


def test_zipped_axes_advance_together_at_the_place_of_the_first() -> None:
    made = grid(axes={"steps": [10, 20], "seed": [1, 2], "optimizer.lr": [0.5, 0.25]}, zip=[["steps", "optimizer.lr"]])
    assert cells(made) == [(10, 0.5, 1), (10, 0.5, 2), (20, 0.25, 1), (20, 0.25, 2)]
    assert [(r.setup.steps, r.setup.optimizer.lr, r.seed) for r in made.expand()] == cells(made)


def test_excluded_cells_are_left_out() -> None:
    made = grid(axes={"dtype": ["fp32", "bf16"], "accum": [1, 2, 4]}, exclude=[{"dtype": "bf16", "accum": [2, 4]}])
    assert cells(made) == [("fp32", 1), ("fp32", 2), ("fp32", 4), ("bf16", 1)]


def test_only_keeps_the_cells_that_meet_one_condition() -> None:
    made = grid(axes={"dtype": ["fp32", "bf16"], "accum": [1, 2, 4]}, only=[{"dtype": "bf16"}, {"accum": 4}], exclude=[{"accum": 1}])
    assert cells(made) == [("fp32", 4), ("bf16", 2), ("bf16", 4)]


def test_conditional_axis_is_varied_only_where_its_condition_holds() -> None:
    momentum = {"values": [0.0, 0.9], "when": {"optimizer": "sgd"}}
    made = grid(axes={"optimizer": ["adamw", "sgd"], "optimizer.momentum": momentum, "accum": [1, 2]})
    runs = list(made.expand())
    assert [(r.setup.optimizer.kind, getattr(r.setup.optimizer, "momentum", None), r.accum) for r in runs] == [
        ("adamw", None, 1),
        ("adamw", None, 2),
        ("sgd", 0.0, 1),
        ("sgd", 0.0, 2),
        ("sgd", 0.9, 1),
        ("sgd", 0.9, 2),
    ]
    assert made.counts()["optimizer.momentum"] == {"-": 2, "0.0": 2, "0.9": 2}


def test_extra_cells_follow_with_base_values_for_what_they_do_not_name() -> None:
    made = grid(axes={"seed": [1, 2], "accum": [1, 2]}, extra=[{"accum": 16, "seed": {"range": [3, 5]}}, {"dtype": "bf16"}])
    assert [(r.seed, r.accum, r.setup.dtype) for r in made.expand()][4:] == [(3, 16, "fp32"), (4, 16, "fp32"), (0, 1, "bf16")]


def test_sub_grids_share_axes_and_add_their_own_before_accum() -> None:
    made = grid(
        axes={"seed": {"range": 2}, "accum": [1, 2]},
        grids={
            "adam": {"axes": {"optimizer": "adamw", "optimizer.eps": [1e-8, 1e-4]}},
            "sgd": {"axes": {"optimizer": "sgd", "seed": [9]}, "exclude": [{"accum": 2}], "extra": [{"steps": 20}]},
        },
    )
    runs = list(made.expand())
    assert [(r.seed, getattr(r.setup.optimizer, "eps", None), r.accum) for r in runs] == [
        *itertools.product((0, 1), (1e-8, 1e-4), (1, 2)),
        (9, None, 1),
        (0, 1e-8, 1),
    ]
    assert made.axes == {"seed": [0, 1, 9], "optimizer": ["adamw", "sgd"], "optimizer.eps": [1e-8, 1e-4], "accum": [1, 2], "steps": [20]}


def test_counts_by_axis_add_up_to_the_cells_of_all_blocks() -> None:
    made = grid(axes={"dtype": ["fp32", "bf16"], "accum": [1, 2, 4]}, exclude=[{"dtype": "bf16", "accum": 4}], extra=[{"accum": 8}])
    assert made.counts() == {"dtype": {"fp32": 3, "bf16": 2}, "accum": {"1": 2, "2": 2, "4": 1, "8": 1}}


@given(a=NUMBERS, b=NUMBERS, c=NUMBERS, data=st.data())
def test_number_of_cells_is_the_product_minus_the_exclusions(a: list[int], b: list[int], c: list[int], data: st.DataObject) -> None:
    pick_a = data.draw(st.lists(st.sampled_from(a), min_size=1, unique=True))
    pick_c = data.draw(st.lists(st.sampled_from(c), min_size=1, unique=True))
    axes = {"seed_init": a, "seed_data": b, "seed_dropout": c}
    made = grid(axes=axes, exclude=[{"seed_init": pick_a, "seed_dropout": pick_c}])
    expected = [x for x in itertools.product(a, b, c) if not (x[0] in pick_a and x[2] in pick_c)]
    assert cells(made) == expected
    for position, name in enumerate(axes):
        wanted = {str(v): sum(x[position] == v for x in expected) for v in axes[name]}
        assert made.counts().get(name, {}) == {v: n for v, n in wanted.items() if n}


@given(a=NUMBERS, b=NUMBERS, data=st.data())
def test_conditional_axis_multiplies_only_the_cells_of_its_condition(a: list[int], b: list[int], data: st.DataObject) -> None:
    pick = data.draw(st.lists(st.sampled_from(a), min_size=1, unique=True))
    made = grid(axes={"seed_init": a, "seed_data": {"values": b, "when": {"seed_init": pick}}})
    assert len(cells(made)) == len(a) - len(pick) + len(pick) * len(b)


@pytest.mark.parametrize(
    ("definition", "words"),
    [
        ({"axes": {"accum": [1, 3]}}, "accum=3: does not divide the batch: global_batch=16 over ranks=1; possible: 1, 2, 4, 8, 16"),
        ({"axes": {"accum": [2, 16], "global_batch": [16, 8]}}, "accum=16: does not divide the batch: global_batch=8"),
        ({"axes": {"seed": ["a"]}}, "seed='a': must be a whole number"),
        ({"axes": {"seed": [1, True]}}, "seed=True: must be a whole number"),
        ({"axes": {"seed": [[1]]}}, "seed=[1]: must be a whole number"),
        (
            {"axes": {"model.norm": ["rms"]}},
            "model.norm='rms': must be one of batchnorm, groupnorm, layernorm,",
        ),
        ({"axes": {"model.norm.x": [1]}}, "model.norm.x=1: norm holds 'rmsnorm', not a mapping"),
        (
            {"axes": {"model.nrom": ["none"]}},
            "model.nrom='none': there is no such key for model=tiny; must be one of attention_bias",
        ),
        ({"axes": {"steps.x": [1]}}, "steps.x=1: there is no such setting of a run"),
        (
            {"axes": {"optimizer": ["adamw", "sgd"], "optimizer.momentum": [0.9]}},
            "optimizer.momentum=0.9: there is no such key for optimizer=adamw; must be one of betas, eps, kind, lr, max_norm, schedule, "
            "warmup_steps, weight_decay\n  Vary it only where it exists: optimizer.momentum: {values: [0.9], when: {optimizer: ...}}",
        ),
        ({"axes": {"accum": [1, 2]}, "extra": [{"accum": 2}]}, "The grid holds the same run twice: once as accum=2, once as accum=2."),
        ({"axes": {"accum": [1]}, "extra": [{"replicate": 0}]}, "The grid holds the same run twice: once as accum=1, once as replicate=0."),
        ({"axes": {"seed": [1]}, "exclude": [{"seed": 1}]}, "The grid has no run"),
        (
            {"axes": {"steps": [10, 20], "seed": [1, 2]}, "zip": [["steps", "seed"]], "exclude": [{"steps": 10, "seed": 2}]},
            "grid={'steps': [10], 'seed': [2]}: this condition matches no cell",
        ),
        (
            {
                "axes": {
                    "optimizer": ["adamw", "sgd"],
                    "optimizer.eps": {"values": [1.0], "when": {"optimizer": "adamw"}},
                    "seed": {"values": [1], "when": {"optimizer": "sgd", "optimizer.eps": 1.0}},
                }
            },
            "grid={'optimizer': ['sgd'], 'optimizer.eps': [1.0]}: this condition matches no cell",
        ),
    ],
)
def test_grid_that_cannot_be_run_is_refused_when_expanded(definition: dict[str, Any], words: str) -> None:
    made = grid(**definition)
    with pytest.raises(UserError) as caught:
        list(made.expand())
    assert str(caught.value).startswith(words)


def test_values_that_fail_in_a_later_cell_are_still_found() -> None:
    made = grid(axes={"seed": {"range": 200}, "accum": [1, 2], "steps": [10, 0]})
    with pytest.raises(ConfigError, match=r"^steps=0: must be at least 1"):
        list(made.expand())


def test_user_arguments_take_any_key_as_an_axis() -> None:
    subject = {"kind": "python", "name": "mine", "target": "m:C", "args": {"width": 4}}
    none = {"kind": "none", "name": "none"}
    made = make_grid(
        {"axes": {"subject.args.width": [8, 16], "subject.args.inner.depth": [1]}},
        lambda choices: {**compose(choices), "subject": subject, "model": none, "data": none},
        GROUPS,
    )
    assert [run.setup.subject.args for run in made.expand()] == [  # type: ignore[union-attr]
        {"width": 8, "inner": {"depth": 1}},
        {"width": 16, "inner": {"depth": 1}},
    ]
