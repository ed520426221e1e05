"""Two cells of a sweep against each other, run by run: this cut against that cut, this optimizer against that one."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from accum_sweeps.analysis.distances import Pair, final_distances
from accum_sweeps.analysis.load import load
from accum_sweeps.plan.errors import UserError
from accum_sweeps.plan.pairs import check_pair, matches, read_pairs, same
from accum_sweeps.plan.spec import RUN_KEYS, SETUP_KEYS

_KEPT = ("run_id", "env_id", "setup", "setup_id", "accum", "status", "eval_loss_final")  # of both runs
_COMMON = ("seed", "control", "replicate")
_IN_ENVIRONMENT = ("device", "dtype")  # settings that are part of the environment's fingerprint
DISTANCES = ("step", "other_step", "distance", "relative_distance", "is_equal", "sum_of_norms")


def compare(
    source: pd.DataFrame | str | Path, *, left: Mapping[str, Any], right: Mapping[str, Any], root: str | Path | None = None
) -> pd.DataFrame:
    """The finished runs of the cell ``left``, each with the run of ``right`` that is equal in all else (seed, control, ...).

    ``source`` is a root, a sweep's folder or a results table; with a table the weights are compared only if ``root`` says where its
    runs are. ``left`` and ``right`` name the same keys, as the table's columns do: ``left={"accum": 4}, right={"accum": 2}``.
    Groups are named by their preset, and their keys may differ then.

    One row a pair: run_id, env_id, setup, setup_id, accum and eval_loss_final of the left run and, with ``other_`` before them, of
    the right one; seed, control, replicate; eval_loss_difference, left - right in the loss's unit; and of the weights after each
    run's last step the columns of :func:`accum_sweeps.analysis.distances.final_distances` (missing where a run kept no sketches).
    Raises ConfigError where the cells match no runs, UserError where there is nothing to read.
    """
    [pair] = read_pairs([{"left": left, "right": right}])
    results = source if isinstance(source, pd.DataFrame) else load(source)
    if root is None and not isinstance(source, pd.DataFrame):
        root = _root_of(Path(source).expanduser())
    check_pair(_rows(results, pair), pair)
    return with_distances(matched(results, pair), root)


def matched(results: pd.DataFrame, pair: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """The pairs of runs that ``pair`` makes in ``results``, with the columns of :func:`compare` but the weights'; finished or not."""
    missing = [name for name in _KEPT if name not in results]
    if missing:
        raise UserError(f"the table lacks the columns {', '.join(missing)}; acs.load(...) makes a table that has them")
    runs = results[results["env_id"].notna()].drop_duplicates(["run_id", "env_id"]).reset_index(drop=True)
    places = matches(_rows(runs, pair), pair)
    left, right = (runs.iloc[[place[side] for place in places]].reset_index(drop=True) for side in (0, 1))
    common = [name for name in _COMMON if name in runs]
    table = pd.concat([left[[*_KEPT, *common]], right[list(_KEPT)].add_prefix("other_")], axis=1)
    return table.assign(eval_loss_difference=table["eval_loss_final"] - table["other_eval_loss_final"])


def planned_pairs(results: pd.DataFrame, pair: Mapping[str, Mapping[str, Any]]) -> int:
    """How many pairs of runs ``pair`` makes among all that are planned, in whatever environment they are done."""
    runs = results.drop_duplicates("run_id").drop(columns="env_id")
    return len(matches(_rows(runs, pair), pair))


def with_distances(pairs: pd.DataFrame, root: str | Path | None) -> pd.DataFrame:
    """The pairs whose two runs are finished, with the distances of their weights; those are missing without ``root``."""
    finished = pairs[(pairs["status"] == "finished") & (pairs["other_status"] == "finished")].reset_index(drop=True)
    if root is None:
        return finished.reindex(columns=[*finished.columns, *DISTANCES])
    keys = list(Pair._fields)
    found = final_distances(root, finished[keys].itertuples(index=False, name=None))
    return finished.merge(found.astype(dict(finished[keys].dtypes)), on=keys, how="left", validate="one_to_one")


def _rows(results: pd.DataFrame, pair: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The settings of each row by dotted name, None where there is none; the environment is one, unless the pair makes it differ."""
    different = {key for key in pair["left"] if not same(pair["left"][key], pair["right"][key])}
    heads = {*SETUP_KEYS, *RUN_KEYS} | ({"env_id"} if different.isdisjoint(_IN_ENVIRONMENT) else set())
    settings = results[[name for name in results.columns if str(name).partition(".")[0] in heads]].astype(object)
    return [{str(name): value for name, value in row.items()} for row in settings.where(settings.notna(), None).to_dict("records")]


def _root_of(path: Path) -> Path | None:
    """The root that a source stands for; None for a file, which may lie anywhere."""
    if path.is_file():
        return None
    return path.parent.parent if path.parent.name == "sweeps" and (path.parent.parent / "root.json").exists() else path
