"""Distances between the weights of any two runs, estimated from their sketches."""

import functools
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from accum_sweeps.plan.errors import UserError
from accum_sweeps.record.sketches import Sketches, TensorSketches, load_sketches
from accum_sweeps.record.store import RootDir, open_root

MOST_KEPT = 512  # runs: more would fill the memory, and no setup of usual size has as many


class Pair(NamedTuple):
    """Two runs, each in one environment; distances are relative to the weights of the second."""

    run_id: str
    env_id: str
    other_run_id: str
    other_env_id: str


def distances(
    root: str | Path, pairs: pd.DataFrame | Iterable[tuple[str, str, str, str]], read: "Callable[[str, str], Sketches] | None" = None
) -> pd.DataFrame:
    """L2 distance of the weights of run pairs at every optimizer step that both were sketched after.

    ``pairs`` gives (run_id, env_id, other_run_id, other_env_id), as tuples or as columns of a table such as
    :func:`reference_pairs` makes, whose other columns are kept. One row a pair and step: the pair, step, distance (unit of the
    weights), relative_distance (divided by the other's norm) and is_equal (equal to the last bit; then both distances are
    exactly 0). The estimates have a relative standard deviation of about 1 % (a linear sketch of 4096 numbers). A run
    without sketches gives no row. ``read`` is a :func:`reader` of the root. Raises UserError if there is no root or a sketch file is
    damaged.
    """
    read = read or reader(root, tensors=False)
    table = pairs if isinstance(pairs, pd.DataFrame) else pd.DataFrame(list(pairs), columns=list(Pair._fields))
    rows = [
        (*pair, step, *values)
        for pair in map(Pair._make, table[list(Pair._fields)].drop_duplicates().itertuples(index=False, name=None))
        for step, values in between(read(pair.run_id, pair.env_id), read(pair.other_run_id, pair.other_env_id)).items()
    ]
    found = pd.DataFrame(rows, columns=[*Pair._fields, "step", "distance", "relative_distance", "is_equal"])
    return table.drop_duplicates(list(Pair._fields)).merge(found.astype(dict(table[list(Pair._fields)].dtypes)), on=list(Pair._fields))


def final_distances(
    root: str | Path, pairs: Iterable[tuple[str, str, str, str]], read: "Callable[[str, str], Sketches] | None" = None
) -> pd.DataFrame:
    """L2 distance of the weights of run pairs, each after its own last optimizer step; ``pairs`` as tuples of :class:`Pair`.

    One row a pair: the pair, step and other_step, distance, relative_distance and is_equal as in :func:`distances`, and
    sum_of_norms: the sum over parameter tensors of the L2 norm of their difference (NaN without probe_tensors=true in both, or
    where the tensors are not the same). Each norm has a relative standard deviation of at most 3.1 %, their sum a smaller one. A run
    without sketches gives no row. ``read`` is a :func:`reader` of the root to share with other questions. Raises UserError if there is no
    root or a sketch file is damaged.
    """
    read = read or reader(root)
    columns = [*Pair._fields, "step", "other_step", "distance", "relative_distance", "is_equal", "sum_of_norms"]
    rows: list[tuple[object, ...]] = []
    for pair in map(Pair._make, pairs):
        a, b = read(pair.run_id, pair.env_id), read(pair.other_run_id, pair.other_env_id)
        if a.by_step and b.by_step:
            step, other = max(a.by_step), max(b.by_step)
            tensors = between_tensors(a.tensors.get(step), b.tensors.get(other))
            total = np.nan if tensors is None else float(tensors["distance"].sum())
            rows.append((*pair, step, other, *_apart(a.by_step[step], b.by_step[other]), total))
    return pd.DataFrame(rows, columns=columns)


def tensor_distances(root: str | Path, pairs: Iterable[tuple[str, str, str, str]]) -> pd.DataFrame:
    """The same by parameter tensor, for runs with probe_tensors=true: one row a pair and tensor.

    Columns: the pair, tensor, size (weights in it), distance, relative_distance (NaN where the other's norm is 0), is_equal.
    """
    read, tables = reader(root), []
    for pair in map(Pair._make, pairs):
        a, b = read(pair.run_id, pair.env_id), read(pair.other_run_id, pair.other_env_id)
        found = between_tensors(a.tensors.get(max(a.tensors, default=0)), b.tensors.get(max(b.tensors, default=0)))
        if found is not None:
            tables.append(pd.DataFrame({**dict(zip(Pair._fields, pair, strict=True)), **found}))
    columns = [*Pair._fields, "tensor", "size", "distance", "relative_distance", "is_equal"]
    return pd.concat(tables, ignore_index=True)[columns] if tables else pd.DataFrame(columns=columns)


