"""From rows of the results table to arrays: for each setup a value and an outcome by seed and accumulation factor.

Shapes: S seeds (a seed is one combination of the seed streams), K accumulation factors, ascending.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from accum_sweeps.analysis.paired import Floats, mean_of
from accum_sweeps.plan.errors import UserError, one_of
from accum_sweeps.plan.spec import SEED_STREAMS
from accum_sweeps.record.events import DONE

OTHER, NO_VALUE, ABSENT = "other environment", "no value", "absent"
NEEDED = ("accum", "seed", "status")


@dataclass(frozen=True, kw_only=True)
class Cells:
    """The runs of one setup without controls.

    ``y`` is float64 (S, K): the response of a finished cell, averaged over its replicates, NaN otherwise. ``outcome`` is an
    array of words (S, K): finished, diverged, or why the cell cannot be used (running, planned, failed, lost, cancelled,
    absent, no value, other environment). ``mixed`` names the seeds whose arms were done in several environments:
    only runs of one environment are compared, those of the environment that holds most arms.
    """

    setup: str
    setup_id: str
    accum: tuple[int, ...]
    seeds: tuple[str, ...]
    y: Floats
    outcome: NDArray[np.str_]
    mixed: tuple[str, ...]

    @property
    def complete(self) -> NDArray[np.bool_]:
        """Per seed (S,): every arm is finished or diverged."""
        return np.asarray(np.isin(self.outcome, DONE).all(axis=1))

    def count(self, outcome: str) -> NDArray[np.int64]:
        """Per arm (K,): how many seeds have this outcome."""
        return np.asarray((self.outcome == outcome).sum(axis=0))


def setups(results: pd.DataFrame, response: str) -> Iterator[Cells]:
    """The cells of every setup in ``results``, in the order of their first row.

    Raises UserError if a needed column is missing. Rows of several sweeps that are the same run count once.
    """
    key = _check(results, response)
    runs = results[results["control"] == "none"] if "control" in results else results
    identity = [name for name in ("run_id", "env_id") if name in runs]
    if "run_id" in identity:
        runs = runs.drop_duplicates(identity)
    for setup_id, rows in runs.groupby(key, sort=False, observed=True):
        label = str(rows["setup"].iloc[0]) if "setup" in rows else str(setup_id)
        yield cells(rows, response, label, str(setup_id))


def _check(results: pd.DataFrame, response: str) -> str:
    missing = [name for name in NEEDED if name not in results]
    key = next((name for name in ("setup_id", "setup") if name in results), None)
    if missing or key is None:
        raise UserError(f"the table lacks the columns {', '.join(missing or ['setup_id'])}; acs.load(...) makes a table that has them")
    if response not in results:
        raise UserError(f"response={response!r}: {one_of(response, _numeric(results))}")
    if not pd.api.types.is_numeric_dtype(results[response].dtype):
        raise UserError(f"response={response!r}: holds no numbers; {one_of(response, _numeric(results))}")
    return str(key)


def _numeric(results: pd.DataFrame) -> list[str]:
    return [str(name) for name in results.columns if str(name).endswith(("_final", "_area")) or str(name) in ("wall_s", "peak_mem_gb")]


Seed = tuple[int, ...]
Runs = dict[int, list[tuple[str, float]]]  # by accumulation factor: status and response of each replicate


def cells(rows: pd.DataFrame, response: str, setup: str, setup_id: str) -> Cells:
    """The cells of one setup's ``rows`` (controls left out already)."""
    streams = [name for name in ("seed", *SEED_STREAMS) if name in rows]
    by_seed: dict[Seed, dict[str, Runs]] = {}
    environments = rows["env_id"].astype(object).where(rows["env_id"].notna(), "") if "env_id" in rows else [""] * len(rows)
    values = rows[response].to_numpy(dtype=np.float64, na_value=np.nan).tolist()
    seeds = zip(*(rows[name].tolist() for name in streams), strict=True)
    for seed, environment, k, status, value in zip(seeds, environments, rows["accum"].tolist(), rows["status"], values, strict=True):
        by_seed.setdefault(seed, {}).setdefault(environment, {}).setdefault(int(k), []).append((str(status), value))
    accum = sorted({k for runs in by_seed.values() for arms in runs.values() for k in arms})
    usual = _most_used(by_seed)
    found = {seed: _of_seed(by_seed[seed], accum, usual) for seed in sorted(by_seed)}
    labels = {seed: _seed_label(dict(zip(streams, seed, strict=True))) for seed in found}
    shape = (len(found), len(accum))
    return Cells(
        setup=setup,
        setup_id=setup_id,
        accum=tuple(accum),
        seeds=tuple(labels.values()),
        y=np.array([value for arms in found.values() for _, value in arms], dtype=np.float64).reshape(shape),
        outcome=np.array([word for arms in found.values() for word, _ in arms], dtype=np.str_).reshape(shape),
        mixed=tuple(labels[seed] for seed, arms in found.items() if any(word == OTHER for word, _ in arms)),
    )


def _most_used(by_seed: dict[Seed, dict[str, Runs]]) -> Counter[str]:
    return Counter(environment for runs in by_seed.values() for environment, arms in runs.items() for _ in arms)


def _of_seed(runs: dict[str, Runs], accum: list[int], usual: Counter[str]) -> list[tuple[str, float]]:
    """Outcome and value of each arm, all from the one environment in which most arms are done."""

    def rank(environment: str) -> tuple[int, int, str]:
        return sum(_is_done(replicates) for replicates in runs[environment].values()), usual[environment], environment

    chosen = max(runs, key=rank)
    return [_arm(runs[chosen].get(k, []), [each.get(k, []) for each in runs.values()]) for k in accum]


def _is_done(replicates: list[tuple[str, float]]) -> bool:
    return any(status in DONE for status, _ in replicates)


def _arm(here: list[tuple[str, float]], anywhere: list[list[tuple[str, float]]]) -> tuple[str, float]:
    done = [(status, value) for status, value in here if status in DONE]
    if any(status == "diverged" for status, _ in done):
        return "diverged", np.nan
    if done:
        values = [value for _, value in done]
        return ("finished", mean_of(values)) if np.isfinite(values).all() else (NO_VALUE, np.nan)
    if any(_is_done(replicates) for replicates in anywhere):
        return OTHER, np.nan
    return next((status for replicates in anywhere for status, _ in replicates), ABSENT), np.nan


def _seed_label(streams: dict[str, int]) -> str:
    seed = streams.pop("seed")
    apart = [f"{name.removeprefix('seed_')} {value}" for name, value in streams.items() if value != seed]
    return f"{seed} ({', '.join(apart)})" if apart else str(seed)
