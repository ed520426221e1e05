"""The page of open_lm: figures of known tables at their places, and nothing said that the sweep does not hold."""

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest

from accum_sweeps.analysis.studies import open_lm, perplexities
from accum_sweeps.analysis.studies.markdown import power_of_ten
from accum_sweeps.analysis.studies.open_lm_steps import amplification, finished_steps, interventions, ladder, of_test, thread_rows

SETTINGS: dict[str, Any] = {
    **{"measure": "one_step", "status": "finished", "model": "open_lm_11m", "model.layers": 8, "model.norm": "layernorm_gain"},
    **{"subject.mean": "token", "data.lengths": "fixed", "data.seq_len": 300, "global_batch": 8, "optimizer": "adamw", "dtype": "fp32"},
    **{"accum": 4, "control": "none", "replicate": 0, "seed": 0, "peak_mem_gb": 5.0, "eval_loss_final": math.nan},
}
METRICS: dict[str, float] = {
    **{"forward_moved": 0, "forward_tolerance": 0.0, "forward_size": 1.0, "forward_difference": 0.0},
    **{"gradient_moved": 9, "gradient_tolerance": 2e-8, "gradient_size": 3e-3, "gradient_difference": 2e-7},
    **{"weights_moved": 9, "weights_tolerance": 2e-5, "weights_size": 0.1, "weights_difference": 6e-8},
    **{"clipped_difference": 2e-7, "update_difference": 8e-6, "gain": 40.0, "soft_share": 0.995, "flip_share": 0.0, "prediction": 1.002},
    **{"weights_failing": 26.0, "weights_failing_tensors": 17, "tensors": 51},
    **{"update_difference_eps_1e_4": 1e-6, "gain_eps_1e_4": 5.0, "weights_failing_eps_1e_4": 0.0},
    **{"update_difference_fp64_gradients": 0.0, "gain_fp64_gradients": 0.0, "weights_failing_fp64_gradients": 0.0},
}


def step(**changes: Any) -> dict[str, Any]:
    metrics = {f"{name}_final": changes.pop(name, value) for name, value in METRICS.items()}
    return {**SETTINGS, **metrics, **changes}


SGD = {"optimizer": "sgd", "weights_tolerance": 0.0, "weights_failing": 0.0, "soft_share": 0.0, "gain": 30.0, "prediction": 30.0}
STEPS = pd.DataFrame(
    [
        step(accum=2, weights_failing=20.0, weights_tolerance=8e-6),
        step(),
        step(accum=1, control="permute", weights_failing=23.0, weights_tolerance=7e-6),
        step(**SGD),
        step(dtype="bf16", **{"model.layers": 1, "model.norm": "none"}, forward_moved=5, forward_tolerance=3e-3, gradient_tolerance=0.08),
    ]
)


def trainings() -> pd.DataFrame:
    """Losses 1.0 and 1.2 of two seeds; k=2 is 0.003 and -0.004 away, the rerun nowhere, the control 0.001."""
    rows = []
    for seed, loss in ((0, 1.0), (1, 1.2)):
        for accum, control, replicate, shift in (
            (1, "none", 0, 0.0),
            (2, "none", 0, (0.003, -0.004)[seed]),
            (4, "none", 0, 0.0),
            (4, "none", 1, 0.0),
            (4, "regroup", 0, 0.001),
        ):
            kind = {"accum": accum, "control": control, "replicate": replicate, "seed": seed}
            rows.append({**SETTINGS, **kind, "measure": "training", "eval_loss_final": loss + shift})
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    ("tolerance", "is_equal", "expected"),
    [(2e-8, False, "1e-7"), (1e-5, False, "1e-5"), (0.08, False, "1e-1"), (0.0, False, "0 (rtol suffices)"), (0.0, True, "bits equal")],
)
def test_a_tolerance_is_told_as_the_power_of_ten_that_passes(tolerance: float, is_equal: bool, expected: str) -> None:
    assert power_of_ten(tolerance, is_equal) == expected


def test_no_power_of_ten_passes_an_infinite_difference() -> None:
    assert (power_of_ten(math.inf, False), power_of_ten(math.nan, False)) == ("none", "")


