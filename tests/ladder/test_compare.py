"""Measures of a difference on tensors whose answers are known by hand."""

import math

import pytest
import torch

from accum_sweeps.ladder.compare import CHUNK, Part, difference, part, ratio, total

INF, NAN = math.inf, math.nan


def test_the_measures_of_a_small_difference_are_those_done_by_hand() -> None:
    reference = torch.tensor([3.0, -4.0, 0.0], dtype=torch.float64)
    found = part(reference + torch.tensor([0.0, 0.25, 0.5], dtype=torch.float64), reference, rtol=0.125, atol=0.25)
    assert (found.squared, found.reference_squared, found.largest) == (0.3125, 25.0, 0.5)
    assert found.relative == math.sqrt(0.3125) / 5
    assert found.tolerance == 0.5  # at the -4 the 0.25 is within rtol, at the 0 nothing is
    assert (found.failing, found.moved, found.elements) == (1, 2, 3)
    assert found.size == 5 / math.sqrt(3)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_the_tolerance_is_where_allclose_turns(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    reference = torch.randn(2 * CHUNK + 5, generator=generator).to(dtype)
    arm = (reference.double() * (1 + 0.01 * torch.randn(len(reference), generator=generator).double())).to(dtype)
    found = part(arm, reference)
    # In half precision allclose rounds its own bound to 2^-8 of it.
    slack = 1 + 2 * torch.finfo(dtype).eps
    assert torch.allclose(arm, reference, atol=found.tolerance * slack)
    assert not torch.allclose(arm, reference, atol=found.tolerance / slack**2)
    assert found.failing == int((~torch.isclose(arm, reference, atol=1e-7)).sum()) > 0


def test_a_difference_in_any_piece_of_a_large_tensor_is_found() -> None:
    reference = torch.ones(3 * CHUNK + 1)
    for place in (0, CHUNK - 1, CHUNK, 3 * CHUNK):
        arm = reference.clone()
        arm[place] += 0.5
        found = part(arm, reference)
        assert (found.moved, found.squared, found.elements) == (1, 0.25, 3 * CHUNK + 1)


def test_equal_tensors_pass_every_tolerance_infinities_and_nan_included() -> None:
    reference = torch.tensor([1.0, INF, -INF, NAN])
    found = part(reference.clone(), reference)
    assert (found.moved, found.failing, found.tolerance, found.squared) == (0, 0, 0.0, 0.0)


@pytest.mark.parametrize(("arm", "reference"), [(NAN, 1.0), (1.0, NAN), (INF, 1.0), (INF, -INF)])
def test_what_is_finite_on_one_side_only_differs_infinitely(arm: float, reference: float) -> None:
    found = part(torch.tensor([arm, 2.0]), torch.tensor([reference, 2.0]))
    assert (found.largest, found.tolerance, found.moved, found.failing) == (INF, INF, 1, 1)


def test_zero_against_zero_is_no_difference_and_something_against_zero_an_infinite_one() -> None:
    assert (ratio(0, 0), ratio(1, 0), ratio(1, 4)) == (0.0, INF, 0.25)
    assert math.isnan(ratio(NAN, 0)) and math.isnan(ratio(1, NAN))
    assert part(torch.ones(2), torch.zeros(2)).relative == INF


def test_parts_add_up_to_the_part_of_all_their_elements() -> None:
    arm, reference = torch.arange(6.0), torch.arange(6.0) * 1.5
    whole = part(arm, reference)
    assert total(part(arm[i], reference[i]) for i in range(6)) == whole
    assert total([]) == Part()


def test_a_tensor_missing_on_one_side_counts_as_zeros() -> None:
    found = difference({"a": torch.tensor([3.0])}, {"a": torch.tensor([3.0]), "b": torch.tensor([4.0])})
    assert found.parts["b"].largest == 4.0 and found.whole.relative == 4 / 5
    assert found.shares() == {"a": 0.0, "b": 1.0}
    assert difference({"a": torch.tensor([3.0])}, {}).whole.relative == INF


def test_a_tensor_that_is_zero_but_for_rounding_is_measured_against_the_whole() -> None:
    reference = {"weight": torch.tensor([1.0]), "key_bias": torch.tensor([2.0e-7])}
    arm = {"weight": torch.tensor([1.0]), "key_bias": torch.tensor([-2.0e-7])}
    found = difference(arm, reference)
    assert found.zero_tensors(2.0**-24) == ["key_bias"]
    assert found.by_tensor(2.0**-24)["key_bias"] == pytest.approx(4e-7, rel=1e-6)
    assert found.by_tensor(2.0**-53)["key_bias"] == pytest.approx(2.0, rel=1e-6)
    assert found.failing_tensors == 1
