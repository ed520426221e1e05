"""From rows of the results table to arrays: for each setup a value and an outcome by seed and accumulation factor.

Shapes: S seeds (a seed is one combination of the seed streams), K accumulation factors, ascending; n rows.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from accum_sweeps.analysis.paired import Floats, mean_of
from accum_sweeps.plan.errors import UserError, one_of
from accum_sweeps.plan.spec import CONTROLS, RUN_KEYS, SEED_STREAMS
from accum_sweeps.record.events import DONE

OTHER, NO_VALUE, ABSENT = "other environment", "no value", "absent"
NEEDED = ("accum", "seed", "status")
NONE = "none"  # the control of a run that is none
KINDS = tuple(kind for kind in CONTROLS if kind != NONE)


@dataclass(frozen=True, kw_only=True)
class Replicates:
    """Every finished value of runs without control: ``value`` (n,), ``seed`` and ``k`` (n,) count into Cells.seeds and Cells.accum."""

    value: Floats
    seed: NDArray[np.intp]
    k: NDArray[np.intp]

    def reruns(self) -> tuple[int, int]:
        """Cells with two values or more, and how many of them have equal values to the last bit."""
        order = np.lexsort((self.k, self.seed))
        value, cell = self.value[order], np.stack([self.seed, self.k])[:, order]
        same_cell = (cell[:, 1:] == cell[:, :-1]).all(axis=0)
        repeated = {tuple(c) for c in cell[:, 1:][:, same_cell].T.tolist()}
        unequal = {tuple(c) for c in cell[:, 1:][:, same_cell & (value[1:] != value[:-1])].T.tolist()}
        return len(repeated), len(repeated) - len(unequal)


@dataclass(frozen=True, kw_only=True)
class Cells:
    """The runs of one setup.

    ``y`` is float64 (S, K): the response of a finished cell, NaN otherwise; the mean of its replicates where all cells have equally many,
    else its first one, as means of different numbers of values have different variances. ``outcome`` is an array of words
    (S, K): finished, diverged, or why the cell cannot be used (running, planned, failed, lost, cancelled, absent, no value, other
    environment). ``data_seeds`` are those of the stream of the data, for each of ``seeds``. ``controls`` holds by kind the responses
    (S, K) of finished controls of these cells. ``mixed`` names the seeds whose arms were done in several environments: only runs of one
    environment are compared, those of the environment that holds most arms.
    """

    setup: str
    setup_id: str
    accum: tuple[int, ...]
    seeds: tuple[str, ...]
    data_seeds: tuple[object, ...]
    y: Floats
    outcome: NDArray[np.str_]
    mixed: tuple[str, ...]
    controls: Mapping[str, Floats]
    replicates: Replicates
    is_grouped: bool = False

    @property
    def complete(self) -> NDArray[np.bool_]:
        """Per seed (S,): every arm is finished or diverged."""
        return np.asarray(np.isin(self.outcome, DONE).all(axis=1))

    def count(self, outcome: str) -> NDArray[np.int64]:
        """Per arm (K,): how many seeds have this outcome."""
        return np.asarray((self.outcome == outcome).sum(axis=0))


def by_data_seed(cells: Cells) -> Cells:
    """``cells`` with the seeds that share their data taken together, where there are several such groups: they are no independent units.

    A value is the mean of the group's; a group with a diverged run has diverged, one with a missing value has none.
    """
    groups = [str(seed) for seed in cells.data_seeds]
    names = list(dict.fromkeys(groups))
    if not 1 < len(names) < len(groups):
        return cells
    rows = [np.flatnonzero(np.array(groups) == name) for name in names]

    def means(y: Floats) -> Floats:
        return np.array([[mean_of(y[row, k]) for k in range(len(cells.accum))] for row in rows])

    return replace(
        cells,
        seeds=tuple(f"data {name}" for name in names),
        data_seeds=tuple(names),
        y=means(cells.y),
        outcome=np.array([[_worst(cells.outcome[row, k].tolist()) for k in range(len(cells.accum))] for row in rows], dtype=np.str_),
        controls={kind: means(y) for kind, y in cells.controls.items()},
        is_grouped=True,
    )


def _worst(outcomes: list[str]) -> str:
    """What a group's outcome is: finished only if all are."""
    return next((word for word in outcomes if word not in DONE), "diverged" if "diverged" in outcomes else "finished")


