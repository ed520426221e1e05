"""Pairs of cells: which runs are compared with which, and what is said where there are none."""

from typing import Any

import pytest

from accum_sweeps.plan.errors import ConfigError
from accum_sweeps.plan.flat import flatten
from accum_sweeps.plan.pairs import check_pair, matches, pair_name, read_pairs, same
from accum_sweeps.plan.spec import RunSpec
from tests.specs import make_spec

SGD = {
    "kind": "sgd",
    "name": "sgd",
    "lr": 0.1,
    "momentum": 0.9,
    "nesterov": False,
    "weight_decay": 0.0,
    "max_norm": None,
    "schedule": "cosine",
    "warmup_steps": 2,
}


def rows(*specs: RunSpec) -> list[dict[str, Any]]:
    return [flatten(spec.to_dict()) for spec in specs]


def pair(left: dict[str, Any], right: dict[str, Any]) -> dict[str, dict[str, Any]]:
    [read] = read_pairs([{"left": left, "right": right}])
    return read


def test_runs_are_matched_by_equal_seed_control_replicate_and_settings() -> None:
    others: list[dict[str, Any]] = [
        {"seed": 1},
        {"control": "permute"},
        {"replicate": 1},
        {"dtype": "fp64"},
        {"optimizer.lr": 0.5},
        {"seed_data": 7},
    ]
    specs = [make_spec(accum=k, **change) for change in ({}, *others) for k in (4, 2)]
    assert matches(rows(*specs), pair({"accum": 4}, {"accum": 2})) == [(place, place + 1) for place in range(0, 14, 2)]


def test_a_key_that_differs_without_being_named_separates() -> None:
    found = rows(make_spec(accum=4), make_spec(accum=2, steps=20, global_batch=8))
    assert matches(found, pair({"accum": 4}, {"accum": 2})) == []
    named = pair({"accum": 4, "steps": 10, "global_batch": 16}, {"accum": 2, "steps": 20, "global_batch": 8})
    assert matches(found, named) == [(0, 1)]


def test_what_both_sides_share_only_selects() -> None:
    found = rows(*(make_spec(accum=k, dtype=dtype) for dtype in ("fp32", "fp64") for k in (4, 2)))
    assert matches(found, pair({"accum": 4, "dtype": "fp64"}, {"accum": 2, "dtype": "fp64"})) == [(2, 3)]


def test_presets_of_a_group_are_named_and_their_keys_go_with_them() -> None:
    found = rows(make_spec(), make_spec(optimizer=SGD), make_spec(**{"optimizer.eps": 1e-4}))
    assert matches(found, pair({"optimizer": "adamw", "optimizer.eps": 1e-8}, {"optimizer": "sgd", "optimizer.eps": None})) == []
    assert matches(found[:2], pair({"optimizer": "adamw"}, {"optimizer": "sgd"})) == [(0, 1)]
    same_preset = pair({"optimizer": "adamw", "accum": 1}, {"optimizer": "adamw", "accum": 2})
    assert matches([*found, *rows(make_spec(accum=2))], same_preset) == [(0, 3)]  # eps still has to be equal


def test_two_seeds_can_be_compared_with_their_streams() -> None:
    found = rows(make_spec(), make_spec(seed=1), make_spec(seed=1, accum=2))
    assert matches(found, pair({"seed": 0}, {"seed": 1})) == [(0, 1)]


def test_the_hash_of_data_goes_with_what_is_named_of_it() -> None:
    found = rows(make_spec(**{"data.hash": "a"}), make_spec(**{"data.hash": "b", "data.seq_len": 32}))
    assert matches(found, pair({"data.seq_len": 64}, {"data.seq_len": 32})) == [(0, 1)]
    assert matches(found, pair({"accum": 1}, {"accum": 2})) == []


@pytest.mark.parametrize(
    ("a", "b", "is_same"), [(1, 1.0, True), (True, 1, False), ([1], "[1]", True), (None, None, True), ("1", 1, False), (1e-8, 1e-4, False)]
)
def test_values_are_the_same_as_tables_hold_them(a: object, b: object, is_same: bool) -> None:
    assert same(a, b) is is_same


def test_a_pair_is_named_by_what_differs() -> None:
    assert pair_name(pair({"accum": 4}, {"accum": 2})) == "accum=4 against accum=2"
    assert pair_name(pair({"accum": 4, "dtype": "fp64"}, {"accum": 2, "dtype": "fp64"})) == "accum=4 against accum=2, both dtype=fp64"


@pytest.mark.parametrize(
    ("left", "right", "words"),
    [
        ({"acum": 4}, {"acum": 2}, r"left='acum': no run has such a setting; must be one of .*did you mean accum\?"),
        ({"accum": 4}, {"accum": 16}, r"right='accum=16': no run has this value; there are 1, 4, 2$"),
        (
            {"accum": 4, "steps": 20},
            {"accum": 1, "steps": 10},
            r"left='accum=4 steps=20': no run has all of these; there are accum=1 steps=10; ",
        ),
        (
            {"accum": 1},
            {"accum": 2},
            r"'accum=1 against accum=2': no two of these runs are equal in all else; they differ in steps\n  Name on both sides what is",
        ),
    ],
)
def test_a_pair_that_matches_nothing_is_refused_with_what_is_there(left: dict[str, Any], right: dict[str, Any], words: str) -> None:
    found = rows(make_spec(), make_spec(accum=4), make_spec(accum=2, steps=20))
    with pytest.raises(ConfigError, match=words):
        check_pair(found, pair(left, right))
    check_pair(found, pair({"accum": 4}, {"accum": 1}))
