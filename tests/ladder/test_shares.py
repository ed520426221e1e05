"""What becomes of each micro-batch in a gradient: shares and their patterns, where both are known beforehand."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from accum_sweeps.ladder.observation import Member
from accum_sweeps.ladder.shares import Pattern, Shares, combined, norm, pattern, shares

TERMS = (1.0, 2.0, 5.0, 4.0)
N = sum(TERMS)
EXACT = 1e-13  # the least squares of four well-conditioned columns of 12 elements in float64
# Gradients of summed losses in two tensors: no two of them alike, none a sum of the others.
GRADIENTS = torch.randn(4, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def member(values: torch.Tensor, terms: float = 1.0) -> Member:
    return Member(loss=1.0, terms=terms, gradient={"weight": values[:8].reshape(2, 4), "bias": values[8:]})


def members(terms: Sequence[float] = TERMS) -> list[Member]:
    return [member(values, n) for values, n in zip(GRADIENTS, terms, strict=True)]


def made_of(weights: Sequence[float], terms: Sequence[float] = TERMS) -> Shares:
    """Of the gradient in which micro-batch i has the share ``weights[i]``."""
    given = members(terms)
    return shares(combined(given, [weight / sum(terms) for weight in weights]), given)


def of_means(terms: Sequence[float], factor: float = 1.0) -> list[float]:
    """The shares where each micro-batch's own mean counts factor / k."""
    return [factor * sum(terms) / n / len(terms) for n in terms]


@pytest.mark.parametrize("weights", [(1, 1, 1, 1), (4, 4, 4, 4), (1, 0, -2, 0.3), (8, 4, 2, 1), (0, 0, 0, 0)])
def test_shares_are_read_off_whatever_they_are(weights: tuple[float, ...]) -> None:
    found = made_of(weights)
    assert found.values == pytest.approx(weights, abs=EXACT) and found.is_told
    assert found.rest < EXACT and found.off == pytest.approx(max(abs(w - 1) for w in weights), abs=EXACT)


def test_the_mean_of_means_counts_short_micro_batches_more() -> None:
    # 12 terms in 4 micro-batches: a term of the first counts 12 / 1 / 4 = 3 times, of the third 12 / 5 / 4 = 0.6 times.
    assert made_of(of_means(TERMS)).values == pytest.approx([3, 1.5, 0.6, 0.75], abs=EXACT)
    given = members()
    means = [float(norm(m.gradient)) for m in given]
    assert norm(combined(given[:1], [1 / TERMS[0]])) == pytest.approx(means[0], rel=1e-15)


def test_what_is_of_no_micro_batch_is_the_rest() -> None:
    given = members()
    right = combined(given, [1 / N] * 4)
    # A direction that is orthogonal to all four, as long as the right gradient is: of the sum it is 1 / sqrt 2.
    apart = torch.linalg.svd(GRADIENTS).Vh[-1] * norm(right)
    found = shares({name: part + member(apart).gradient[name] for name, part in right.items()}, given)
    assert found.values == pytest.approx([1, 1, 1, 1], abs=EXACT)
    assert found.rest == pytest.approx(1 / math.sqrt(2), rel=1e-12)
    assert found.sums.relative == pytest.approx(1, rel=1e-12)


