"""Where a gradient differs: known beforehand, tensor by tensor."""

import pytest
import torch

from accum_sweeps.ladder.observation import Member
from accum_sweeps.ladder.shares import combined
from accum_sweeps.ladder.tensors import worst_tensor

DRAWN = torch.Generator().manual_seed(5)
TOLERANCE = 1e-13


def member(terms: float) -> Member:
    parts = {"large": 1e3 * torch.randn(50, generator=DRAWN), "small": torch.randn(4, generator=DRAWN)}
    return Member(loss=1.0, terms=terms, gradient={name: part.double() for name, part in parts.items()})


MEMBERS = [member(3.0), member(1.0)]
RIGHT = combined(MEMBERS, [0.25, 0.25])


def changed(**factors: float) -> dict[str, torch.Tensor]:
    return {name: part * factors.get(name, 1.0) for name, part in RIGHT.items()}


@pytest.mark.parametrize("name", ["large", "small"])
def test_the_tensor_that_is_wrong_is_named_with_how_far_it_is(name: str) -> None:
    found = worst_tensor(changed(**{name: 1.5}), MEMBERS, TOLERANCE)
    assert found is not None and found.is_above
    assert found.name == name and found.value == pytest.approx(0.5, rel=1e-12)


def test_what_rounding_of_the_whole_leaves_in_a_short_tensor_is_rounding() -> None:
    length = float(torch.cat(list(RIGHT.values())).norm())
    share = length / float(RIGHT["small"].norm())
    assert share > 1000
    quiet = worst_tensor(changed(small=1 + 0.9 * TOLERANCE * share), MEMBERS, TOLERANCE)
    assert quiet is not None and not quiet.is_above and quiet.floor == pytest.approx(TOLERANCE * share)
    loud = worst_tensor(changed(small=1 + 1.1 * TOLERANCE * share), MEMBERS, TOLERANCE)
    assert loud is not None and loud.is_above and loud.name == "small"


def test_a_tensor_above_its_floor_goes_before_one_with_a_larger_share_of_rounding() -> None:
    length = float(torch.cat(list(RIGHT.values())).norm())
    rounding = 0.5 * TOLERANCE * length / float(RIGHT["small"].norm())
    found = worst_tensor(changed(small=1 + rounding, large=1 + 2 * TOLERANCE), MEMBERS, TOLERANCE)
    assert found is not None and found.name == "large" and found.is_above and found.value < rounding


def test_a_tensor_without_a_right_gradient_is_measured_by_the_whole() -> None:
    extra = changed() | {"extra": torch.full((1,), 1e-3, dtype=torch.float64)}
    found = worst_tensor(extra, MEMBERS, TOLERANCE)
    length = float(torch.cat(list(RIGHT.values())).norm())
    assert found is not None and found.is_above and found.name == "extra" and found.value == pytest.approx(1e-3 / length)
    missing = {"large": RIGHT["large"]}
    found = worst_tensor(missing, MEMBERS, TOLERANCE)
    assert found is not None and (found.name, found.value) == ("small", 1.0)


def test_without_a_gradient_or_a_term_there_is_none() -> None:
    assert worst_tensor({}, [Member(loss=0.0, terms=0.0, gradient={})], TOLERANCE) is None
    zeros = [Member(loss=0.0, terms=1.0, gradient={"w": torch.zeros(3).double()})]
    assert worst_tensor({"w": torch.zeros(3).double()}, zeros, TOLERANCE) is None
