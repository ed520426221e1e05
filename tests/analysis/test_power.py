"""Power and seeds needed: against a published value, simulation, and what must hold at the ends."""

import numpy as np
import pytest
from scipy.special import stdtrit

from accum_sweeps.analysis.power import paired_t_power, seeds_needed, tost_power

SHARES = {0.01: 4, 0.05: 7, 0.1: 12, 0.2: 22, 0.5: 50}  # seeds needed by path share at a margin of 0.5 sigma_tot


def all_arms_pass(margin: float, path_sd: float, seeds: int, arms: int, sweeps: int) -> float:
    """Share of simulated sweeps without a shift in which every arm passes two one-sided t tests, written out anew."""
    paths = path_sd * np.random.default_rng(seeds).standard_normal((sweeps, seeds, arms + 1))
    differences = paths[:, :, 1:] - paths[:, :, :1]
    error = differences.std(axis=1, ddof=1) / np.sqrt(seeds)
    return float((np.abs(differences.mean(axis=1)) + stdtrit(seeds - 1, 0.95) * error <= margin).all(axis=1).mean())


def test_power_of_the_paired_t_test_is_the_tabulated_one() -> None:
    # Effect size 0.5 (mean by SD of the differences), 34 pairs, two-sided .05: .808, the usual example of power programs.
    assert paired_t_power(0.5, 1 / np.sqrt(2), 34) == pytest.approx(0.808, abs=5e-4)
    assert paired_t_power(-0.5, 1 / np.sqrt(2), 34) == paired_t_power(0.5, 1 / np.sqrt(2), 34)


def test_power_without_a_shift_is_the_size() -> None:
    for alpha in (0.05, 0.01):
        assert paired_t_power(0.0, 1.0, 5, alpha) == pytest.approx(alpha, rel=1e-9)


@pytest.mark.parametrize(("seeds", "share"), [(3, 0.01), (3, 0.03), (6, 0.05), (12, 0.2), (22, 0.2)])
@pytest.mark.parametrize("arms", [1, 3])
def test_power_of_tost_is_the_simulated_one(seeds: int, share: float, arms: int) -> None:
    power, sweeps = tost_power(0.5, np.sqrt(share), seeds, arms), 10_000
    assert 0.2 < power < 0.97
    assert abs(power - all_arms_pass(0.5, np.sqrt(share), seeds, arms, sweeps)) <= 3.5 * np.sqrt(power * (1 - power) / sweeps)


def test_power_of_tost_at_its_ends() -> None:
    assert tost_power(100.0, 1.0, 5, 3) == pytest.approx(1, abs=1e-6)
    assert tost_power(1e-9, 1.0, 5) < 1e-6
    assert tost_power(0.5, 0.1, 5, 3) == pytest.approx(tost_power(50.0, 10.0, 5, 3), rel=1e-12)


def test_seeds_needed_for_four_arms() -> None:
    assert {share: seeds_needed(0.5, np.sqrt(share)) for share in SHARES} == SHARES


@pytest.mark.parametrize("share", SHARES)
def test_the_seeds_needed_do_reach_the_power(share: float) -> None:
    sweeps = 4000
    reached = all_arms_pass(0.5, np.sqrt(share), SHARES[share], 3, sweeps)
    assert reached >= 0.8 + 3 * np.sqrt(0.8 * 0.2 / sweeps)


def test_seeds_needed_are_the_fewest() -> None:
    for path_sd in (0.05, 0.3, 1.0, 7.0):
        for arms in (1, 3):
            seeds = seeds_needed(0.5, path_sd, arms)
            beta = 1 - 0.8 ** (1 / arms)
            enough = [n >= 2 * ((stdtrit(n - 1, 0.95) + stdtrit(n - 1, 1 - beta / 2)) * path_sd / 0.5) ** 2 for n in (seeds - 1, seeds)]
            assert enough[1] and (seeds == 3 or not enough[0])


def test_without_noise_three_seeds_do_and_no_margin_is_an_error() -> None:
    assert seeds_needed(0.5, 0.0) == 3
    assert seeds_needed(1e-9, 1.0) > 10**18
    for margin, path_sd in ((0.0, 1.0), (np.nan, 1.0), (1.0, np.nan), (1.0, np.inf), (1e-200, 1.0)):
        with pytest.raises(ValueError, match="margin="):
            seeds_needed(margin, path_sd)
    with pytest.raises(ValueError, match="two seeds"):
        tost_power(0.5, 1.0, 1)