KNOWN: dict[str, tuple[Sequence[float], Pattern]] = {
    "right": ((1, 1, 1, 1), Pattern(kind="right")),
    "missing division": ((4, 4, 4, 4), Pattern(kind="scaled", factor=4.0)),
    "divided twice": ((0.25,) * 4, Pattern(kind="scaled", factor=0.25)),
    "turned round": ((-1,) * 4, Pattern(kind="scaled", factor=-1.0)),
    "means": (of_means(TERMS), Pattern(kind="means", factor=1.0)),
    "means, not divided": (of_means(TERMS, 4.0), Pattern(kind="means", factor=4.0)),
    "first lost": ((0, 1, 1, 1), Pattern(kind="lost", lost=(0,), rest="right")),
    "last alone": ((0, 0, 0, 1), Pattern(kind="lost", lost=(0, 1, 2), rest="right")),
    "lost, the others scaled": ((2, 0, 2, 2), Pattern(kind="lost", lost=(1,), rest="scaled", factor=2.0)),
    "lost, the others odd": ((2, 0, 3, 7), Pattern(kind="lost", lost=(1,), rest="other")),
    "growing": ((1 / 8, 1 / 4, 1 / 2, 1), Pattern(kind="growing", factor=2.0)),
    "falling": ((8, 4, 2, 1), Pattern(kind="growing", factor=0.5)),
    "growing to another level": ((1, 2, 4, 8), Pattern(kind="other")),
    "none": ((0, 0, 0, 0), Pattern(kind="none", factor=0.0)),
    "other": ((1, 1.7, 0.6, 1.2), Pattern(kind="other")),
}


@pytest.mark.parametrize("name", KNOWN)
def test_shares_look_like_the_pattern_that_they_were_made_by(name: str) -> None:
    weights, expected = KNOWN[name]
    found = pattern(made_of(weights), 1e-9)
    assert (found.kind, found.lost, found.rest) == (expected.kind, expected.lost, expected.rest)
    assert found.factor == pytest.approx(expected.factor, rel=1e-12)


def test_with_as_many_terms_everywhere_a_mean_of_means_is_right() -> None:
    assert pattern(made_of(of_means((3, 3, 3, 3)), (3, 3, 3, 3)), 1e-9).kind == "right"


@pytest.mark.parametrize(("off", "kind"), [(0.9e-3, "right"), (1.5e-3, "other")])
def test_the_tolerance_is_of_a_single_share(off: float, kind: str) -> None:
    assert pattern(made_of((1, 1, 1 + off, 1)), 1e-3).kind == kind


@pytest.mark.parametrize(("kind", "scale"), [("right", 2.0), ("scaled", 2.0), ("means", 2.0), ("lost", None), ("growing", None)])
def test_a_scale_is_told_where_no_micro_batch_is_favoured(kind: str, scale: float | None) -> None:
    assert Pattern(kind=kind, factor=2.0).scale == scale


# --- where micro-batches cannot be told apart --------------------------------------------------------------------


def collinear() -> list[Member]:
    """The second micro-batch is twice the first, with twice its terms; the others are directions of their own."""
    first, third, fourth = GRADIENTS[:3]
    return [member(first, 3.0), member(2 * first, 6.0), member(third, 1.0), member(fourth, 2.0)]


def test_of_micro_batches_that_are_alike_the_common_share_is_known() -> None:
    given = collinear()
    right = shares(combined(given, [1 / 12] * 4), given)
    assert [math.isnan(value) for value in right.values] == [True, True, False, False]
    assert right.values[2:] == pytest.approx([1, 1], abs=EXACT) and right.of_alike == pytest.approx([1, 1], abs=EXACT)
    assert right.is_told and right.off < EXACT and right.rest < EXACT
    assert pattern(right, 1e-9).kind == "right"


ALIKE: dict[str, tuple[Sequence[float], Pattern]] = {
    "scaled": ((3, 3, 3, 3), Pattern(kind="scaled", factor=3.0)),
    "means": (of_means((3, 6, 1, 2)), Pattern(kind="means")),
    "both lost": ((0, 0, 1, 1), Pattern(kind="other")),  # one of them and a half of the other would look the same
    "one of them lost": ((1, 0, 1, 1), Pattern(kind="other")),
    "lost beside them": ((1, 1, 0, 1), Pattern(kind="lost", lost=(2,), rest="right")),
    "growing": ((1 / 8, 1 / 4, 1 / 2, 1), Pattern(kind="growing", factor=2.0)),
    "all lost": ((0, 0, 0, 0), Pattern(kind="none", factor=0.0)),
    "they alone are left": ((1, 1, 0, 0), Pattern(kind="lost", lost=(2, 3), rest="right")),
}


