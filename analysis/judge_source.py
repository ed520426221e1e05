"""Any table, judged: reads it, says what was left out and why, and writes what was found."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from accum_sweeps.analysis.judged import Judged, judge_table
from accum_sweeps.analysis.load import DamagedRunWarning, load, sweeps_at, trajectories
from accum_sweeps.analysis.margin import MarginSource
from accum_sweeps.analysis.mlflow_source import is_uri
from accum_sweeps.analysis.one_step import is_one_step
from accum_sweeps.analysis.summary import of_newest_plan
from accum_sweeps.analysis.tidy import TableWarning
from accum_sweeps.plan.errors import UserError
from accum_sweeps.plan.judging import Judging, read_judging
from accum_sweeps.plan.words import counted
from accum_sweeps.record.sweep import SweepDir

# Where a margin comes from.
GIVEN = MarginSource(words="given with the command: whether before the runs is not known", is_late=True)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is to be judged and how. ``columns`` are the further arguments of ``load``; ``earlier`` is where margins come from,
    ``earlier_experiment`` its experiment where that is another one.

    ``others`` are responses that are judged besides that of ``judging``.
    """

    source: str
    judging: Judging
    earlier: str | None = None
    earlier_experiment: str | None = None
    others: tuple[str, ...] = ()
    columns: Mapping[str, Any] = field(default_factory=dict)


def judge_source(asked: Asked) -> Judged:
    """The table at ``asked.source``, judged. ``left_out`` begins with what the reading left out or assumed.

    Raises UserError for what ``load`` and ``judge_table`` refuse, and if no run is left to judge.
    """
    results, told = _read(asked.source, asked.columns)
    earlier, told_earlier = _earlier(asked)
    newest = of_newest_plan(results)
    judged = _judge(newest, asked.judging, earlier, root_of(asked.source))
    if not judged.opening:
        raise UserError(f"{asked.source}: there is no run to judge")
    for response in asked.others:
        other = _judge(newest, replace(asked.judging, response=response, margins={}), earlier, None)
        # In the order in which they were asked for, those that every table is judged on after them.
        verdicts, components = {response: other.verdicts[response]}, {response: other.components[response]}
        judged = replace(judged, verdicts={**judged.verdicts, **verdicts}, components={**judged.components, **components})
    told += [*told_earlier, *_planned_otherwise(asked)]
    # What the reading has told already, with the rows that it is about, is not told again.
    further = [words for words in judged.left_out if not any(words.rpartition(": ")[2] in note for note in told)]
    return replace(judged, left_out=(*told, *further))


def _judge(results: pd.DataFrame, judging: Judging, earlier: pd.DataFrame | None, root: Path | None) -> Judged:
    return judge_table(results, judging, earlier=earlier, margin_source=GIVEN, root=root)


def _read(source: str, columns: Mapping[str, Any]) -> tuple[pd.DataFrame, list[str]]:
    """The trainings at ``source``, and what was left out or assumed."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", TableWarning)
        warnings.simplefilter("always", DamagedRunWarning)
        results = load(source, **columns)
    told = []
    for each in caught:
        if issubclass(each.category, (TableWarning, DamagedRunWarning)):
            told.append(str(each.message))
        else:
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
    steps = is_one_step(results) if "measure" in results else pd.Series(False, index=results.index)
    if steps.any():
        told.append(f"no response to judge in {counted(int(steps.sum()), 'run')} of a single optimizer step, which action=report shows")
    return results[~steps], told


def _earlier(asked: Asked) -> tuple[pd.DataFrame | None, list[str]]:
    """The runs that margins come from, read as those that are judged, as far as their source has such columns."""
    if asked.earlier is None:
        return None, []
    columns = {name: value for name, value in asked.columns.items() if name != "sweep"}
    experiment = asked.earlier_experiment or columns.get("experiment")
    if root_of(asked.earlier) is not None:
        return _read(asked.earlier, {})
    return _read(asked.earlier, {**columns, "experiment": experiment if is_uri(asked.earlier) else None})


def root_of(source: str) -> Path | None:
    """The root that holds the runs' directories, if ``source`` is one or a sweep's folder."""
    path = Path(source).expanduser()
    return next((each for each in (path, path.absolute().parent.parent) if path.is_dir() and (each / "root.json").exists()), None)


def _sweeps(asked: Asked) -> list[SweepDir]:
    """The sweeps of this program that are judged; none for a file or experiment."""
    return sweeps_at(Path(asked.source).expanduser(), asked.columns.get("sweep")) if root_of(asked.source) else []


def _planned_otherwise(asked: Asked) -> list[str]:
    """A plan may fix how its sweep is judged; the command judges as it was told."""
    found = []
    for sweep in _sweeps(asked):
        planned = read_judging(sweep.read_plan().header.get("judging") or {}).asked()
        if planned:
            keys = ", ".join(f"{key}={value}" for key, value in planned.items())
            found.append(f"the plan of sweep {sweep.name} fixes {keys}; this command judges by its own options, action=report by the plan")
    return found


def write_verdicts(path: Path, judged: Judged) -> None:
    """The verdicts as CSV: a row for each setup, response and arm but the reference. Raises UserError if it cannot be written."""
    frames = [verdicts.to_frame() for verdicts in judged.verdicts.values()]
    table = pd.concat([frame for frame in frames if len(frame)] or frames[:1], ignore_index=True)
    _written(path, lambda: table.to_csv(path, index=False))


def write_page(path: Path, judged: Judged, asked: Asked, command: str) -> None:
    """The report, with curves where ``asked.source`` has any. Raises UserError if it cannot be written."""
    from accum_sweeps.analysis.report import write_report
    from accum_sweeps.analysis.report_facts import sweep_facts
    from accum_sweeps.analysis.report_setups import detailed
    from accum_sweeps.analysis.series import sketch_distances

    sweeps, root = _sweeps(asked), root_of(asked.source)
    facts = sweep_facts(sweeps[0], judged.results) if len(sweeps) == 1 else {"command": command}
    curves = distances = None
    if root is not None:
        shown = judged.results[judged.results["setup_id"].isin(detailed(judged))]
        curves = trajectories(asked.source, sweep=asked.columns.get("sweep"))
        distances = sketch_distances(root, shown, asked.judging.reference)
    _written(path, lambda: write_report(path, judged, facts=facts, curves=curves, distances=distances))


def _written(path: Path, write: Callable[[], Any]) -> None:
    # A page is written beside its place and renamed, which would put a file where a device or a pipe was.
    if path.exists() and not path.is_file():
        raise UserError(f"{path}: is no file that could be written.\n  Name a file, or one that is not there yet.")
    try:
        write()
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror or error})") from None
