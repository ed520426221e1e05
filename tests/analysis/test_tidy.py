"""Somebody's table, whatever its types and gaps: the same verdict, or a sentence that names what is wrong."""

import re
import warnings
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from accum_sweeps.analysis.component_tables import components
from accum_sweeps.analysis.load import load
from accum_sweeps.analysis.parse_columns import number, whole, words
from accum_sweeps.analysis.tidy import OWN, TableWarning
from accum_sweeps.analysis.verdict import Verdict, verdict
from accum_sweeps.plan.errors import UserError

NAMES: dict[str, Any] = {"accum": "k", "seed": "s", "response": "loss"}


def runs(seeds: int = 6, arms: tuple[int, ...] = (1, 2, 4)) -> pd.DataFrame:
    """A column each for accumulation factor, seed and loss; no two losses are equal."""
    noise = np.random.default_rng(0).normal(0, 1e-3, (seeds, len(arms)))
    return pd.DataFrame([{"k": k, "s": s, "loss": 2.5 + 0.03 * s + noise[s, i]} for s in range(seeds) for i, k in enumerate(arms)])


def judged(frame: pd.DataFrame, **names: Any) -> Verdict:
    names = {**NAMES, **names}
    [found] = verdict(load(frame, **names), response=names["response"])
    return found


