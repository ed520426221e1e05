"""The data sets with known answers, as arrays."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

REFERENCE = Path(__file__).parents[1] / "reference"
SIMULATED = ("sim1_null_balanced", "sim2_10pct_balanced", "sim3_100pct_balanced", "sim4_10pct_unbalanced", "sim5_heteroscedastic")


@dataclass(frozen=True)
class Study:
    """A response, its random terms by lme4's names as columns of labels, the fixed factor's labels, and R's answers."""

    y: np.ndarray
    random: dict[str, list[np.ndarray]]
    fixed: np.ndarray | None
    answers: dict[str, Any]


# name: table, answers, response, random terms, fixed factor
_LME4 = {
    "dyestuff": ("lme4/dyestuff.csv", "lme4/dyestuff.json", "Yield", ["Batch"], None),
    "dyestuff2": ("lme4/dyestuff2.csv", "lme4/dyestuff2.json", "Yield", ["Batch"], None),
    "penicillin": ("lme4/penicillin.csv", "lme4/penicillin.json", "diameter", ["plate", "sample"], None),
    "machines": ("lme4/machines.csv", "lme4/machines.json", "score", ["Worker", "Worker:Machine"], "Machine"),
    "machines_random": ("lme4/machines.csv", "lme4/machines_random.json", "score", ["Worker", "Machine", "Worker:Machine"], None),
    "aiag": ("gage/aiag_msa.csv", "gage/aiag_msa.json", "y", ["part", "operator", "part:operator"], None),
}
NAMES = (*_LME4, *SIMULATED, *(f"{name}:random_k" for name in SIMULATED))


def answers(file: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((REFERENCE / file).read_text())
    return found


def table(file: str) -> pd.DataFrame:
    return pd.read_csv(REFERENCE / file)


def study(name: str) -> Study:
    """The study of that name, one of NAMES, without the rows that have no response."""
    if name in _LME4:
        file, answer, response, terms, fixed = _LME4[name]
        frame = table(file)
        columns = {term: [frame[column].to_numpy() for column in term.split(":")] for term in terms}
        return Study(frame[response].to_numpy(), columns, frame[fixed].to_numpy() if fixed else None, answers(answer))
    plain, _, variant = name.partition(":")
    frame = table(f"sim/{plain}.csv").dropna()
    seed, k = frame["seed"].to_numpy(), frame["k"].to_numpy()
    found = answers(f"sim/{plain}.json")
    if variant:
        return Study(frame["y"].to_numpy(), {"sf": [seed], "kf": [k], "sf:kf": [seed, k]}, None, found[variant])
    return Study(frame["y"].to_numpy(), {"sf": [seed], "sf:kf": [seed, k]}, k, found)


def cells(name: str) -> np.ndarray:
    """A balanced simulated table as (seeds, factors, replicates); AIAG's as (parts, operators, trials)."""
    rows, columns, last = ("part", "operator", "trial") if name == "aiag" else ("seed", "k", "rep")
    frame = table("gage/aiag_msa.csv" if name == "aiag" else f"sim/{name}.csv").sort_values([rows, columns, last])
    return frame["y"].to_numpy().reshape(frame[rows].nunique(), frame[columns].nunique(), -1)
