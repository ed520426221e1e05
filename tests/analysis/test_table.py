"""The table's columns: all there, documented once, with fixed dtypes."""

import pandas as pd
import pytest

from accum_sweeps.analysis.table import describe, in_order, known_columns, markdown, typed
from accum_sweeps.plan.parts import KINDS
from accum_sweeps.record.metrics import FINAL_UNITS

# The columns that are promised to stay, in their order; others may be added.
PROMISED = [
    *("run_id", "env_id", "sweep", "setup", "cell", "subject", "model", "optimizer", "data", "fault", "dtype", "accumulator", "accum"),
    *("micro_batch", "global_batch", "ranks", "seed", "seed_init", "seed_data", "seed_dropout", "control", "replicate", "status"),
    *("attempt", "steps", "tokens", "train_loss_final", "eval_loss_final", "eval_perplexity_final", "train_loss_area", "diverged_step"),
    *("wall_s", "peak_mem_gb", "device", "git_commit", "spec_version"),
]


def test_promised_columns_stand_in_their_order() -> None:
    names = list(known_columns())
    assert [name for name in names if name in PROMISED] == PROMISED
    assert {name.partition(".")[0] for name in names if "." in name} == set(KINDS)
    assert names.index("model") < names.index("model.norm") < names.index("optimizer")


def test_every_column_has_a_meaning_and_a_dtype() -> None:
    table = describe()
    assert table["column"].is_unique and (table["meaning"].str.len() > 0).all()
    assert set(table["dtype"]) == {"str", "int64", "Int64", "float64", "bool", "boolean"}
    meanings = table.set_index("column")["meaning"]
    assert meanings["wall_s"] == FINAL_UNITS["wall_s"]
    decay = meanings["optimizer.weight_decay"]
    assert decay.startswith("adamw: decoupled weight decay per unit of learning rate; adam: coupled L2 weight decay: added to the gradient")


def test_described_tables_tell_own_columns_from_the_users() -> None:
    table = describe(pd.DataFrame({"accum": [1], "subject.args.depth": [3]}))
    assert table["meaning"].tolist() == ["micro-batches per optimizer step and rank", "a value of the user's own subject"]


def test_markdown_has_a_row_a_column() -> None:
    lines = markdown().splitlines()
    assert len(lines) == len(known_columns()) + 2
    assert "| `accum` | int64 | micro-batches per optimizer step and rank |" in lines


def test_gaps_keep_whole_numbers_whole() -> None:
    frame = typed(pd.DataFrame({"diverged_step": [7.0, None], "tokens": [None, 10], "accum": [1, 2], "model.qk_norm": [True, None]}))
    assert frame.dtypes.astype(str).to_dict() == {"model.qk_norm": "boolean", "accum": "int64", "tokens": "Int64", "diverged_step": "Int64"}
    assert frame["diverged_step"].tolist() == [7, pd.NA]


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([1, None], "Int64"),
        ([1, 0.5], "float64"),
        ([True, None], "boolean"),
        (["a", 1], "str"),
        ([None, None], "float64"),
        ([2**70, 1], "str"),
    ],
)
def test_values_of_the_users_subject_get_the_narrowest_dtype(values: list[object], dtype: str) -> None:
    frame = typed(pd.DataFrame({"subject.args.x": pd.Series(values, dtype=object)}))
    assert str(frame["subject.args.x"].dtype) == dtype
    assert frame["subject.args.x"].isna().tolist() == [value is None for value in values]


def test_empty_text_is_missing() -> None:
    assert typed(pd.DataFrame({"data.hash": ["", "ab", None]}))["data.hash"].isna().tolist() == [True, False, True]


def test_text_without_arrow_or_as_object_is_the_same_table() -> None:
    expected = typed(pd.DataFrame({"dtype": ["fp32", None]}))
    for dtype in (object, "category", pd.StringDtype("python"), pd.StringDtype("pyarrow")):
        pd.testing.assert_frame_equal(typed(pd.DataFrame({"dtype": pd.Series(["fp32", None], dtype=dtype)})), expected)


def test_unknown_columns_come_after_their_group_or_the_final_values() -> None:
    names = ["error", "acc_final", "subject.args.b", "model", "subject", "device", "wall_s"]
    assert in_order(names) == ["subject", "subject.args.b", "model", "wall_s", "acc_final", "device", "error"]
