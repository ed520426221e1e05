"""One is one, everything else is several."""

import pytest

from accum_sweeps.plan.words import be, counted


@pytest.mark.parametrize(("number", "words"), [(0, "0 finished runs are"), (1, "1 finished run is"), (2, "2 finished runs are")])
def test_numbers_agree_with_what_they_count(number: int, words: str) -> None:
    assert f"{counted(number, 'finished run')} {be(number)}" == words
