"""The sign-flip test: by hand, against plain enumeration, where it refuses, and that its generator is used."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accum_sweeps.analysis.sign_flip import EXACT_UP_TO, sign_flip_p
from accum_sweeps.plan.errors import UserError


@pytest.mark.parametrize(
    ("differences", "p"),
    [
        ([1, 2, 3], 2 / 8),  # only +++ and --- reach 6
        ([3, -1, -1], 1),  # every assignment reaches 1
        ([4, 2, -1], 4 / 8),  # 5: of +++ 7, ++- 5, +-+ 3, +-- 1 two reach it
        ([0, 1, 2], 4 / 8),  # the 0 doubles both extreme assignments
        ([0.1, 0.2, -0.3], 1),  # a sum of 0 on paper, 5.6e-17 in floating point
        ([np.nan, 1, 2, np.nan, 3], 2 / 8),
    ],
)
def test_p_values_by_hand(differences: list[float], p: float) -> None:
    assert sign_flip_p(differences, alpha=1) == p


@given(st.lists(st.integers(-9, 9), min_size=2, max_size=7))
def test_tenths_have_the_p_value_of_whole_numbers(tenths: list[int]) -> None:
    sums = [abs(sum(sign * value for sign, value in zip(signs, tenths, strict=True))) for signs in product((1, -1), repeat=len(tenths))]
    expected = sum(total >= abs(sum(tenths)) for total in sums) / len(sums)
    assert sign_flip_p([value / 10 for value in tenths], alpha=1) == expected


@pytest.mark.parametrize(("arms", "seeds"), [(2, 7), (3, 8), (4, 9), (5, 9)])
def test_too_few_seeds_for_the_family_are_refused(arms: int, seeds: int) -> None:
    family = 2 * arms - 1
    assert sign_flip_p(np.arange(1.0, seeds + 1), family=family) == 2.0 ** (1 - seeds)
    with pytest.raises(UserError, match=f"at least {seeds} seeds"):
        sign_flip_p(np.arange(1.0, seeds), family=family)


def test_many_pairs_need_a_generator_and_use_it() -> None:
    differences = np.linspace(-1, 1.6, EXACT_UP_TO + 1)
    with pytest.raises(ValueError, match="generator"):
        sign_flip_p(differences)
    generator = np.random.default_rng(1)
    first, second = (sign_flip_p(differences, generator=generator) for _ in range(2))
    assert first != second
    assert sign_flip_p(differences, generator=np.random.default_rng(1)) == first


def test_drawn_assignments_estimate_the_enumerated_p_value() -> None:
    differences = np.linspace(-1, 1.6, EXACT_UP_TO + 1)
    signs = 1 - 2 * ((np.arange(2 ** len(differences))[:, np.newaxis] >> np.arange(len(differences))) & 1)
    exact = float((np.abs(signs @ differences) >= abs(differences.sum()) * (1 - 1e-12)).mean())
    draws = 20_000
    drawn = sign_flip_p(differences, generator=np.random.default_rng(2), draws=draws)
    assert 0.05 < exact < 0.5
    assert abs(drawn - exact) <= 3 * np.sqrt(exact * (1 - exact) / draws) + 1 / draws


def test_too_few_draws_are_refused() -> None:
    with pytest.raises(UserError, match="can never reject"):
        sign_flip_p(np.ones(20), generator=np.random.default_rng(0), draws=18)
    assert sign_flip_p(np.ones(20), generator=np.random.default_rng(0), draws=19) == 1 / 20


def test_the_sign_and_order_of_differences_do_not_matter() -> None:
    differences = np.random.default_rng(3).normal(0.5, 1, 10)
    assert sign_flip_p(differences) == sign_flip_p(-differences) == sign_flip_p(differences[::-1]) == sign_flip_p(1e6 * differences)