def setups(results: pd.DataFrame, response: str) -> Iterator[Cells]:
    """The cells of every setup in ``results``, in the order of their first row.

    Raises UserError if a needed column is missing. Rows of several sweeps that are the same run count once.
    """
    key = _check(results, response)
    if "measure" in results:  # a single step, compared within itself, is no training and has no outcome
        results = results[(~results["measure"].isin(["one_step", "ladder"])).to_numpy(dtype=np.bool_)]
    identity = [name for name in ("run_id", "env_id") if name in results]
    runs = results.drop_duplicates(identity) if "run_id" in identity else results
    for setup_id, rows in runs.groupby(key, sort=False, observed=True):
        label = str(rows["setup"].iloc[0]) if "setup" in rows else str(setup_id)
        if (_control(rows) == NONE).any():
            yield cells(rows, response, label, str(setup_id))


def _control(rows: pd.DataFrame) -> NDArray[np.str_]:
    return rows["control"].to_numpy(dtype=np.str_) if "control" in rows else np.full(len(rows), NONE)


def _check(results: pd.DataFrame, response: str) -> str:
    missing = [name for name in NEEDED if name not in results]
    key = next((name for name in ("setup_id", "setup") if name in results), None)
    if missing or key is None:
        raise UserError(f"the table lacks the columns {', '.join(missing or ['setup_id'])}; acs.load(...) makes a table that has them")
    if response in RUN_KEYS or response in ("setup_id", "revision", "attempt"):
        raise UserError(f"response={response!r}: is what was asked for, not what came of it; {one_of(response, _numeric(results))}")
    if response not in results:
        raise UserError(f"response={response!r}: {one_of(response, _numeric(results))}")
    if not pd.api.types.is_numeric_dtype(results[response].dtype):
        raise UserError(f"response={response!r}: holds no numbers; {one_of(response, _numeric(results))}")
    return str(key)


def _numeric(results: pd.DataFrame) -> list[str]:
    return [str(name) for name in results.columns if str(name).endswith(("_final", "_area")) or str(name) in ("wall_s", "peak_mem_gb")]


Seed = tuple[int, ...]
Runs = dict[int, list[tuple[str, float]]]  # by accumulation factor: status and response of each replicate, in the replicates' order
Environments = dict[str, dict[str, Runs]]  # by environment and control


def cells(rows: pd.DataFrame, response: str, setup: str, setup_id: str) -> Cells:
    """The cells of one setup's ``rows``."""
    streams = [name for name in ("seed", *SEED_STREAMS) if name in rows]
    by_seed = _by_seed(rows, response, streams)
    accum = sorted({k for runs in by_seed.values() for controls in runs.values() for k in controls.get(NONE, {})})
    usual = Counter(environment for runs in by_seed.values() for environment, controls in runs.items() for _ in controls.get(NONE, {}))
    here = {seed: _environment(by_seed[seed], usual) for seed in sorted(by_seed)}
    chosen = {seed: by_seed[seed][environment] for seed, environment in here.items()}
    # Means of different numbers of values have different variances: then only the first replicate is compared.
    numbers = {sum(status in DONE for status, _ in runs) for found in chosen.values() for runs in found.get(NONE, {}).values()} - {0}
    most = None if len(numbers) < 2 else 1
    arms = [
        [_arm(chosen[seed].get(NONE, {}).get(k, []), [e.get(NONE, {}).get(k, []) for e in by_seed[seed].values()], most) for k in accum]
        for seed in chosen
    ]
    labels = [_seed_label(dict(zip(streams, seed, strict=True))) for seed in chosen]
    shape = (len(chosen), len(accum))
    return Cells(
        setup=setup,
        setup_id=setup_id,
        accum=tuple(accum),
        seeds=tuple(labels),
        data_seeds=tuple(seed[streams.index("seed_data" if "seed_data" in streams else "seed")] for seed in chosen),
        y=np.array([value for row in arms for _, value in row], dtype=np.float64).reshape(shape),
        outcome=np.array([word for row in arms for word, _ in row], dtype=np.str_).reshape(shape),
        mixed=tuple(label for label, row in zip(labels, arms, strict=True) if any(word == OTHER for word, _ in row)),
        controls=_controls(list(chosen.values()), accum),
        replicates=_replicates(list(chosen.values()), accum),
    )


