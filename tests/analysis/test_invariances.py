"""What must not matter to verdicts and components: scale and origin of the response, order of rows, names, dtypes."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from accum_sweeps.analysis.component_tables import components
from accum_sweeps.analysis.verdict import verdict
from tests.analysis.roots import table

SEEDS, ARMS = 7, (1, 2, 4, 8)


def sweep(unbalanced: bool = False) -> pd.DataFrame:
    """Two setups with controls and some reruns; in one of them k=8 is shifted."""
    drawn = np.random.default_rng(20)
    frames = []
    for setup, shift in (("calm", 0.0), ("shifted", 0.3)):
        base = 3 + 0.5 * drawn.standard_normal(SEEDS)
        runs = {k: base + shift * (k == 8) + 0.05 * drawn.standard_normal(SEEDS) for k in ARMS}
        controls = {k: runs[k] + 0.05 * drawn.standard_normal(SEEDS) for k in ARMS[1:]}
        again = {k: runs[k][:2] + 0.01 * drawn.standard_normal(2) for k in ARMS}
        for kind, replicate, values in (("none", 0, runs), ("regroup", 0, controls), ("none", 1, again)):
            frames.append(table({k: y.tolist() for k, y in values.items()}, setup=setup, control=kind, replicate=replicate))
    whole = pd.concat(frames, ignore_index=True).assign(env_id="e")
    whole["run_id"] = [f"r{number}" for number in range(len(whole))]
    if unbalanced:
        whole = whole.drop(index=[3, 17, 40])
    return whole


def moved(a: float, b: float) -> Callable[[pd.DataFrame], pd.DataFrame]:
    return lambda frame: frame.assign(eval_loss_final=a + b * frame["eval_loss_final"])


def shuffled(frame: pd.DataFrame) -> pd.DataFrame:
    rows = frame.sample(frac=1, random_state=3)
    return pd.concat([rows[rows["setup"] == name] for name in ("calm", "shifted")])


def arrow(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.convert_dtypes(dtype_backend="pyarrow")


def categorical(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.astype(dict.fromkeys(("setup", "setup_id", "control", "status", "env_id"), "category"))


def objects(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.astype(dict.fromkeys(("setup", "setup_id", "control", "status", "env_id", "accum", "seed", "replicate"), object))


def renamed(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(
        seed=1000 - 7 * frame["seed"], setup_id="x" + frame["setup_id"].astype(str), env_id="another", run_id=frame["run_id"] + "'"
    )


CHANGES = {
    "origin": (moved(100.0, 1.0), 1.0),
    "scale": (moved(0.0, 2.5), 2.5),
    "both": (moved(-40.0, 1e-6), 1e-6),
    "rows": (shuffled, 1.0),
    "arrow": (arrow, 1.0),
    "category": (categorical, 1.0),
    "object": (objects, 1.0),
    "names": (renamed, 1.0),
}
FREE = ["code", "p", "p_holm", "tost_p", "shift_sigma", "lambda", "lambda_upper", "excess", "path_share", "more_seeds", "q"]
IN_UNIT = ["shift", "shift_low", "shift_high", "difference_sd", "sigma_tot", "margin", "difference_sd_upper", "path_sd"]


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("unbalanced", [False, True])
def test_a_verdict_follows_the_response_and_nothing_else(name: str, unbalanced: bool) -> None:
    change, factor = CHANGES[name]
    frame = sweep(unbalanced)
    before, after = verdict(frame).to_frame(), verdict(change(frame)).to_frame()
    assert before["code"].unique().tolist() == after["code"].unique().tolist() and "effect" in set(before["code"])
    numbers = [column for column in FREE if column != "code"]
    np.testing.assert_allclose(after[numbers].astype(float), before[numbers].astype(float), rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(after[IN_UNIT].astype(float), factor * before[IN_UNIT].astype(float), rtol=1e-6, atol=1e-9 * factor)


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("unbalanced", [False, True])
def test_components_follow_the_response_and_nothing_else(name: str, unbalanced: bool) -> None:
    change, factor = CHANGES[name]
    frame = sweep(unbalanced)
    before, after = components(frame).to_frame(), components(change(frame)).to_frame()
    variances = before["component"] != "seed:k / seed"
    assert before["component"].tolist() == after["component"].tolist() and len(before) == 10
    for column in ("estimate", "low", "high"):
        np.testing.assert_allclose(
            after.loc[variances, column], factor**2 * before.loc[variances, column], rtol=1e-5, atol=1e-9 * factor**2
        )
        np.testing.assert_allclose(after.loc[~variances, column], before.loc[~variances, column], rtol=1e-5, atol=1e-9)
