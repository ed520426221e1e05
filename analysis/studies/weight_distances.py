"""The comparisons of the study of gradient caching, read from a sweep's tables: who against whom, under which condition."""

import math

import numpy as np
import pandas as pd

PLAIN, ONE, TWO, FOUR, SMALL = "plain batch 16", "cached 1 x 16", "cached 2 x 8", "cached 4 x 4", "plain batch 8"
CLAIM = (PLAIN, TWO)  # the comparison that the thread asks about
CONDITION = ("optimizer", "optimizer.eps", "dtype", "subject.padding", "model.frozen", "device")


def described(results: pd.DataFrame, pairs: pd.DataFrame) -> pd.DataFrame:
    """``pairs`` with left and right (what was done, as the thread says it), left_steps, right_steps, condition, lr and left_control."""
    runs = results.drop_duplicates(["run_id", "env_id"]).set_index(["run_id", "env_id"])
    sides = [
        runs.loc[list(zip(pairs[run], pairs[env], strict=True))] for run, env in (("run_id", "env_id"), ("other_run_id", "other_env_id"))
    ]
    left, right = (side.reset_index(drop=True) for side in sides)
    return pairs.reset_index(drop=True).assign(
        left=[_arm(*row) for row in left[_ARM].itertuples(index=False)],
        right=[_arm(*row) for row in right[_ARM].itertuples(index=False)],
        left_steps=left["steps"],
        right_steps=right["steps"],
        left_control=left["control"],
        lr=right["optimizer.lr"],
        condition=_conditions(right),
    )


_ARM = ["subject.accumulation", "accum", "micro_batch", "global_batch"]


def _arm(accumulation: str, accum: int, micro_batch: int, global_batch: int) -> str:
    if accumulation == "cached":
        return f"cached {accum} x {micro_batch}"
    return f"plain batch {global_batch}" if accum == 1 else f"plain {accum} x {micro_batch}"


def _conditions(runs: pd.DataFrame) -> list[str]:
    """Of the settings that decide the condition, those that vary in the sweep, and always optimizer and dtype."""
    names = [name for name in CONDITION if name in ("optimizer", "dtype") or (name in runs and runs[name].nunique() > 1)]
    return [
        ", ".join(_words(name, value) for name, value in zip(names, row, strict=True) if value == value) for row in runs[names].to_numpy()
    ]


def _words(name: str, value: object) -> str:
    if name == "optimizer.eps":
        return f"eps {value:g}"
    if name == "subject.padding":
        return f"padding {value}"
    return ("all trained" if value == "[]" else f"frozen {value}") if name == "model.frozen" else str(value)


def norm(table: pd.DataFrame, left: str, right: str, condition: str | None = None, same_steps: bool = True) -> float:
    """Mean sum of norms of a comparison in a condition (by default the first); NaN where there is none."""
    chosen = table[is_comparison(table, left, right, same_steps) & (table["condition"] == (condition or first_condition(table)))]
    return float(pd.to_numeric(chosen["sum_of_norms"]).mean()) if len(chosen) else math.nan


def is_comparison(table: pd.DataFrame, left: str, right: str, same_steps: bool) -> "pd.Series[bool]":
    """Which rows compare ``left`` with ``right``, both with equally many optimizer steps or with differently many; no controls."""
    is_asked = (table["left"] == left) & (table["right"] == right) & (table["left_control"] == "none")
    return is_asked & ((table["left_steps"] == table["right_steps"]) == same_steps)


def first_condition(table: pd.DataFrame) -> str:
    """The condition that the others are measured against: the plan's first."""
    return str(table["condition"].iloc[0]) if len(table) else ""


def full_step(table: pd.DataFrame, tensors: pd.DataFrame) -> float:
    """What one optimizer step moves the sum of norms by if every weight moves by the learning rate: lr x sum over tensors of sqrt(n)."""
    first = tensors[(tensors["run_id"] == tensors["run_id"].iloc[0]) & (tensors["other_run_id"] == tensors["other_run_id"].iloc[0])]
    return float(table["lr"].iloc[0]) * float(np.sqrt(first.drop_duplicates("tensor")["size"].to_numpy(dtype=np.float64)).sum())


def by_tensor(table: pd.DataFrame, tensors: pd.DataFrame) -> pd.DataFrame:
    """For the thread's question in the first condition, means over pairs of runs: tensor, size, distance, lr and share of the sum."""
    asked = table[is_comparison(table, *CLAIM, True) & (table["condition"] == first_condition(table))]
    keys = ["run_id", "env_id", "other_run_id", "other_env_id"]
    found = tensors.drop_duplicates([*keys, "tensor"]).merge(asked[[*keys, "lr"]], on=keys)
    means = found.groupby("tensor", sort=False)[["size", "distance", "lr"]].mean().reset_index()
    return means.assign(share=means["distance"] / means["distance"].sum()).sort_values("share", ascending=False)


def by_kind(table: pd.DataFrame, tensors: pd.DataFrame) -> pd.DataFrame:
    """:func:`by_tensor` summed by kind, the last two parts of a tensor's name: kind, tensors (their number), share, in_lr.

    in_lr is the root mean square difference of a weight in units of the learning rate: 1 = every weight is off by a full Adam step.
    """
    found = by_tensor(table, tensors)
    found = found.assign(kind=[".".join(str(name).split(".")[-2:]) for name in found["tensor"]], square=found["distance"] ** 2)
    kinds = found.groupby("kind").agg(
        tensors=("tensor", "size"), size=("size", "sum"), share=("share", "sum"), square=("square", "sum"), lr=("lr", "first")
    )
    kinds["in_lr"] = np.sqrt(kinds["square"] / kinds["size"]) / kinds["lr"]
    return kinds[["tensors", "share", "in_lr"]].sort_values("share", ascending=False).reset_index()
