"""Numbers are shown with the digits that their uncertainty allows."""

import pytest

from accum_sweeps.analysis.words import arms, decimals, interval, listed, plain, rounded_up, signed


@pytest.mark.parametrize(("uncertainty", "places"), [(0.012, 3), (0.0999, 3), (1.0, 1), (25.0, 0), (3e-9, 10), (0.0, 4), (float("nan"), 4)])
def test_two_significant_digits_of_the_uncertainty(uncertainty: float, places: int) -> None:
    assert decimals(uncertainty) == places


def test_signed_numbers() -> None:
    assert signed(0.01234, 3) == "+0.012"
    assert signed(-0.01234, 4) == "-0.0123"
    assert signed(0.0, 3) == "0"
    assert signed(-1e-9, 3) == "0.000"
    assert signed(3.21e-9, 10) == "+3.2e-09"
    assert signed(float("nan"), 2) == "?"
    assert plain(2.5, 2) == "2.50" and plain(-2.5, 1) == "-2.5"


def test_intervals() -> None:
    assert interval(-0.5, 1.0, 1) == "[-0.5, +1.0]"
    assert interval(float("nan"), float("nan"), 1) == ""


BOUNDS = [(0.1201, "0.13"), (0.12, "0.12"), (1.51e-9, "1.6e-09"), (0.0, "0"), (9.91, "10"), (131.0, "140"), (0.2, "0.20")]


@pytest.mark.parametrize(("value", "words"), BOUNDS)
def test_bounds_are_never_rounded_down(value: float, words: str) -> None:
    assert rounded_up(value) == words
    assert float(rounded_up(value)) >= value


def test_lists() -> None:
    assert listed([2]) == "2" and listed([2, 4]) == "2 and 4" and arms((2, 4, 8)) == "k=2, 4 and 8"
