"""Epochs: every row once, in a new order each time, the last window as asked for."""

import numpy as np
import pytest

from accum_sweeps.training.data.epochs import Epochs


def epochs(**changes: object) -> Epochs:
    return Epochs(**({"rows": 10, "global_batch": 4, "last_window": "drop", "seed": 0} | changes))  # type: ignore[arg-type]


def windows(made: Epochs, first: int, last: int) -> list[list[int]]:
    return [made.chosen(step).tolist() for step in range(first, last + 1)]


def test_a_short_last_window_holds_what_is_left_so_that_every_row_comes_once_an_epoch() -> None:
    made = epochs(last_window="short")
    for first in (1, 4, 7):
        epoch = windows(made, first, first + 2)
        assert [len(window) for window in epoch] == [4, 4, 2] == [made.size(step) for step in range(first, first + 3)]
        assert sorted(row for window in epoch for row in window) == list(range(10))


def test_a_dropped_last_window_leaves_the_rest_out() -> None:
    made = epochs()
    for first in (1, 3, 5):
        epoch = windows(made, first, first + 1)
        assert [len(window) for window in epoch] == [4, 4]
        assert len({row for window in epoch for row in window}) == 8


def test_no_window_is_empty_where_the_batch_divides_the_rows() -> None:
    for last_window in ("drop", "short"):
        made = epochs(rows=8, last_window=last_window)
        assert (made.windows, [made.size(step) for step in (1, 2, 3)]) == (2, [4, 4, 4])


def test_each_epoch_has_an_order_of_its_own_that_the_seed_decides() -> None:
    first, second = epochs(last_window="short"), epochs(last_window="short", seed=1)
    assert windows(first, 1, 3) != windows(first, 4, 6)
    assert windows(first, 1, 3) != windows(second, 1, 3)
    assert windows(first, 4, 6) == windows(epochs(last_window="short"), 4, 6)


def test_without_shuffling_the_order_is_that_of_the_data() -> None:
    made = epochs(is_shuffled=False, last_window="short")
    assert windows(made, 4, 6) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


@pytest.mark.parametrize("step", [1, 3, 50])
def test_a_step_does_not_depend_on_what_was_asked_before(step: int) -> None:
    expected = epochs(rows=1000).chosen(step).copy()
    made = epochs(rows=1000)
    made.chosen(700)
    assert np.array_equal(made.chosen(step), expected)
