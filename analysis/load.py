"""From a root, a sweep's folder, a file, a frame or an MLflow experiment to tidy tables.

The run directories are the truth. A sweep's results.parquet saves reading a finished run again: what it says of a run that is
done never changes, so only the other runs' directories are read. Tables of somebody else are tidied as analysis.tidy says.
"""

import warnings
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa

from accum_sweeps.analysis.export import RESULTS, Fresh, point_tables, read_earlier, scan_with_points
from accum_sweeps.analysis.exported import frame_of, read_points, read_results
from accum_sweeps.analysis.mlflow_rows import experiment_frame, own_results
from accum_sweeps.analysis.mlflow_source import MIGRATE, is_uri, read_experiment
from accum_sweeps.analysis.named_columns import Roles, Source, make_source
from accum_sweeps.analysis.scan import Scan, scan
from accum_sweeps.analysis.table import typed
from accum_sweeps.analysis.table_files import check_kind, columns_in, read_table
from accum_sweeps.analysis.tidy import TableWarning, tidy
from accum_sweeps.analysis.trajectories import SCHEMA
from accum_sweeps.plan.errors import UserError, one_of
from accum_sweeps.plan.words import be, counted
from accum_sweeps.record.store import open_root
from accum_sweeps.record.sweep import SweepDir, open_sweep, sweep_names

_NAME_THEM = "To judge a table of your own, name its columns: accum, seed, response."
_RESULTS_COLUMNS = ("run_id", "setup_id", "accum", "seed", "status")


class DamagedRunWarning(UserWarning):
    """A run directory is damaged; the message names it."""


def load(
    source: str | Path | pd.DataFrame,
    *,
    sweep: str | None = None,
    experiment: str | None = None,
    accum: str | None = None,
    seed: str | None = None,
    replicate: str | None = None,
    control: str | None = None,
    status: str | None = None,
    response: str | Sequence[str] = (),
    setup: str | Sequence[str] = (),
) -> pd.DataFrame:
    """The results table, one row a run (columns: ``accum_sweeps.analysis.table.describe()``).

    ``source`` is a root (all its sweeps, or the one named by ``sweep``), a sweep's folder, an exported results.parquet or results.csv,
    or the tracking URI of an MLflow database or server with the ``experiment`` that this program logs to. A run that several sweeps
    share has a row in each. Damaged run directories are named in warnings.

    Any other CSV, TSV or Parquet file, frame or MLflow experiment is read too, if its columns are named: the accumulation factor, the
    seed, the replicate among reruns, the rounding control, the run's status, the responses and those that make the setup. Columns that
    are called so need not be named; MLflow's may be written without ``params.``, ``metrics.`` and ``tags.`` where that is clear. Such a
    table has the columns of analysis.tidy.OWN and the responses. What was left out or assumed is told in TableWarnings.

    Raises UserError if there is nothing to read at ``source``, or nothing that can be judged.
    """
    roles = Roles(
        accum=accum, seed=seed, replicate=replicate, control=control, status=status, response=_names(response), setup=_names(setup)
    )
    if isinstance(source, pd.DataFrame):
        return _of_frame(source, roles, sweep)
    if is_uri(str(source)):
        return _of_experiment(str(source), experiment, roles, sweep)
    if experiment is not None:
        raise UserError(f"experiment={experiment!r}: only the tracking URI of an MLflow database or server has experiments, not {source}")
    path = Path(source).expanduser()
    if path.is_file():
        return _of_file(path, roles, sweep)
    sweeps = sweeps_at(path, sweep)
    if roles.named():
        role, name = next(iter(roles.named().items()))
        raise UserError(f"{role}={name!r}: the columns of a root or sweep have their names already.\n  Leave it out.")
    return _checked(typed(pd.concat([_results(found) for found in sweeps], ignore_index=True)), roles, str(path))


