"""The stored rates of the verdict rules: made from these truths and these rules, and as low as they must be."""

import dataclasses
from typing import Any

import numpy as np
import pandas as pd
import pytest

from accum_sweeps.analysis.paired import Floats
from accum_sweeps.analysis.rates import TRUTHS, Truth, draw, rates_table, stored_rates, verdict_rates
from accum_sweeps.analysis.rules import CODES

STORED = stored_rates()
FIELDS = [field.name for field in dataclasses.fields(Truth)]


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(name): value for name, value in row.items()} for row in table.to_dict("records")]


def test_the_stored_table_is_of_the_present_truths() -> None:
    assert list(STORED.columns) == [*FIELDS, "sweeps", *CODES]
    assert [Truth(**row) for row in records(STORED[FIELDS])] == list(TRUTHS)
    assert STORED[list(CODES)].sum(axis=1).to_numpy() == pytest.approx(1, abs=1e-9)


def difference(truths: slice, seed: int, sweeps: int) -> tuple[Floats, Floats]:
    """How far the rates of a new simulation are from the stored ones, and the standard error of that with both together."""
    generator = np.random.default_rng(seed)
    reduced = np.array([list(verdict_rates(truth, generator, sweeps).values()) for truth in TRUTHS[truths]])
    stored, number = STORED[list(CODES)].to_numpy()[truths], STORED["sweeps"].to_numpy()[truths, np.newaxis]
    together = (reduced * sweeps + stored * number) / (sweeps + number)
    return reduced - stored, np.sqrt(together * (1 - together) * (1 / sweeps + 1 / number))


def test_a_reduced_simulation_agrees_with_every_fourth_row_to_three_standard_errors() -> None:
    """Half a sweep is added: the binomial distribution's steps near rates of 0 and 1."""
    off, error = difference(slice(None, None, 4), 0, 400)
    assert (np.abs(off) <= 3 * error + 0.5 / 400).all()


def test_a_smaller_one_agrees_with_all_rows_together() -> None:
    """Squared z values of the rates that are not rare: 1 each on average, each with a variance near 2; and none at 5."""
    off, error = difference(slice(None), 1, 100)
    z = (off / np.where(error > 0, error, 1))[error > np.sqrt(0.05 * 0.95 / 100)]
    assert len(z) > 50
    assert abs((z**2).mean() - 1) <= 4 * np.sqrt(2 / len(z)) and np.abs(z).max() < 5


def rates(**truth: object) -> list[dict[str, Any]]:
    """The stored rows whose truth agrees in these fields."""
    rows = [row for row in records(STORED) if all(row[name] == value for name, value in truth.items())]
    assert rows
    return rows


def limit(alpha: float, sweeps: float) -> float:
    return float(alpha + 3 * np.sqrt(alpha * (1 - alpha) / sweeps))


def test_a_true_null_is_rarely_called_an_effect() -> None:
    rows = rates(shift=0.0, lambda_=1.0, scale_spread=1.0, dependence=0.0, diverging_last=0.0) + rates(
        shift=0.0, lambda_=1.0, diverging=0.2
    )
    assert len(rows) == 18
    for row in rows:
        assert row["effect"] + row["negligible"] <= limit(0.05, row["sweeps"])


def test_a_shift_of_a_margin_is_rarely_called_nothing() -> None:
    for row in rates(shift=1.0):
        assert row["indistinguishable"] + row["equivalent"] <= limit(0.05, row["sweeps"])


def test_four_times_the_variance_of_rounding_is_rarely_called_rounding() -> None:
    for row in rates(lambda_=4.0) + rates(lambda_=16.0):
        assert row["indistinguishable"] <= limit(0.05, row["sweeps"])


def test_what_controls_share_with_their_runs_is_rarely_called_rounding() -> None:
    for row in rates(dependence=100.0):
        assert row["indistinguishable"] <= limit(0.05, row["sweeps"])


def test_without_controls_nothing_is_called_rounding() -> None:
    assert [row["indistinguishable"] for row in rates(has_controls=False)] == [0, 0]


def test_a_small_path_is_called_equivalent_and_a_chaotic_one_inconclusive() -> None:
    (small,) = rates(seeds=5, path_share=0.02, shift=0.0, lambda_=1.0, margin="fixed", scale_spread=1.0, diverging_last=0.0)
    assert small["indistinguishable"] + small["equivalent"] >= 0.9
    for row in rates(path_share=0.9):
        assert row["inconclusive"] >= 0.9 and row["indistinguishable"] + row["equivalent"] <= 0.005


def test_divergence_of_one_arm_is_never_called_alike() -> None:
    for row in rates(diverging_last=0.5) + rates(diverging_last=0.9):
        assert row["negligible"] + row["indistinguishable"] + row["equivalent"] <= limit(0.05, row["sweeps"])


def test_divergence_of_one_arm_is_an_effect_where_it_can_be_assessed() -> None:
    (row,) = rates(diverging_last=0.9)
    assert row["effect"] >= 0.9 * (1 - row["not_assessable"]) and row["negligible"] <= 0.01


def test_a_draw_depends_on_its_generator_alone() -> None:
    first, second = (draw(TRUTHS[0], np.random.default_rng(3)) for _ in range(2))
    assert first == second != draw(TRUTHS[0], np.random.default_rng(4))


def test_a_table_has_a_generator_for_every_row() -> None:
    first, second = (rates_table(np.random.default_rng(3), 3) for _ in range(2))
    assert first.equals(second) and list(first.columns) == list(STORED.columns)
    assert not first.equals(rates_table(np.random.default_rng(4), 3))
