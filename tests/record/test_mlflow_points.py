"""Which points MLflow gets, and under which names."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accum_sweeps.record.events import Attempt, Point
from accum_sweeps.record.mlflow_points import CURVE_POINTS, NAME_LENGTH, Curves, clean_name, clean_params, metric_names, run_samples, thin
from accum_sweeps.record.store import History


def curve(steps: range, key: str = "loss") -> list[Point]:
    return [Point(step, 1000 + step, {key: step / 7}) for step in steps]


def steps_of(curves: Curves, key: str = "loss") -> list[int]:
    return [sample.step for sample in curves.samples if sample.key == key]


@pytest.mark.parametrize("planned", [1, 60, 498])
def test_a_curve_that_fits_keeps_every_point(planned: int) -> None:
    assert steps_of(thin(curve(range(planned + 1)), planned, is_over=True)) == list(range(planned + 1))


@pytest.mark.parametrize("planned", [499, 500, 501, 777, 1000, 12_345, 100_000])
def test_a_long_curve_keeps_at_most_500_points_with_first_and_last(planned: int) -> None:
    kept = steps_of(thin(curve(range(planned + 1)), planned, is_over=True))
    assert (kept[0], kept[-1]) == (0, planned)
    assert CURVE_POINTS * 0.49 <= len(kept) <= CURVE_POINTS
    gaps = [b - a for a, b in itertools.pairwise(kept)]
    assert max(gaps) - min(gaps[:-1]) <= 1


def test_a_run_that_ends_early_keeps_its_last_point_once_it_is_over() -> None:
    points = curve(range(1, 138))
    assert steps_of(thin(points, 10_000, is_over=False))[-1] == 121
    assert steps_of(thin(points, 10_000, is_over=True))[-1] == 137


def test_sparse_curves_keep_all_their_points_beside_a_dense_one() -> None:
    points = [Point(s, s, {"loss": 1.0} | ({"eval": 2.0} if s % 50 == 0 else {})) for s in range(1, 4001)]
    curves = thin(points, 4000, is_over=True)
    assert steps_of(curves, "eval") == list(range(50, 4001, 50))
    assert len(steps_of(curves)) == CURVE_POINTS


def test_a_curve_beyond_its_planned_length_stays_bounded() -> None:
    kept = steps_of(thin(curve(range(100_000)), 10, is_over=True))
    assert len(kept) < 3000
    assert kept[-1] == 99_999


@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(1, 40), st.data())
def test_what_is_kept_of_the_beginning_does_not_depend_on_the_rest(planned: int, length: int, stride: int, data: st.DataObject) -> None:
    points = curve(range(0, length, stride))
    cut = data.draw(st.integers(0, len(points)))
    some, full = thin(points[:cut], planned, is_over=False).samples, thin(points, planned, is_over=True).samples
    assert full[: len(some)] == some


def test_infinity_becomes_nan_and_is_reported_and_nan_stays() -> None:
    curves = thin([Point(1, 1, {"a": math.nan, "b": -math.inf, "c": 1.0})], 10, is_over=True)
    assert [math.isnan(sample.value) for sample in curves.samples] == [True, True, False]
    assert list(curves.altered) == ["b: -inf is stored as nan"]


def test_a_step_beyond_64_bits_is_left_out_alone() -> None:
    curves = thin([Point(1, 1, {"a": 1.0}), Point(2**63, 1, {"a": 1.0})], 10, is_over=True)
    assert [sample.step for sample in curves.samples] == [1]
    assert len(curves.altered) == 1


def test_final_values_come_last_and_only_when_the_run_is_over() -> None:
    attempt = Attempt(1, started_ms=5, points=curve(range(1, 4)), checkpoint_step=2, step=3)
    assert steps_of(run_samples(History({1: attempt}), 3)) == [1, 2]
    attempt.outcome, attempt.ended_ms, attempt.final = "finished", 99, {"wall_s": 1.5}
    samples = run_samples(History({1: attempt}), 3).samples
    assert [s.step for s in samples] == [1, 2, 3, 3]
    assert samples[-1] == ("final/wall_s", 3, 99, 1.5)


def test_names_that_collide_when_cleaned_stay_apart() -> None:
    altered: dict[str, None] = {}
    names = metric_names(["loss[delta=1.3]", "loss(delta=1.3)", "ok", "loss[delta=1.3]"], altered)
    assert names["loss[delta=1.3]"] == "loss_delta_1.3_"
    assert names["loss(delta=1.3)"].startswith("loss_delta_1.3_-")
    assert names["ok"] == "ok"
    assert len(altered) == 2


def test_long_names_with_one_beginning_stay_apart() -> None:
    one, other = clean_name("k" * 300), clean_name("k" * 299 + "j")
    assert one != other
    assert len(one) == len(other) == NAME_LENGTH


def test_parameters_become_text_and_the_cut_is_said() -> None:
    altered: dict[str, None] = {}
    params = clean_params({"a": True, "b": None, "c": 1e-3, "d": "x" * 7000, "e": "nul\0 and \ud800"}, 6000, altered)
    assert (params["a"], params["b"], params["c"]) == ("true", "null", "0.001")
    assert len(params["d"]) == 6000
    assert params["d"].endswith("(cut, 7000 characters)")
    assert params["e"] == "nul\\0 and \\ud800"
    assert len(altered) == 2