def test_the_threads_claims_stand_beside_what_is_measured_in_both_readings() -> None:
    lines = thread_rows(of_test(finished_steps(STEPS))).splitlines()
    assert "| weights after the step | fp32, all layers, norm on, adamw | fails 1e-7 | 1e-4 |  | 1e-5 |  |" in lines
    assert "| weights after the step | fp32, all layers, norm on, sgd | passes 1e-7 | 0 (rtol suffices) |  |  |  |" in lines
    assert "| outputs | fp16, all layers, norm on | passes 1e-5, fails 1e-6 |  | bits equal |  |  |" in lines
    assert "| outputs | bf16, 1 layers, norm off | passes 1e-2 | 1e-2 |  |  |  |" in lines
    assert "| gradient | bf16, 1 layers, norm off | passes 1e-4 | 1e-1 |  |  |  |" in lines


def test_the_ladder_has_a_row_for_each_setting_with_the_worst_over_k() -> None:
    lines = ladder(of_test(finished_steps(STEPS))).splitlines()
    assert lines[2:] == [
        "| fp32 | 8 | layernorm_gain | 2, 4 | bits equal | 1e-7 | 0 (rtol suffices) | 1e-4 |",
        "| bf16 | 1 | none | 4 | 1e-2 | 1e-1 |  | 1e-4 |",
    ]


def test_amplification_and_interventions_are_told_in_numbers() -> None:
    steps = of_test(finished_steps(STEPS))
    lines = amplification(steps).splitlines()
    assert "| adamw | fp32 | k=4 | 2e-07 | 8e-06 | 40 | 99.5 % | 0.0 % | 1.00 | 26 in 17 of 51 |" in lines
    assert "| adamw | fp32 | rows permuted | 2e-07 | 8e-06 | 40 | 99.5 % | 0.0 % | 1.00 | 23 in 17 of 51 |" in lines
    assert interventions(steps).splitlines()[2:] == [
        "| fp32 | as it is | 8e-06 |  | 40 | 20 to 26 |",
        "| fp32 | the optimizer's eps at 1e-4 | 1e-06 | 8 | 5 | 0 |",
        "| fp32 | gradients computed in float64 and then cast | 0 | difference gone | 0 | 0 |",
    ]


def test_the_page_says_that_a_reordered_batch_fails_only_where_it_does() -> None:
    words = "The test rejects a change of summation order"
    assert words in open_lm.page(STEPS)
    passing = STEPS.assign(weights_failing_final=0.0)
    assert "in another order, without accumulation: 0 elements fail." in open_lm.page(passing) and words not in open_lm.page(passing)
    assert "in another order, without accumulation" not in open_lm.page(STEPS[STEPS["control"] == "none"])


def test_perplexities_and_differences_stand_beside_the_threads() -> None:
    table = perplexities.perplexity_table(trainings())
    assert f"| accum 1 | 13.2683 | {(math.e + math.exp(1.2)) / 2:.4f} | {math.e:.4f} to {math.exp(1.2):.4f} | 2 |" in table
    assert "| accum 4, rerun | 13.4143 |" in table and "| accum 4, regrouped |  |" in table
    lines = perplexities.differences(trainings()).splitlines()
    assert f"| accum 2 against accum 1 | 0.00259 | {np.sqrt(12.5) * 1e-3:.3g} | 0.004 | 2 |" in lines
    assert "| accum 4, rerun against accum 4 | 0.0107 | bits equal | 0 | 2 |" in lines
    assert "| accum 4, regrouped against accum 4 |  | 0.001 | 0.001 | 2 |" in lines
    assert f"| another seed (SD of accum 1) |  | {0.2 / np.sqrt(2):.3g} | 0.2 | 2 |" in lines


def test_the_page_holds_only_sections_that_the_sweep_can_fill() -> None:
    def titles(results: pd.DataFrame) -> set[str]:
        return {line[3:] for line in open_lm.page(results).splitlines() if line.startswith("## ")}

    assert titles(trainings()) == {"Perplexities", "How far apart equal runs end"}
    assert "The thread's tests" in titles(STEPS) and "Perplexities" not in titles(STEPS)
    assert titles(STEPS.assign(status="planned")) == set()
    both = pd.concat([STEPS, trainings()], ignore_index=True)
    assert titles(both) == titles(STEPS) | titles(trainings())
    assert "2.5 % of the SD over seeds" in open_lm.page(both)
