"""How gradients lie to each other: by hand, by identities, and where inner products would have too few digits."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from accum_sweeps.ladder.geometry import geometry, member_regression


def grad(*values: float) -> dict[str, torch.Tensor]:
    return {"w": torch.tensor(values, dtype=torch.float64)}


def random(seed: int, size: int = 200) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(size, generator=generator, dtype=torch.float64) for name in ("a", "b")}


def test_a_right_angle_and_a_multiple_by_hand() -> None:
    apart = geometry(grad(0, 2), grad(1, 0))
    assert (apart.rho, apart.cosine, apart.multiple, apart.bias, apart.eta) == (2, 0, 0, -1, 1)
    assert apart.relative == pytest.approx(math.sqrt(5))
    eight = geometry(grad(8, 16), grad(1, 2))
    assert (eight.rho, eight.multiple, eight.bias, eight.eta, eight.relative) == (8, 8, 7, 0, 7)
    assert eight.cosine == pytest.approx(1)


@given(st.integers(0, 50), st.floats(0.01, 100))
def test_the_law_of_cosines_holds_and_eta_is_the_sine(seed: int, scale: float) -> None:
    g = {name: scale * tensor for name, tensor in random(seed).items()}
    found = geometry(g, random(seed + 1000))
    assert found.relative**2 == pytest.approx(found.rho**2 + 1 - 2 * found.rho * found.cosine, rel=1e-10)
    assert found.eta == pytest.approx(math.sqrt(1 - found.cosine**2), rel=1e-8)
    assert found.bias == pytest.approx(found.multiple - 1, abs=1e-12)


def test_a_difference_far_below_the_square_root_of_float64_is_seen() -> None:
    reference = random(1)
    moved = {name: tensor.clone() for name, tensor in reference.items()}
    moved["a"][0] += 1e-13
    norm = math.sqrt(sum(float(t.square().sum()) for t in reference.values()))
    assert geometry(moved, reference).relative == pytest.approx(1e-13 / norm, rel=0.01)
    assert 0 < geometry(moved, reference).eta < 1e-13


def test_a_tensor_that_only_one_side_has_counts_as_zeros_on_the_other() -> None:
    assert geometry({}, grad(3, 4)).relative == 1 and geometry({}, grad(3, 4)).rho == 0
    assert math.isinf(geometry(grad(3, 4), {}).relative)
    assert geometry({"w": grad(3, 4)["w"], "v": torch.zeros(2)}, grad(3, 4)).relative == 0


def test_nothing_against_nothing_is_no_difference() -> None:
    found = geometry(grad(0, 0), grad(0, 0))
    assert (found.relative, found.rho, found.eta, found.bias) == (0, 0, 0, 0) and math.isnan(found.cosine)


def test_weights_of_the_members_are_read_off() -> None:
    members = [random(seed) for seed in range(4)]
    weights = [0.25, 0.0, 0.5, 0.125]
    mixed = {name: sum(w * m[name] for w, m in zip(weights, members, strict=True)) for name in members[0]}
    found = member_regression(mixed, members)  # type: ignore[arg-type]
    assert found.weights == pytest.approx(weights, abs=1e-13) and found.residual < 1e-14


def test_standard_errors_are_the_spread_that_noise_gives_to_the_weights_of_members_that_are_much_alike() -> None:
    common, own = random(10), [random(seed) for seed in range(3)]
    members = [{name: common[name] + 0.1 * each[name] for name in each} for each in own]
    drawn = torch.Generator().manual_seed(1)
    weights, errors = [], []
    for _ in range(400):
        noisy = {name: sum(m[name] for m in members) + 1e-6 * torch.randn(common[name].shape, generator=drawn).double() for name in common}
        found = member_regression(noisy, members)
        weights.append(found.weights)
        errors.append(found.errors)
    spread = np.std(weights, axis=0)
    np.testing.assert_allclose(np.sqrt(np.mean(np.square(errors), axis=0)), spread, rtol=0.15)
    of_a_lone_member = 1e-6 / math.sqrt(sum(float(part.square().sum()) for part in common.values()))
    assert spread.min() > 3 * of_a_lone_member


@pytest.mark.parametrize("decades", [1, 3, 6])
def test_the_weight_of_a_member_that_is_far_shorter_than_the_sum_is_as_uncertain_as_it_is_rounded(decades: int) -> None:
    generator = np.random.default_rng(decades)
    for _ in range(100):
        lengths = 10.0 ** -generator.uniform(0, decades, size=8)
        members = [{"w": torch.from_numpy(length * generator.standard_normal(600))} for length in lengths]
        total = sum(member["w"] for member in members)
        found = member_regression({"w": total}, members)  # type: ignore[dict-item]
        assert (np.abs(found.weights - 1) <= 6 * found.errors).all(), "6 standard errors are what the ladder takes as rounding"
        assert found.errors.max() < 1e-13 * 10**decades, "and no more than that"


def test_what_no_member_explains_is_the_residual() -> None:
    found = member_regression(grad(1, 1, 0), [grad(1, 0, 0)])
    assert found.weights.tolist() == [1.0] and found.residual == pytest.approx(math.sqrt(0.5))


@pytest.mark.parametrize("other", [grad(1, 1e-9, 0), grad(2, 0, 0), grad(-3, 0, 0)])
def test_members_that_are_alike_have_the_weight_that_both_would_have(other: dict[str, torch.Tensor]) -> None:
    first, third = grad(1, 0, 0), grad(0, 1, 1)
    mixed = {name: 2 * first[name] + 2 * other[name] + 5 * third[name] for name in first}
    found = member_regression(mixed, [first, third, other])
    assert found.is_alike.tolist() == [True, False, True]
    assert found.weights == pytest.approx([2, 5, 2], rel=1e-9) and found.residual < 1e-9


def test_members_that_together_make_up_others_are_alike_and_those_beside_them_are_not() -> None:
    given = [grad(1, 0, 0, 0), grad(0, 1, 0, 0), grad(1, 1, 0, 0), grad(0, 0, 1, 1)]
    mixed = {"w": 7 * torch.stack([each["w"] for each in given]).sum(0)}
    found = member_regression(mixed, given)
    assert found.is_alike.tolist() == [True, True, True, False] and found.weights == pytest.approx([7] * 4, rel=1e-12)


def test_opposite_members_have_no_weight_in_common() -> None:
    found = member_regression(grad(0, 3, 0), [grad(1, 0, 0), grad(-1, 0, 0), grad(0, 1, 0)])
    assert np.isnan(found.weights[:2]).all() and found.weights[2] == pytest.approx(3)


def test_members_that_differ_by_a_thousandth_are_told_apart() -> None:
    given = [grad(1, 0, 0), grad(1, 1e-3, 0)]
    found = member_regression(grad(3, 1e-3, 0), given)
    assert not found.is_alike.any() and found.weights == pytest.approx([2, 1], rel=1e-9)


def test_a_member_without_a_gradient_has_no_weight_and_harms_no_other() -> None:
    found = member_regression(grad(2, 4), [grad(1, 2), grad(0, 0)])
    np.testing.assert_allclose(found.weights, [2, 0], atol=1e-14)


def test_too_few_elements_or_no_member_are_refused() -> None:
    with pytest.raises(ValueError, match="3 micro-batches cannot be told apart by 2 elements"):
        member_regression(grad(1, 2), [grad(1, 0)] * 3)
    with pytest.raises(ValueError, match="no micro-batch"):
        member_regression(grad(1, 2), [])
