from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from accum_sweeps.subjects.samples import are_equal, count, placed, selected

ROWS = np.array([2, 0], dtype=np.intp)


class Pair(NamedTuple):
    image: torch.Tensor
    label: list[str]


@pytest.mark.parametrize(
    ("samples", "number"),
    [
        ([1, 2, 3], 3),
        (torch.zeros(4, 2), 4),
        (np.zeros(5), 5),
        ((torch.zeros(3), ["a", "b", "c"]), 3),
        ({"x": torch.zeros(2, 7), "y": np.zeros(2)}, 2),
        ((torch.zeros(3), torch.zeros(4)), 0),
        (torch.tensor(1.0), 0),
        ("abc", 0),
        (None, 0),
    ],
)
def test_samples_are_counted_in_every_form(samples: Any, number: int) -> None:
    assert count(samples) == number


def test_rows_are_taken_in_order_and_in_the_same_form() -> None:
    assert selected(["a", "b", "c"], ROWS) == ["c", "a"]
    chosen = selected({"x": torch.tensor([[1], [2], [3]]), "y": np.array([1, 2, 3])}, ROWS)
    assert chosen["x"].tolist() == [[3], [1]] and chosen["y"].tolist() == [3, 1]
    pair = selected(Pair(torch.tensor([1, 2, 3]), ["a", "b", "c"]), ROWS)
    assert isinstance(pair, Pair) and pair.image.tolist() == [3, 1] and pair.label == ["c", "a"]


def test_floating_point_takes_the_dtype_and_integers_keep_theirs() -> None:
    image, label, names = placed((np.ones(2, dtype=np.float32), torch.tensor([1, 2]), ["a"]), "cpu", torch.float64)
    assert (image.dtype, label.dtype, names) == (torch.float64, torch.int64, ["a"])
    (inside,) = placed([{"x": torch.ones(1)}], "cpu", torch.bfloat16)
    assert inside["x"].dtype == torch.bfloat16


def test_equality_sees_a_single_number_and_takes_nan_for_equal() -> None:
    def first() -> Any:
        return {"x": (torch.tensor([1.0, float("nan")]), np.array([1, 2])), "y": ["a", 1.5, object()]}

    second = first()
    assert are_equal(first(), second)
    second["x"][1][0] = 7
    assert not are_equal(first(), second)
    assert not are_equal(first(), {**first(), "y": ["b", 1.5, object()]})
    assert not are_equal(torch.zeros(2), torch.zeros(3))
    assert not are_equal([1], (1,))
