"""From table rows to arrays: what counts, what is missing, and which environment is compared."""

import numpy as np
import pandas as pd
import pytest

from accum_sweeps.analysis.cells import Cells, by_data_seed, setups
from accum_sweeps.plan.errors import UserError
from tests.analysis.roots import table

Y: dict[int, list[float | str]] = {1: [1.0, 2.0, 3.0], 4: [1.5, "diverged", "running"]}


def only(frame: pd.DataFrame) -> Cells:
    [cells] = setups(frame, "eval_loss_final")
    return cells


def test_values_and_outcomes_by_seed_and_arm() -> None:
    cells = only(table(Y))
    assert cells.accum == (1, 4) and cells.seeds == ("0", "1", "2")
    assert cells.y[:, 0].tolist() == [1, 2, 3] and cells.y[0, 1] == 1.5 and np.isnan(cells.y[1:, 1]).all()
    assert cells.outcome[:, 1].tolist() == ["finished", "diverged", "running"]
    assert cells.complete.tolist() == [True, True, False]
    assert cells.count("finished").tolist() == [3, 1] and cells.count("diverged").tolist() == [0, 1]


def test_the_order_of_rows_and_the_kind_of_labels_change_nothing() -> None:
    frame = table(Y)
    shuffled = frame.sample(frac=1, random_state=0)
    for other in (shuffled, *(frame.astype({"status": kind, "setup_id": kind}) for kind in ("category", "object"))):
        cells = only(other)
        np.testing.assert_array_equal(cells.y, only(frame).y)
        assert cells.outcome.tolist() == only(frame).outcome.tolist()


def test_strings_with_and_without_arrow_give_the_same() -> None:
    frame = table(Y)
    for storage in ("python", "pyarrow"):
        stored = frame.astype({"status": pd.StringDtype(storage), "setup_id": pd.StringDtype(storage), "setup": pd.StringDtype(storage)})
        np.testing.assert_array_equal(only(stored).y, only(frame).y)
        assert only(stored).outcome.tolist() == only(frame).outcome.tolist()


def test_replicates_are_averaged_and_identical_ones_stay_exact() -> None:
    same = pd.concat([table({1: [0.1], 2: [0.3]}, replicate=r) for r in range(3)])
    assert only(same).y.tolist() == [[0.1, 0.3]]
    other = pd.concat([table({1: [1.0]}, replicate=0), table({1: [2.0]}, replicate=1)])
    assert only(other).y.tolist() == [[1.5]]


def test_a_diverged_replicate_makes_the_cell_diverged() -> None:
    frame = pd.concat([table({1: [1.0]}, replicate=0), table({1: ["diverged"]}, replicate=1)])
    assert only(frame).outcome.tolist() == [["diverged"]] and np.isnan(only(frame).y).all()


def test_of_cells_with_different_numbers_of_replicates_the_first_one_counts() -> None:
    """A mean of two values has half the variance of one value: they cannot be compared as equals."""
    frame = pd.concat([table({1: [1.0, 3.0], 2: [1.5, 3.5]}, replicate=0), table({1: [2.0]}, replicate=1)])
    for rows in (frame, frame.iloc[::-1]):
        cells = only(rows)
        assert cells.y.tolist() == [[1.0, 1.5], [3.0, 3.5]]
        assert sorted(cells.replicates.value.tolist()) == [1.0, 1.5, 2.0, 3.0, 3.5] and cells.replicates.reruns() == (1, 0)
    same = pd.concat([frame, table({2: [1.5]}, replicate=1)])
    assert only(same).replicates.reruns() == (2, 1)


def test_controls_are_no_replicates_and_stand_by_kind_beside_their_cells() -> None:
    frame = pd.concat(
        [
            table({1: [1.0, 2.0], 2: [1.1, 2.1]}, control="none"),
            table({2: [9.0, "failed"]}, control="ulp_weights"),
            table({2: ["diverged", "planned"]}, control="permute"),
        ]
    )
    cells = only(frame)
    assert cells.y.tolist() == [[1.0, 1.1], [2.0, 2.1]] and len(cells.replicates.value) == 4
    assert list(cells.controls) == ["ulp_weights"]
    np.testing.assert_array_equal(cells.controls["ulp_weights"], [[np.nan, 9.0], [np.nan, np.nan]])


def test_controls_of_another_environment_are_not_taken() -> None:
    frame = pd.concat([table({1: [1.0], 2: [1.1]}, env_id="a", control="none"), table({2: [9.0]}, env_id="b", control="regroup")])
    assert only(frame).controls == {} and only(frame).mixed == ()