def _by_seed(rows: pd.DataFrame, response: str, streams: list[str]) -> dict[Seed, Environments]:
    found: dict[Seed, Environments] = {}
    if "replicate" in rows:
        rows = rows.sort_values("replicate", kind="stable")
    environments = rows["env_id"].astype(object).where(rows["env_id"].notna(), "") if "env_id" in rows else [""] * len(rows)
    values = rows[response].to_numpy(dtype=np.float64, na_value=np.nan).tolist()
    seeds = zip(*(rows[name].tolist() for name in streams), strict=True)
    columns = zip(seeds, environments, _control(rows).tolist(), rows["accum"].tolist(), rows["status"], values, strict=True)
    for seed, environment, control, k, status, value in columns:
        controls = found.setdefault(seed, {}).setdefault(environment, {})
        controls.setdefault(control, {}).setdefault(int(k), []).append((str(status), value))
    return found


def _environment(runs: Environments, usual: Counter[str]) -> str:
    """The one environment in which most arms of a seed are done."""

    def rank(environment: str) -> tuple[int, int, str]:
        return sum(_is_done(arm) for arm in runs[environment].get(NONE, {}).values()), usual[environment], environment

    return max(runs, key=rank)


def _is_done(replicates: list[tuple[str, float]]) -> bool:
    return any(status in DONE for status, _ in replicates)


def _arm(here: list[tuple[str, float]], anywhere: list[list[tuple[str, float]]], most: int | None) -> tuple[str, float]:
    """Outcome and value of a cell from its first ``most`` replicates (None: all)."""
    done = [(status, value) for status, value in here if status in DONE][:most]
    if any(status == "diverged" for status, _ in done):
        return "diverged", np.nan
    if done:
        values = [value for _, value in done]
        return ("finished", mean_of(values)) if np.isfinite(values).all() else (NO_VALUE, np.nan)
    if any(_is_done(replicates) for replicates in anywhere):
        return OTHER, np.nan
    return next((status for replicates in anywhere for status, _ in replicates), ABSENT), np.nan


def _finished(runs: list[tuple[str, float]]) -> list[float]:
    return [value for status, value in runs if status == "finished" and np.isfinite(value)]


def _controls(chosen: list[dict[str, Runs]], accum: list[int]) -> dict[str, Floats]:
    """By kind the first finished value of each cell's controls (S, K), NaN where there is none; kinds without a value are left out."""
    found = {}
    for kind in KINDS:
        values = [[next(iter(_finished(runs.get(kind, {}).get(k, []))), np.nan) for k in accum] for runs in chosen]
        table = np.array(values, dtype=np.float64).reshape(len(chosen), len(accum))
        if np.isfinite(table).any():
            found[kind] = table
    return found


def _replicates(chosen: list[dict[str, Runs]], accum: list[int]) -> Replicates:
    rows = [
        (value, seed, place)
        for seed, runs in enumerate(chosen)
        for place, k in enumerate(accum)
        for value in _finished(runs.get(NONE, {}).get(k, []))
    ]
    value, seeds, ks = zip(*rows, strict=True) if rows else ((), (), ())
    return Replicates(value=np.array(value, dtype=np.float64), seed=np.array(seeds, dtype=np.intp), k=np.array(ks, dtype=np.intp))


def _seed_label(streams: dict[str, int]) -> str:
    seed = streams.pop("seed")
    apart = [f"{name.removeprefix('seed_')} {value}" for name, value in streams.items() if value != seed]
    return f"{seed} ({', '.join(apart)})" if apart else str(seed)
