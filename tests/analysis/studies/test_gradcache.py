"""The page of the study on gradient caching, on tables with known numbers, and its grid at a small size."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from accum_sweeps.analysis.pair_tables import PairTables
from accum_sweeps.analysis.studies import gradcache, weight_distances

ARMS = {"p16": ("plain", 1, 16, 2), "1x16": ("cached", 1, 16, 2), "2x8": ("cached", 2, 16, 2), "4x4": ("cached", 4, 16, 2)}
ARMS |= {"p8": ("plain", 1, 8, 4), "p8s": ("plain", 1, 8, 2)}
BASE = {"optimizer": "adam", "optimizer.eps": 1e-8, "dtype": "fp32", "subject.padding": "fixed", "optimizer.lr": 1e-3, "control": "none"}
SGD = {**BASE, "optimizer": "sgd", "optimizer.eps": np.nan}
TENSORS = {"text.layers.0.k_proj.bias": (400, 0.25), "text.layers.0.fc1.weight": (10_000, 0.5), "vision.layers.0.fc1.weight": (2_500, 0.25)}


def run(arm: str, **settings: Any) -> dict[str, Any]:
    accumulation, accum, batch, steps = ARMS[arm]
    values = {"subject.accumulation": accumulation, "accum": accum, "global_batch": batch, "steps": steps, "micro_batch": batch // accum}
    values |= {**BASE, **settings}
    return {"run_id": f"{arm} {settings}", "env_id": "e", **values}


def pair(left: dict[str, Any], right: dict[str, Any], norm: float) -> dict[str, Any]:
    ids = {"run_id": left["run_id"], "env_id": "e", "other_run_id": right["run_id"], "other_env_id": "e"}
    return {"pair": "x", **ids, "sum_of_norms": norm, "is_equal": norm == 0}


def tables(*compared: tuple[dict[str, Any], dict[str, Any], float]) -> tuple[pd.DataFrame, PairTables]:
    results = pd.DataFrame([run for left, right, _ in compared for run in (left, right)])
    pairs = pd.DataFrame([pair(*each) for each in compared])
    keys = ["run_id", "env_id", "other_run_id", "other_env_id"]
    by_tensor = [
        {**{key: row[key] for key in keys}, "tensor": name, "size": size, "distance": share * row["sum_of_norms"]}
        for row in pairs.to_dict("records")
        for name, (size, share) in TENSORS.items()
    ]
    return results, PairTables(pairs=pairs, tensors=pd.DataFrame(by_tensor), missing={})


def whole() -> tuple[pd.DataFrame, PairTables]:
    return tables(
        (run("p16"), run("2x8"), 0.004),
        (run("p16", **SGD), run("2x8", **SGD), 1e-6),
        (run("p16", dtype="fp64"), run("2x8", dtype="fp64"), 4e-11),
        (run("p16", dtype="tf32_emulated"), run("2x8", dtype="tf32_emulated"), 0.4),
        (run("p16"), run("1x16"), 0.0),
        (run("4x4"), run("2x8"), 0.005),
        (run("p8"), run("2x8"), 0.34),
        (run("p8s"), run("2x8"), 0.17),
        (run("p16", control="permute"), run("p16"), 0.003),
    )


def test_another_model_than_the_threads_is_said() -> None:
    results, pairs = whole()
    for model, is_said in (("clip_vit_b32", False), ("clip_tiny", True)):
        page = gradcache.page(results.assign(model=model), pairs)
        assert ("Measured with model clip_tiny; the thread's was CLIP ViT-B/32" in page) == is_said


def row_of(page: str, start: str) -> list[str]:
    [line] = [line for line in page.splitlines() if line.startswith(f"| {start}")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_threads_figures_stand_beside_the_measured_ones() -> None:
    page = gradcache.page(*whole())
    assert row_of(page, "the thread")[1:] == ["0.3163", "0", "0.3105", "363.3", ""]
    assert row_of(page.split("## ")[0], "adam, fp32")[1:] == ["0.004", "0, every bit equal", "0.005", "0.34", "0.17"]
    assert row_of(page.split("## ")[0], "sgd, fp32")[1:] == ["1e-06", "", "", "", ""]


def test_a_full_adam_step_is_the_learning_rate_times_the_sum_of_root_sizes() -> None:
    results, made = whole()
    table = weight_distances.described(results, made.pairs)
    assert weight_distances.full_step(table, made.tensors) == pytest.approx(1e-3 * (20 + 100 + 50), rel=1e-12)
    assert "= 0.17; the distance 0.34 is 2 such steps. With equal steps it is 0.17" in gradcache.page(results, made)
    assert "takes 4 optimizer steps" in gradcache.page(results, made)


def test_each_cause_is_read_by_its_ratio() -> None:
    page = gradcache.page(*whole())
    assert row_of(page.split("## What")[1], "sgd")[1:] == ["1e-06", "0.00025", "removes most of the distance: what it changes is a cause"]
    assert row_of(page.split("## What")[1], "adam, fp64")[2:] == [
        "1e-08",
        "falls to float64's rounding, to where sketches end (1e-14 relative): no fault",
    ]
    assert row_of(page, "16 against itself, control permute")[1:3] == ["0.003", "0.75"]
    assert row_of(page.split("## What")[1], "adam, tf32")[3] == "larger: one cause of a larger distance"
    faulty = tables((run("p16"), run("2x8"), 0.004), (run("p16", dtype="fp64"), run("2x8", dtype="fp64"), 0.004))
    assert "does not fall with the rounding" in gradcache.page(*faulty)


def test_the_share_by_kind_of_tensor() -> None:
    results, made = whole()
    kinds = weight_distances.by_kind(weight_distances.described(results, made.pairs), made.tensors)
    assert kinds["kind"].tolist() == ["fc1.weight", "k_proj.bias"]
    assert kinds["tensors"].tolist() == [2, 1]
    assert kinds["share"].tolist() == pytest.approx([0.75, 0.25], rel=1e-12)
    # Root mean square in units of lr: sqrt(0.001^2 / 400) / 1e-3 for the bias.
    assert kinds["in_lr"].tolist() == pytest.approx([np.sqrt(5e-6 / 12_500) / 1e-3, 0.05], rel=1e-12)
    page = gradcache.page(results, made)
    assert "These tensors hold 25 % of the sum" in page
    assert "largest single tensor is text.layers.0.fc1.weight with 50 %" in page


def test_the_threads_figure_is_set_against_every_condition() -> None:
    last = gradcache.page(*whole()).split("## The thread's 0.3163")[1]
    assert "Within a factor of three of it: adam, tf32_emulated (0.4)." in last
    assert "adam, fp32 (0.004, 79 times less)" in last


def test_what_a_sweep_lacks_is_left_out() -> None:
    page = gradcache.page(*tables((run("p16"), run("1x16"), 0.0)))
    assert "## " not in page and "0, every bit equal" in page


def test_before_any_pair_is_finished_the_page_says_so() -> None:
    nothing = PairTables(pairs=pd.DataFrame({"pair": []}), tensors=pd.DataFrame(), missing={})
    assert "No pair of runs" in gradcache.page(pd.DataFrame(), nothing)