def test_a_finished_run_without_the_response_is_no_value() -> None:
    cells = only(table({1: [1.0, float("nan"), float("inf")]}))
    assert cells.outcome[:, 0].tolist() == ["finished", "no value", "no value"]
    assert not cells.complete[1]


def test_an_arm_that_was_never_planned_for_a_seed_is_absent() -> None:
    cells = only(table({1: [1.0, 2.0], 2: [1.0]}))
    assert cells.outcome.tolist() == [["finished", "finished"], ["finished", "absent"]]


def test_arms_of_several_environments_are_not_compared() -> None:
    frame = pd.concat([table({1: [1.0, 2.0], 2: [1.0, 2.0]}, env_id="a"), table({4: [5.0, 6.0]}, env_id="b")])
    cells = only(frame)
    assert cells.mixed == ("0", "1")
    assert cells.outcome.tolist() == [["finished", "finished", "other environment"]] * 2
    assert np.isnan(cells.y[:, 2]).all()


def test_a_seed_whole_in_one_environment_is_compared_there() -> None:
    frame = pd.concat([table({1: [1.0], 2: [2.0]}, env_id="a"), table({1: [7.0]}, env_id="b")])
    cells = only(frame)
    assert cells.mixed == () and cells.y.tolist() == [[1.0, 2.0]]


def test_runs_not_started_yet_have_no_environment_and_mix_nothing() -> None:
    frame = pd.concat([table({1: [1.0]}, env_id="a"), table({2: ["planned"]}, env_id=None)])
    assert only(frame).mixed == () and only(frame).outcome.tolist() == [["finished", "planned"]]


def test_seed_streams_set_apart_are_seeds_of_their_own() -> None:
    frame = pd.concat([table({1: [1.0]}, seed_init=0, seed_data=d, seed_dropout=0) for d in (0, 5)])
    assert only(frame).seeds == ("0", "0 (data 5)")


def test_a_run_that_two_sweeps_share_counts_once() -> None:
    frame = table({1: [1.0]}, run_id="r", env_id="e")
    assert only(pd.concat([frame.assign(sweep="a"), frame.assign(sweep="b", eval_loss_final=1.0)])).y.tolist() == [[1.0]]


def test_one_step_comparisons_are_no_setups_to_judge() -> None:
    frame = pd.concat([table({1: [1.0]}, setup="t", measure="training"), table({1: [float("nan")]}, setup="o", measure="one_step")])
    assert [cells.setup for cells in setups(frame, "eval_loss_final")] == ["t"]
    assert [cells.setup for cells in setups(frame.convert_dtypes(dtype_backend="pyarrow"), "eval_loss_final")] == ["t"]


def test_setups_come_in_the_order_of_the_table() -> None:
    frame = pd.concat([table({1: [1.0]}, setup=name) for name in ("z", "a")])
    assert [cells.setup for cells in setups(frame, "eval_loss_final")] == ["z", "a"]


@pytest.mark.parametrize(
    ("frame", "response", "message"),
    [
        (pd.DataFrame({"accum": [1]}), "eval_loss_final", "lacks the columns seed, status"),
        (table(Y).drop(columns=["setup", "setup_id"]), "eval_loss_final", "lacks the columns setup_id"),
        (table(Y), "eval_los_final", "did you mean eval_loss_final"),
        (table(Y), "status", "holds no numbers"),
    ],
)
def test_a_table_that_cannot_be_used_names_what_is_wrong(frame: pd.DataFrame, response: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        list(setups(frame, response))


def test_seeds_that_share_their_data_are_taken_together() -> None:
    frames = [
        table({1: [float(n)], 2: [n + 0.5 if n != 3 else "diverged"]}, control="none").assign(
            seed=n, seed_init=n, seed_dropout=n, seed_data=n // 2
        )
        for n in range(6)
    ]
    whole = only(pd.concat(frames))
    grouped = by_data_seed(whole)
    assert grouped.is_grouped and grouped.seeds == ("data 0", "data 1", "data 2") and grouped.y[:, 0].tolist() == [0.5, 2.5, 4.5]
    assert grouped.outcome[:, 1].tolist() == ["finished", "diverged", "finished"] and grouped.y[2, 1] == 5.0 and np.isnan(grouped.y[1, 1])


def test_seeds_of_their_own_data_or_all_of_the_same_are_left_alone() -> None:
    for data in (range(4), [7] * 4):
        frames = [table({1: [1.0]}).assign(seed=n, seed_init=n, seed_dropout=n, seed_data=d) for n, d in zip(range(4), data, strict=True)]
        cells = only(pd.concat(frames))
        assert by_data_seed(cells) is cells