def told(frame: pd.DataFrame, **names: Any) -> tuple[pd.DataFrame, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results = load(frame, **{**NAMES, **names})
    assert {each.category for each in caught} <= {TableWarning}
    return results, [str(each.message).removeprefix("the table: ") for each in caught]


def test_rows_become_runs_under_the_names_that_verdicts_know() -> None:
    results = load(runs(2), **NAMES)
    assert list(results.columns) == [*OWN, "loss"]
    assert results["loss"].tolist() == runs(2)["loss"].tolist() and results["accum"].tolist() == [1, 2, 4] * 2
    assert set(results["setup"]) == {"the table"} and set(results["status"]) == {"finished"} and set(results["control"]) == {"none"}
    assert results["run_id"].is_unique and set(results["replicate"]) == {0}


TYPES: dict[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
    "shuffled": lambda frame: frame.sample(frac=1, random_state=1),
    "categories": lambda frame: frame.astype("category"),
    "objects": lambda frame: frame.astype(object),
    "text": lambda frame: frame.astype(str),
    "text with a point": lambda frame: frame.astype(float).astype(str),
    "Arrow": lambda frame: frame.convert_dtypes(dtype_backend="pyarrow"),
    "Arrow text": lambda frame: pa.Table.from_pandas(frame.astype(str)).to_pandas(types_mapper=pd.ArrowDtype),
    "nullable": lambda frame: frame.convert_dtypes(),
    "unsigned": lambda frame: frame.astype({"k": "uint64", "s": "uint8"}),
    "decimals": lambda frame: frame.assign(loss=frame["loss"].map(repr).map(Decimal)),
    "an index that repeats": lambda frame: frame.set_index(pd.Index([0] * len(frame))),
    "seeds in words": lambda frame: frame.assign(s="seed-" + frame["s"].astype(str)),
    "seeds beyond 64 bits": lambda frame: frame.assign(s=[int(seed) + 2**70 for seed in frame["s"]]),
    "seeds below 0": lambda frame: frame.assign(s=frame["s"] - 9),
}


@pytest.mark.parametrize("name", TYPES)
def test_types_and_order_of_a_table_change_no_digit(name: str) -> None:
    expected = judged(runs()).to_frame()
    pd.testing.assert_frame_equal(judged(TYPES[name](runs())).to_frame(), expected, check_exact=True)
    found, usual = [components(load(frame, **NAMES), response="loss").to_frame() for frame in (TYPES[name](runs()), runs())]
    pd.testing.assert_frame_equal(found, usual, check_exact=True)


def test_a_perplexity_is_judged_as_its_logarithm() -> None:
    frame = runs().assign(perplexity=lambda table: np.exp(table["loss"]))
    found, usual = [judged(frame, response=name).to_frame()["shift"].to_numpy(np.float64) for name in ("perplexity", "loss")]
    np.testing.assert_allclose(found, usual, rtol=1e-9)
    frame.loc[3, "perplexity"] = -1.0
    results, notes = told(frame, response="perplexity")
    assert "1 row has a perplexity that is not above 0, which none can be (row 4)" in notes
    assert np.isnan(results["perplexity"][3]) and results["perplexity"].notna().sum() == len(frame) - 1


@pytest.mark.parametrize("value", ["fp32", 0, -4, 2.5, True, float("inf"), "", "4x", pd.Timestamp(0), 1e30])
def test_what_is_no_accumulation_factor_is_named_with_its_row(value: Any) -> None:
    frame = runs().astype({"k": object})
    frame.loc[4, "k"] = value
    if value == "":
        _, notes = told(frame)
        assert notes == ["1 row is left out, without a value of k (row 5)"]
        return
    with pytest.raises(UserError, match=re.escape(f"column 'k', row 5: {frame.loc[4, 'k']!r} is no accumulation factor; allowed are")):
        load(frame, **NAMES)


def test_rows_without_factor_or_seed_are_left_out_and_told() -> None:
    frame = runs().astype({"k": object, "s": object})
    frame.loc[[0, 1, 2, 7], "k"] = [None, "None", np.nan, pd.NA]
    frame.loc[5, "s"] = None
    results, notes = told(frame)
    assert len(results) == len(frame) - 5
    assert notes == [
        "4 rows are left out, without a value of k (row 1, row 2, row 3 and 1 more)",
        "1 row is left out, without a value of s (row 6)",
    ]


def test_equal_rows_count_once_and_different_ones_of_a_cell_are_reruns() -> None:
    results, notes = told(pd.concat([runs(), runs()]))
    assert len(results) == len(runs()) and notes[0].startswith(
        "18 rows are the same as an earlier row in every column, counted once (row 19, "
    )
    results, notes = told(pd.concat([runs(), runs().assign(loss=lambda table: table["loss"] + 1e-4)]))
    assert sorted(set(results["replicate"])) == [0, 1] and len(notes) == 1
    assert notes[0].startswith("18 rows have the setup, accumulation factor and seed of an earlier row, taken as reruns")


def test_named_replicates_are_no_surprise_unless_they_repeat() -> None:
    frame = pd.concat([runs().assign(again="a"), runs().assign(again="b", loss=lambda table: table["loss"] + 1e-4)])
    results, notes = told(frame, replicate="again")
    assert notes == [] and results["replicate"].tolist() == [0] * 18 + [1] * 18
    _, notes = told(frame.assign(again=7), replicate="again")
    assert len(notes) == 1 and notes[0].startswith(
        "18 rows have the setup, accumulation factor and seed of an earlier row, and its again, taken as"
    )


def test_without_a_seed_there_is_one_seed_and_no_verdict() -> None:
    four = pd.DataFrame({"k": [1, 2, 4, 4], "perplexity": [13.268, 13.303, 13.271, 13.414]})
    results, notes = told(four, seed=None, response="perplexity")
    assert any("all rows count as one seed" in note for note in notes) and any("1 row has the setup" in note for note in notes)
    [found] = verdict(results, response="perplexity")
    assert found.code == "not_assessable" and "at least 3 are needed" in found.sentence


def test_each_combination_of_the_named_settings_is_a_setup() -> None:
    lower = runs().assign(lr="1e-4", norm="layer", loss=lambda table: table["loss"] + 1)
    frame = pd.concat([runs().assign(lr="0.001", norm="layer"), lower, lower.assign(lr="0.0001", s=lower["s"] + 50)])
    results, notes = told(frame, setup=["lr", "norm"])
    assert notes == [] and results["setup"].unique().tolist() == ["lr=0.001 norm=layer", "lr=0.0001 norm=layer"]
    assert [len(found.cells.seeds) for found in verdict(results, response="loss")] == [6, 12]


def test_settings_that_are_no_numbers_stay_as_they_are_written() -> None:
    assert words(pd.Series(["007", "7", "x"])) == ["007", "7", "x"]
    assert words(pd.Series(["1e-3", 0.001, 8.0, "8", None, 2**70 + 1], dtype=object)) == [
        "0.001",
        "0.001",
        "8",
        "8",
        "none",
        str(2**70 + 1),
    ]
    assert words(pd.Series([1.0, 1 + 2**-52, np.nan])) == ["1", "1.0000000000000002", "none"]


def test_statuses_may_be_mlflows_or_those_of_a_results_table() -> None:
    statuses = ["RUNNING", "FAILED", "killed", "Finished", "lost", "diverged"]
    results, _ = told(runs().assign(state=statuses * 3), status="state")
    assert results["status"][:6].tolist() == ["running", "failed", "cancelled", "finished", "lost", "diverged"]
    with pytest.raises(UserError, match=r"column 'state', row 1: 'ok' must be one of canceled.*finished"):
        load(runs().assign(state="ok"), **NAMES, status="state")


def test_columns_called_as_their_role_need_no_name_and_are_told() -> None:
    frame = runs().rename(columns={"k": "accum", "s": "seed", "loss": "eval_loss_final"}).assign(status="failed")
    results, notes = told(frame, accum=None, seed=None, response=())
    assert notes == ["taken from the columns of that name: accum, seed, status"]
    assert set(results["status"]) == {"failed"} and set(results["control"]) == {"none"}


@pytest.mark.parametrize("role", ["status", "control"])
def test_an_unknown_word_in_a_column_called_as_its_role_is_an_error_and_no_reason_to_drop_the_column(role: str) -> None:
    frame = runs().assign(**{role: ["finished" if role == "status" else "none"] * 17 + ["placebo"]})
    with pytest.raises(UserError, match=rf"column '{role}': 'placebo' must be one of .*\n  Correct it, rename the column"):
        load(frame, **NAMES)


def test_environments_of_a_table_are_kept_apart() -> None:
    results, _ = told(runs().assign(env_id=np.where(runs()["k"] == 4, "b", "a")))
    assert set(results["env_id"]) == {"a", "b"}
    assert judged(runs().assign(env_id=np.where(runs()["k"] == 4, "b", "a"))).cells.mixed == tuple(str(seed) for seed in range(6))


def test_a_column_named_for_one_role_is_not_taken_for_another() -> None:
    frame = runs().rename(columns={"s": "replicate"}).assign(control="none")
    results, notes = told(frame, seed="replicate", setup=["control"])
    assert notes == [] and sorted(set(results["seed"])) == list(range(6)) and set(results["setup"]) == {"control=none"}


def test_rounding_controls_of_the_table_are_compared_with() -> None:
    twins = runs().query("k > 1").assign(kind="ulp_weights", loss=lambda table: table["loss"] + np.linspace(-1e-3, 1e-3, 12))
    found = judged(pd.concat([runs().assign(kind=np.nan), twins]), control="kind")
    assert found.control == "ulp_weights" and found.to_frame()["finished"].tolist() == [6, 6]
    with pytest.raises(UserError, match=r"'kind', row 1: 'baseline' must be one of none, order"):
        load(runs().assign(kind="baseline"), **NAMES, control="kind")


def test_runs_without_a_finite_value_are_told() -> None:
    frame = runs().astype({"loss": object})
    frame.loc[[0, 1, 2, 3], "loss"] = [float("inf"), None, "2,61", 1.7976931348623157e308]
    results, notes = told(frame)
    assert results["loss"][:4].isna().all() and results["loss"][4:].notna().all()
    assert notes == [
        "2 rows have an infinite loss, taken as diverged (row 1 and row 4)",
        "1 row holds no number in loss, as in '2,61' (row 3)",
        "2 finished runs without a finite loss (row 2 and row 3)",
    ]
    assert results["status"][:4].tolist() == ["diverged", "finished", "finished", "diverged"]


THIN = {
    "all runs have k=1": runs().query("k == 1"),
    "complete seeds: 1 of 1, at least 3 are needed": runs(1),
    "k=4 has no finished run (6 no value)": runs().assign(loss=lambda table: table["loss"].where(table["k"] < 4)),
    "k=1 has no finished run (6 failed)": runs().assign(status="failed"),
    "k=2 has no finished run (6 diverged)": runs().assign(status=lambda table: np.where(table["k"] == 2, "diverged", "finished")),
}


@pytest.mark.filterwarnings("ignore::accum_sweeps.analysis.tidy.TableWarning")
@pytest.mark.parametrize("words", THIN)
def test_what_a_table_cannot_answer_is_said(words: str) -> None:
    found = judged(THIN[words])
    assert found.code == "not_assessable" and words in found.sentence


def test_a_constant_response_is_exactly_equal_and_no_error() -> None:
    assert "exactly the value of k=1 at k=2 and 4 in all 6 pairs" in judged(runs().assign(loss=2.0)).sentence


BAD: dict[str, tuple[pd.DataFrame, dict[str, Any], str]] = {
    "empty": (runs().iloc[:0], {}, "has no rows"),
    "nothing left": (runs().assign(k=None), {}, "no row has a value in the column 'k'"),
    "missing": (runs(), {"seed": "sed"}, "there is no column seed='sed'. It must be one of k, loss, s"),
    "near": (runs(), {"response": "los"}, "did you mean loss?"),
    "twice": (pd.concat([runs(), runs()[["k"]]], axis=1), {}, "several columns are called k"),
    "one for two": (runs(), {"seed": "k"}, "the column 'k' is named for accum and for seed"),
    "seed as response": (runs(), {"response": "s"}, "the column 's' is named for seed already"),
    "words": (runs().assign(loss="low"), {}, "response='loss' holds no numbers, as in 'low'. It must be one of k, s"),
    "truth": (runs().assign(loss=True), {}, "response='loss' holds no numbers"),
    "times": (runs().assign(loss=pd.Timestamp(0)), {}, "response='loss' holds no numbers"),
    "reserved": (runs().rename(columns={"loss": "setup"}), {"response": "setup"}, "has a column of its own of that name"),
    "too small": (runs().assign(loss=lambda table: table["loss"] * 1e-200), {}, "no value of loss is above 1e-100 in size"),
    "unnamed": (
        runs(),
        {"accum": None},
        "no column of accumulation factors is named.\n  Name it as accum. The table has the columns k, s, loss",
    ),
    "ambiguous": (
        runs().rename(columns={"loss": "params.loss"}).assign(**{"metrics.loss": 1.0}),
        {},
        "response='loss' may be params.loss or metrics.loss.\n  Write the whole name.",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_read_is_an_error_with_what_is_allowed(name: str) -> None:
    frame, names, message = BAD[name]
    with pytest.raises(UserError, match=re.escape(message)):
        load(frame, **{**NAMES, **names})


def test_of_hundreds_of_columns_the_message_names_the_nearest() -> None:
    wide = pd.concat([runs(), pd.DataFrame({f"grad_norm_{i}": [0.0] * 18 for i in range(300)})], axis=1)
    with pytest.raises(UserError, match=r"has 302 columns of numbers|has 303 columns of numbers, among them loss") as caught:
        load(wide, accum="k", seed="s", response="losss")
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("value", "expected"),
    [("4", 4), (4.0, 4), ("4.0", 4), (" 4 ", 4), (np.int8(4), 4), ("1e1", 10), (True, None), ("0x4", None), (2.5, None), (2**63, None)],
)
def test_a_whole_number_is_one_however_it_is_written(value: Any, expected: int | None) -> None:
    assert whole(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"), [("2.5", 2.5), (Decimal("2.5"), 2.5), ("2,5", None), (1j, None), (10**400, None), ([1], None)]
)
def test_a_number_is_one_however_it_is_written(value: Any, expected: float | None) -> None:
    assert number(value) == expected


def test_what_a_project_exported_or_joined_as_a_frame_is_its_own_table() -> None:
    own = load(runs(), **NAMES).rename(columns={"loss": "eval_loss_final"})
    again = load(own)
    assert again["setup"].tolist() == own["setup"].tolist() and again["eval_loss_final"].tolist() == own["eval_loss_final"].tolist()
    with pytest.raises(UserError, match=r"response='eval_los_final'.*did you mean eval_loss_final"):
        load(own, response="eval_los_final")
    with pytest.raises(UserError, match=r"(?s)the table: a column holds what it does not hold.*name its columns: accum, seed, response"):
        load(own.assign(seed="first"))
    results, notes = told(own.assign(seed="first"), accum="accum", seed="seed", response="eval_loss_final")
    assert set(results["seed"]) == {"first"} and notes[0] == "taken from the columns of that name: replicate, control, status"