Reader = Callable[[str, str], Sketches]


def reader(root: str | Path, done: pd.DataFrame | None = None, *, tensors: bool = True) -> Reader:
    """A function from (run_id, env_id) to the sketches of a run of ``root``, which it keeps for a while.

    ``done``: rows of a results table of runs that are done, whose attempts need not be looked up any more. Without ``tensors`` only
    the sketches of all weights together are read.
    """
    opened = open_root(Path(root).expanduser())
    attempts: dict[tuple[str, str], int] = {}
    if done is not None and "attempt" in done:
        known = done[done["attempt"].notna()]
        attempts = dict(zip(zip(known["run_id"], known["env_id"], strict=True), known["attempt"].astype(int), strict=True))

    @functools.lru_cache(maxsize=MOST_KEPT)
    def read(run_id: str, env_id: str) -> Sketches:
        return read_sketches(opened, run_id, env_id, attempts.get((run_id, env_id)), tensors=tensors)

    return read


def read_sketches(root: RootDir, run_id: str, env_id: str, attempt: int | None = None, *, tensors: bool = True) -> Sketches:
    """The sketches of a run's newest started attempt, which hold those of the attempts it continued; ``attempt`` if it is known.

    Raises UserError naming the file if it is damaged.
    """
    run_dir = root.run_dir(run_id, env_id)
    if attempt is None:
        newest = run_dir.history().newest
        attempt = newest.number if newest else 0
    path = run_dir.sketches_path(attempt)
    try:
        return load_sketches(path, tensors=tensors)
    except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"{path}: cannot be read as sketches ({error}).\n  Leave the run {run_id} out, or run it again.") from None


def last_distance(a: Sketches, b: Sketches) -> float | None:
    """L2 distance of the weights of two runs, each after its own last optimizer step; None where one has no sketches."""
    if not (a.by_step and b.by_step):
        return None
    (left, _), (right, _) = a.by_step[max(a.by_step)], b.by_step[max(b.by_step)]
    return float(np.linalg.norm(left - right))


def between(a: Sketches, b: Sketches) -> dict[int, tuple[float, float, bool]]:
    """By common step: (distance, distance relative to the norm of ``b``, whether the weights are equal to the last bit)."""
    return {step: _apart(a.by_step[step], b.by_step[step]) for step in sorted(a.by_step.keys() & b.by_step.keys())}


def _apart(a: tuple[NDArray[np.float64], str], b: tuple[NDArray[np.float64], str]) -> tuple[float, float, bool]:
    (sketch, digest), (other, other_digest) = a, b
    distance, norm = float(np.linalg.norm(sketch - other)), float(np.linalg.norm(other))
    relative = distance / norm if norm > 0 else np.nan
    return distance, 0.0 if distance == 0 else relative, digest == other_digest


def between_tensors(a: TensorSketches | None, b: TensorSketches | None) -> dict[str, Any] | None:
    """Columns tensor, size, distance, relative_distance, is_equal; None where one is missing or the tensors are not the same."""
    if a is None or b is None or a.names != b.names or a.sizes.tolist() != b.sizes.tolist():
        return None
    distance, norm = np.linalg.norm(a.sketches - b.sketches, axis=1), np.linalg.norm(b.sketches, axis=1)
    relative = np.divide(distance, norm, out=np.where(distance == 0, 0.0, np.nan), where=norm > 0)
    equal = [left == right for left, right in zip(a.hashes, b.hashes, strict=True)]
    return {"tensor": a.names, "size": a.sizes, "distance": distance, "relative_distance": relative, "is_equal": equal}


def reference_pairs(results: pd.DataFrame, reference: int | None = None) -> pd.DataFrame:
    """Each run against the run of the reference arm with the same setup, seeds, control, replicate and environment.

    ``reference`` is the accumulation factor compared with, by default the smallest of each setup. Columns: those of
    :class:`Pair`, then setup, setup_id, accum, seed, control, replicate. A run without a partner is left out.
    """
    same = ["setup_id", "seed", "seed_init", "seed_data", "seed_dropout", "control", "replicate", "env_id"]
    runs = results[results["env_id"].notna()].drop_duplicates(["run_id", "env_id"])
    smallest = runs.groupby("setup_id")["accum"].transform("min") if reference is None else reference
    is_reference = runs["accum"] == smallest
    partners = runs.loc[is_reference, [*same, "run_id"]].rename(columns={"run_id": "other_run_id"})
    pairs = runs[~is_reference].merge(partners, on=same, validate="many_to_one")
    pairs["other_env_id"] = pairs["env_id"]
    return pairs[[*Pair._fields, "setup", "setup_id", "accum", "seed", "control", "replicate"]]
