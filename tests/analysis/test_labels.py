"""Cut names of setups are short, and still the names of different setups."""

import pytest

from accum_sweeps.analysis.labels import short, told_apart
from accum_sweeps.plan.config import read_config
from accum_sweeps.plan.labels import setup_labels


def test_long_labels_are_cut_in_the_middle() -> None:
    assert short("a" * 100, 13) == "aaaaa...aaaaa"
    assert short("a\n b") == "a b"


def test_names_that_fit_stay_as_they_are() -> None:
    assert told_apart(["lm adamw fp32", "lm adamw bf16"], 20) == ["lm adamw fp32", "lm adamw bf16"]
    assert told_apart([]) == []


def test_where_cutting_would_make_names_alike_the_words_that_all_share_go() -> None:
    names = [f"clip adam fp32 padding={padding} accumulation=plain global_batch=16 steps=2" for padding in ("fixed", "micro_batch")]
    assert told_apart(names, 20) == ["padding=fixed", "padding=micro_batch"]


@pytest.mark.parametrize("most", [12, 40])
def test_names_without_words_are_numbered(most: int) -> None:
    found = told_apart([f"{'a' * 50}{letter}{'b' * 50}" for letter in "xyz"], most)
    assert [name[:3] for name in found] == ["1: ", "2: ", "3: "] and {len(name) <= most for name in found} == {True}


def test_a_name_that_holds_nothing_but_shared_words_is_not_left_empty() -> None:
    found = told_apart(["a" * 30 + " b", "a" * 30 + " b c", "b " + "a" * 30 + " d"], 10)
    assert len(set(found)) == 3 and all(found)


@pytest.mark.parametrize("most", [40, 80])
def test_the_setups_of_a_shipped_grid_with_long_labels_are_told_apart(most: int) -> None:
    setups = list({run.setup.setup_id: run.setup for run in read_config(["+grid=gradcache"]).grid.expand()}.values())
    labels = setup_labels(setups)
    found = told_apart(labels, most)
    assert len({short(label, most) for label in labels}) < len(labels) == len(set(found))
    assert max(map(len, found)) <= most