def _names(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _of_frame(frame: pd.DataFrame, roles: Roles, sweep: str | None) -> pd.DataFrame:
    if not roles.named() and set(_RESULTS_COLUMNS) <= set(frame.columns):
        return _checked(_only(_typed(frame), sweep, "the table"), roles, "the table")
    return _tidied(make_source(frame, "the table"), roles, sweep)


def _typed(frame: pd.DataFrame) -> pd.DataFrame:
    try:
        return typed(frame)
    except (ValueError, TypeError) as error:
        raise UserError(f"the table: a column holds what it does not hold in a results table ({error}).\n  {_NAME_THEM}") from None


def _of_file(path: Path, roles: Roles, sweep: str | None) -> pd.DataFrame:
    check_kind(path)
    columns = columns_in(path)
    lacking = [name for name in _RESULTS_COLUMNS if name not in columns]
    if not roles.named() and not lacking:
        return _checked(_only(read_results(path), sweep, str(path)), roles, str(path))
    if not roles.named() and "accum" not in columns:
        raise UserError(
            f"{path}: is no results table, it lacks the columns {', '.join(lacking)}.\n  {_NAME_THEM} "
            f"It has {', '.join(columns[:20])}{' ...' if len(columns) > 20 else ''}"
        )
    return _tidied(make_source(read_table(path), str(path), path.stem), roles, sweep)


def _of_experiment(uri: str, experiment: str | None, roles: Roles, sweep: str | None) -> pd.DataFrame:
    name, runs = read_experiment(uri, experiment)
    where = f"experiment {name}"
    if not runs:
        raise UserError(f"{where}: has no runs")
    own = [run for run in runs if run.is_own]
    if roles.named() or not own:
        labels, ids = [run.label for run in runs], [run.run_id for run in runs]
        return _tidied(make_source(experiment_frame(runs), where, name, labels=labels, ids=ids), roles, sweep)
    others = sum(not run.is_own and not run.is_sweep for run in runs)
    if others:
        _tell([f"{where}: {counted(others, 'run')} {be(others)} not of this program's sweeps, left out"])
    return _checked(_only(own_results(own), sweep, where), roles, where)


def _tidied(source: Source, roles: Roles, sweep: str | None) -> pd.DataFrame:
    if sweep is not None:
        raise UserError(f"sweep={sweep!r}: {source.name} holds no sweeps of this program.\n  Leave it out.")
    found = tidy(source, roles)
    _tell(found.notes)
    return found.results


def _tell(notes: Sequence[str]) -> None:
    for note in notes:
        warnings.warn(note, TableWarning, stacklevel=5)


def _checked(results: pd.DataFrame, roles: Roles, where: str) -> pd.DataFrame:
    """``results``, in which every response that was asked for is a column."""
    for name in roles.response:
        if name not in results:
            numeric = [str(column) for column in results if pd.api.types.is_numeric_dtype(results[column].dtype)]
            raise UserError(f"{where}: response={name!r}: {one_of(name, numeric)}")
    return results


def trajectories(source: str | Path, *, sweep: str | None = None) -> pd.DataFrame:
    """The measured points, one row a value: run_id, env_id, step, key, value, time.

    ``source`` as for :func:`load`, or an exported trajectories.parquet. Points of a run that several sweeps share come once.
    Raises UserError if there is nothing to read at ``source``.
    """
    path = Path(source).expanduser()
    if path.is_file():
        return read_points(path)
    seen: set[tuple[str, str]] = set()
    tables = [table for found in sweeps_at(path, sweep) for table in _points(found, seen)]
    return frame_of(pa.concat_tables([SCHEMA.empty_table(), *tables]).unify_dictionaries())


def sweeps_at(path: Path, name: str | None = None) -> list[SweepDir]:
    """The planned sweeps that ``path`` stands for: those of a root (or the one of that ``name``), or the one whose folder it is.

    Raises UserError if there is none.
    """
    if not path.is_dir():
        raise UserError(
            f"{path}: no such file or folder.\n  Give a root, a sweep's folder, a CSV or Parquet file, or an MLflow tracking URI."
        )
    if any(path.glob("*/meta.yaml")):
        raise UserError(f"{path}: is a file store of MLflow, which MLflow 3 has closed.\n  {MIGRATE}")
    if path.parent.name == "sweeps" and (path.parent.parent / "root.json").exists():
        path, name = path.parent.parent, name or path.name
    root = open_root(path)
    names = sweep_names(root)
    if not names:
        raise UserError(f"{path}: no sweep is planned in this root yet.\n  Start one with: python -m accum_sweeps +grid=NAME root={path}")
    if name is not None and name not in names:
        raise UserError(f"sweep={name!r} in {path}: {one_of(name, names)}")
    return [open_sweep(root, each) for each in names if name in (None, each)]


def _results(sweep: SweepDir) -> pd.DataFrame:
    found = scan(sweep, read_earlier(sweep.path / RESULTS))
    results = found.results([(position, outcome.values) for position, outcome in found.read()])
    _warn(found)
    return results


def _points(sweep: SweepDir, seen: set[tuple[str, str]]) -> list[pa.Table]:
    """The sweep's points but those of runs in ``seen``, to which its own runs are added."""
    found, _ = scan_with_points(sweep)
    found.leave_out(seen)
    fresh: list[Fresh] = []
    tables = list(point_tables(found, fresh))
    seen |= found.reused_keys() | {(found.planned.runs[position].run_id, str(values["env_id"])) for position, values in fresh}
    _warn(found)
    return tables


def _warn(found: Scan) -> None:
    for problem in found.problems:
        warnings.warn(problem, DamagedRunWarning, stacklevel=4)


def _only(table: pd.DataFrame, sweep: str | None, where: str) -> pd.DataFrame:
    """The rows of ``sweep``, all without one."""
    if sweep is None:
        return table
    names: list[str] = table["sweep"].unique().tolist() if "sweep" in table else []
    if sweep not in names:
        raise UserError(f"sweep={sweep!r} in {where}: {one_of(sweep, names)}")
    return table[table["sweep"] == sweep].reset_index(drop=True)