@pytest.mark.parametrize("name", ALIKE)
def test_micro_batches_beside_those_that_are_alike_are_told_apart(name: str) -> None:
    weights, expected = ALIKE[name]
    given = collinear()
    found = pattern(shares(combined(given, [weight / 12 for weight in weights]), given), 1e-9)
    assert (found.kind, found.lost) == (expected.kind, expected.lost)
    assert found.factor == pytest.approx(expected.factor, rel=1e-9)


def test_where_all_are_alike_the_sum_alone_is_known() -> None:
    given = collinear()[:2]
    right = shares(combined(given, [1 / 9] * 2), given)
    assert not right.is_told and right.off < EXACT and right.rest < EXACT and pattern(right, 1e-9).kind == "right"
    assert pattern(shares(combined(given, [1 / 3] * 2), given), 1e-9).factor == pytest.approx(3, rel=1e-12)


@pytest.mark.parametrize("factor", [2.0, 1.1])
def test_early_shares_of_many_micro_batches_vanish_where_each_counts_more_than_the_one_before(factor: float) -> None:
    given = [member(values) for values in torch.randn(64, 600, dtype=torch.float64, generator=torch.Generator().manual_seed(5))]
    weights = [factor ** (place - 63) for place in range(64)]
    found = pattern(shares(combined(given, [weight / 64 for weight in weights]), given), 1e-6)
    assert found.kind == "growing" and found.factor == pytest.approx(factor, rel=1e-5)
    lost = pattern(shares(combined(given, [0.0] * 62 + [0.5 / 64, 1 / 64]), given), 1e-6)
    assert lost.kind == "lost", "what comes before a half would be seen if it were a quarter"


def test_a_micro_batch_without_a_gradient_has_no_share_and_disturbs_none() -> None:
    given = [*members(), member(torch.zeros(12).double(), 3.0)]
    found = shares(combined(given, [1 / 15] * 5), given)
    assert found.values[:4] == pytest.approx([1] * 4, abs=EXACT) and math.isnan(found.values[4])
    assert found.is_told and found.off < EXACT and pattern(found, 1e-9).kind == "right"


def test_a_parameter_that_only_some_micro_batches_use_counts_as_zeros_in_the_others() -> None:
    given = members()
    given[1] = Member(loss=1.0, terms=2.0, gradient={"bias": GRADIENTS[1, 8:]})
    found = shares(combined(given, [1 / N] * 4), given)
    assert found.values == pytest.approx([1] * 4, abs=EXACT)


def test_more_micro_batches_than_elements_are_judged_as_a_whole() -> None:
    given = [Member(loss=1.0, terms=float(n), gradient={"w": GRADIENTS[n, :2]}) for n in (1, 2, 3)]
    right = shares(combined(given, [1 / 6] * 3), given)
    assert not right.is_told and all(math.isnan(value) for value in right.values)
    assert pattern(right, 1e-9).kind == "right"
    tripled = shares(combined(given, [1 / 2] * 3), given)
    assert pattern(tripled, 1e-9).factor == pytest.approx(3, rel=1e-12) and tripled.off == pytest.approx(2, rel=1e-12)


@pytest.mark.parametrize("place", ["gradient", "member"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_has_no_shares_and_is_not_called_right(place: str, value: float) -> None:
    given: list[Any] = members()
    gradient = combined(given, [1 / N] * 4)
    (gradient if place == "gradient" else given[2].gradient)["bias"][0] = value
    found = shares(gradient, given)
    assert not found.is_told and all(math.isnan(share) for share in found.values)
    assert pattern(found, 1e-3).kind == "other"


def test_one_micro_batch_alone_is_right_scaled_or_missing() -> None:
    given = members()[:1]
    kinds = [pattern(shares(combined(given, [share]), given), 1e-9) for share in (1.0, 1.03, 0.0)]
    assert [found.kind for found in kinds] == ["right", "scaled", "none"] and kinds[1].factor == pytest.approx(1.03, rel=1e-12)
