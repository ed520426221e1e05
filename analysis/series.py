"""Curves over optimizer steps, summarized over seeds: of losses from the measured points, of weight distances from the sketches."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from accum_sweeps.analysis.cells import NONE
from accum_sweeps.analysis.distances import Pair, distances, reader, reference_pairs
from accum_sweeps.analysis.paired import Floats
from accum_sweeps.record.events import DONE
from accum_sweeps.record.metrics import EVAL_LOSS, TRAIN_LOSS

KEYS = (TRAIN_LOSS, EVAL_LOSS)
STREAMS = ["seed", "seed_init", "seed_data", "seed_dropout"]
MOST_POINTS = 240  # of a curve: no picture shows more


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A value over steps, summarized over ``runs`` runs: float64 arrays of one length. ``accum`` is 0 where it is of several arms.

    ``middle`` is the mean of a loss, the median of a distance; ``low`` and ``high`` are the smallest and the largest value.
    """

    accum: int
    runs: int
    step: Floats
    middle: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True, kw_only=True)
class SetupCurves:
    """``losses``: by metric one curve an arm, ascending by k. ``apart``: distance from the reference arm's run, one curve an arm.

    ``rounding`` is the band of the controls' distances from their uncontrolled twins, over all arms, seeds and ``controls`` (their
    kinds); None without controls.
    """

    losses: Mapping[str, tuple[Curve, ...]]
    apart: tuple[Curve, ...] = ()
    rounding: Curve | None = None
    controls: tuple[str, ...] = ()


def setup_curves(results: pd.DataFrame, setup_id: str, points: pd.DataFrame | None, apart: pd.DataFrame | None) -> SetupCurves:
    """The curves of one setup of ``results``, as far as there are any.

    ``points`` is a table of trajectories, ``apart`` one of :func:`sketch_distances`.
    """
    runs = results[results["setup_id"] == setup_id]
    losses = {} if points is None else _losses(runs, points)
    mine = None if apart is None else apart[apart["setup_id"] == setup_id]
    if mine is None or mine.empty:
        return SetupCurves(losses=losses)
    is_control = mine["control"] != NONE
    controls = tuple(sorted(set(mine.loc[is_control, "control"])))
    return SetupCurves(
        losses=losses,
        apart=_by_arm(mine[~is_control], "relative_distance", "median"),
        rounding=_curve(mine[is_control], "relative_distance", "median", 0) if controls else None,
        controls=controls,
    )


def _losses(runs: pd.DataFrame, points: pd.DataFrame) -> dict[str, tuple[Curve, ...]]:
    if not {"run_id", "env_id"} <= set(runs.columns):
        return {}
    usable = runs[runs["env_id"].notna()]
    for column, value in (("control", NONE), ("replicate", 0)):
        usable = usable[usable[column] == value] if column in usable else usable
    keys = usable[["run_id", "env_id", "accum"]].drop_duplicates(["run_id", "env_id"]).astype({"run_id": object, "env_id": object})
    merged = points_of(points, keys).merge(keys)
    found = {key: _by_arm(merged[merged["key"] == key], "value", "mean") for key in KEYS}
    return {key: curves for key, curves in found.items() if curves}


def points_of(points: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """What a table of trajectories holds of the losses of ``runs``: run_id, env_id, step, key, value."""
    wanted = points[points["key"].isin(KEYS) & points["run_id"].isin(runs["run_id"])] if "run_id" in runs else points.iloc[:0]
    return wanted[["run_id", "env_id", "step", "key", "value"]].astype({"run_id": object, "env_id": object})


def _by_arm(table: pd.DataFrame, column: str, middle: str) -> tuple[Curve, ...]:
    curves = (_curve(rows, column, middle, int(rows["accum"].iloc[0])) for _, rows in table.groupby("accum"))
    return tuple(curve for curve in curves if len(curve.step))


def _curve(table: pd.DataFrame, column: str, middle: str, accum: int) -> Curve:
    """Over the finite values at each step; of very many steps a regular choice, the last one always."""
    finite = table[np.isfinite(table[column].to_numpy(dtype=np.float64))]
    summary = finite.groupby("step")[column].agg([middle, "min", "max"]).sort_index()
    if len(summary) > MOST_POINTS:
        summary = summary.iloc[np.unique(np.linspace(0, len(summary) - 1, MOST_POINTS).astype(int))]
    middles, low, high = (summary[name].to_numpy(dtype=np.float64) for name in (middle, "min", "max"))
    runs = len(finite[["run_id", "env_id"]].drop_duplicates())
    return Curve(accum=accum, runs=runs, step=summary.index.to_numpy(dtype=np.float64), middle=middles, low=low, high=high)


def sketch_distances(root: str | Path, results: pd.DataFrame, reference: int | None = None) -> pd.DataFrame:
    """Distances over steps: of each run at an accumulated k from the reference arm's, of each control from its uncontrolled twin.

    Columns of :func:`accum_sweeps.analysis.distances.distances` with setup_id, accum and control. Raises UserError if there is no root
    or a sketch file is damaged.
    """
    runs = results[results["status"].isin(DONE) & (results["replicate"] == 0)]
    plain = reference_pairs(runs[runs["control"] == NONE], reference)
    twins = _twins(runs)
    pairs = pd.concat([plain[twins.columns], twins], ignore_index=True)
    return distances(root, pairs, reader(root, runs, tensors=False))


def _twins(runs: pd.DataFrame) -> pd.DataFrame:
    """Each control against the run of the same cell and environment without control."""
    columns = [*Pair._fields, "setup_id", "accum", "control"]
    same = ["setup_id", "accum", *STREAMS, "env_id"]
    done = runs[runs["env_id"].notna()].drop_duplicates(["run_id", "env_id"])
    partners = done.loc[done["control"] == NONE, [*same, "run_id"]].rename(columns={"run_id": "other_run_id"})
    pairs = done[done["control"] != NONE].merge(partners, on=same)
    pairs["other_env_id"] = pairs["env_id"]
    return pairs[columns]
