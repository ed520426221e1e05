"""The margin's three sources: by hand, where there is none, and the size of TOST with each of them."""

import numpy as np
import pytest

from accum_sweeps.analysis.equivalence import tost_p
from accum_sweeps.analysis.margin import Margin, absolute_margin, margin_of_earlier_sweep, margin_of_reference_arm, sd_lower_limit
from accum_sweeps.analysis.paired import Floats, paired_shift, total_sd
from accum_sweeps.plan.errors import UserError

ONE_TO_FIVE = [1.0, 2.0, 3.0, 4.0, 5.0]  # variance 5/2; the .95 quantile of chi-squared with 4 degrees of freedom is 9.487729
LOWER = np.sqrt(2.5 * 4 / 9.487729036781154)
SWEEPS = 2000


def test_lower_limit_by_hand() -> None:
    assert sd_lower_limit(ONE_TO_FIVE) == pytest.approx(LOWER, rel=1e-9)
    assert sd_lower_limit([*ONE_TO_FIVE, np.nan, np.inf]) == sd_lower_limit(ONE_TO_FIVE)
    assert np.isnan(sd_lower_limit([1.0])) and np.isnan(sd_lower_limit([]))


def test_lower_limit_covers_in_95_percent() -> None:
    draws = np.random.default_rng(0).standard_normal((SWEEPS, 5))
    covered = np.mean([sd_lower_limit(row) <= 1 for row in draws])
    assert abs(covered - 0.95) <= 3.5 * np.sqrt(0.95 * 0.05 / SWEEPS)


def test_reference_arm_gives_half_the_lower_limit() -> None:
    margin = margin_of_reference_arm(ONE_TO_FIVE)
    assert margin.value == pytest.approx(LOWER / 2, rel=1e-9) and margin.sd_unit == pytest.approx(LOWER, rel=1e-9)
    assert margin.source == "0.5 x the lower 95 % limit of the SD of the reference arm (5 seeds)"


def test_fewer_than_five_finished_seeds_give_no_margin() -> None:
    margin = margin_of_reference_arm([1.0, 2.0, np.nan, 3.0])
    assert (margin.value, margin.seeds_missing) == (None, 2) and np.isnan(margin.sd_unit)
    assert margin.source == "no margin: 3 finished runs in the reference arm, 5 are needed"


def test_equal_runs_give_no_margin_and_more_would_not_help() -> None:
    assert margin_of_reference_arm([0.1] * 6) == Margin(value=None, source="no margin: all runs of the reference arm are equal")


def test_an_earlier_sweep_must_have_other_seeds() -> None:
    margin = margin_of_earlier_sweep(ONE_TO_FIVE, range(10, 15), range(5))
    assert margin.value == pytest.approx(LOWER / 2, rel=1e-9) and "earlier sweep" in margin.source
    assert margin_of_earlier_sweep([1.0, 2.0], (10, 11), (0,)).value is not None
    assert margin_of_earlier_sweep([1.0], (10,), (0,)).seeds_missing == 1
    with pytest.raises(UserError, match="seeds 3, 4 are in both"):
        margin_of_earlier_sweep(ONE_TO_FIVE, range(3, 8), range(5))


@pytest.mark.parametrize("value", [0.0, -1.0, np.inf, np.nan])
def test_a_fixed_margin_is_above_zero(value: float) -> None:
    assert absolute_margin(0.25) == Margin(value=0.25, source="given, not known to be fixed before the runs", is_late=True)
    assert absolute_margin(0.25).sd_unit == 0.5
    with pytest.raises(UserError, match=r"margin=.*: must be above 0"):
        absolute_margin(value)


def margin_from(source: str, reference: Floats, generator: np.random.Generator) -> float | None:
    if source == "fixed":
        return absolute_margin(0.5).value
    if source == "earlier":
        return margin_of_earlier_sweep(generator.standard_normal(6), "abcdef", range(len(reference))).value
    return margin_of_reference_arm(reference).value if source == "reference" else 0.5 * total_sd(reference)


def tost_size(source: str, seeds: int, share: float) -> float:
    """Rate at which TOST passes an arm that is shifted by 0.5 sigma_tot (sigma_tot = 1), the edge of what is not equivalent."""
    generator = np.random.default_rng(7)
    passed = 0
    for _ in range(SWEEPS):
        level = np.sqrt(1 - share) * generator.standard_normal(seeds)
        reference, arm = level + np.sqrt(share) * generator.standard_normal((2, seeds))
        margin = margin_from(source, reference, generator)
        assert margin is not None
        passed += tost_p(paired_shift(arm + 0.5 - reference), margin) <= 0.05
    return passed / SWEEPS


@pytest.mark.parametrize("source", ["fixed", "earlier", "reference"])
@pytest.mark.parametrize(("seeds", "share"), [(5, 0.02), (8, 0.2)])
def test_tost_keeps_its_size_with_each_source(source: str, seeds: int, share: float) -> None:
    assert tost_size(source, seeds, share) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / SWEEPS)


def test_the_estimated_sd_in_place_of_its_limit_does_not() -> None:
    assert tost_size("estimate", 5, 0.02) >= 0.1
