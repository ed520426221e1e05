"""The study of gradient caching in a small form: the command as typed, its tables and its page."""

from pathlib import Path

import pandas as pd
import pytest

from accum_sweeps.analysis.load import load
from accum_sweeps.analysis.studies.weight_distances import described, full_step, norm
from tests.product.commands import Place

SMALL = ("model=clip_tiny", "optimizer=adam", "optimizer.eps=1e-8", "subject.padding=fixed", "axes={dtype:[fp32,fp64]}")


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Place:
    place = Place(tmp_path_factory.mktemp("gradcache"))
    place.type("+grid=gradcache", *SMALL, "launcher=inline", "tracking=none")
    return place


@pytest.fixture(scope="module")
def tables(done: Place) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Described pairs, and pairs by tensor."""
    folder = done.root.path / "sweeps/gradcache"
    return described(load(folder), pd.read_csv(folder / "pairs.csv")), pd.read_csv(folder / "pair_tensors.csv")


FP32, FP64 = "adam, fp32", "adam, fp64"


def test_one_cached_micro_batch_gives_the_weights_of_one_batch_to_the_last_bit(tables: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    pairs = tables[0].query("left == 'plain batch 16' and right == 'cached 1 x 16'")
    assert pairs["is_equal"].tolist() == [True] and pairs["sum_of_norms"].tolist() == [0.0]


def test_several_differ_by_rounding_which_float64_shrinks(tables: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    for left, right in (("plain batch 16", "cached 2 x 8"), ("cached 4 x 4", "cached 2 x 8")):
        single, double = (norm(tables[0], left, right, condition) for condition in (FP32, FP64))
        assert single > 0 and double < 1e-6 * single  # unit roundoffs: 6e-8 and 1.1e-16; a fault would stay where it is


def test_a_plain_batch_of_8_is_another_training_not_other_rounding(tables: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    step = full_step(*tables)
    for same_steps in (True, False):
        apart = norm(tables[0], "plain batch 8", "cached 2 x 8", FP32, same_steps)
        assert 0.5 * step < apart < 6 * step  # at most 2 + 4 full steps apart
        assert apart > 100 * norm(tables[0], "plain batch 16", "cached 2 x 8", FP32)


def test_the_tensors_norms_sum_up_to_the_threads_measure(tables: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    pairs, tensors = tables
    keys = ["run_id", "env_id", "other_run_id", "other_env_id"]
    sums = tensors.drop_duplicates([*keys, "tensor"]).groupby(keys)["distance"].sum()
    assert sums.loc[list(pairs[keys].itertuples(index=False, name=None))].tolist() == pytest.approx(
        pairs["sum_of_norms"].tolist(), rel=1e-12
    )


def test_the_page_stands_in_the_sweeps_folder_and_the_report_names_it(done: Place, tmp_path: Path) -> None:
    output = done.type("+grid=gradcache", *SMALL, "tracking=none", "action=report")
    path = done.root.path / "sweeps/gradcache/study.md"
    assert str(path) in output and "control=permute against control=none" in output
    assert path.read_text().startswith("# Gradient caching against one batch")
    assert "| the thread | 0.3163 | 0 | 0.3105 | 363.3 |" in path.read_text()
