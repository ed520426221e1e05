"""The command line of ``python -m accum_sweeps.analysis``: reads a table, judges it, prints the verdicts; notes go to stderr."""

import argparse
import os
import shlex
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pandas as pd

from accum_sweeps.analysis.judged import Judged, judge_table
from accum_sweeps.analysis.load import DamagedRunWarning, load, trajectories
from accum_sweeps.analysis.one_step import is_one_step
from accum_sweeps.analysis.summary import of_newest_plan, render
from accum_sweeps.analysis.tidy import TableWarning
from accum_sweeps.plan.errors import UserError
from accum_sweeps.plan.judging import RESPONSE, Judging

BAD_CALL, INTERRUPTED, BROKEN_PIPE = 2, 130, 141
GIVEN = "given with the command, so not fixed in advance as far as this program knows"

HELP = """\
Does gradient accumulation change the result, compared with another seed and with rounding? Reads a table of runs, one row a
run, and prints the verdict on each setup, the shifts by accumulation factor and the components of variance.

  python -m accum_sweeps.analysis SOURCE [options]
  python -m accum_sweeps.analysis runs.csv --accum accum --seed seed --response eval_perplexity --setup model,lr
  python -m accum_sweeps.analysis sqlite:///mlflow.db --experiment lm --accum grad_accum_steps --seed seed --response eval_loss

SOURCE
  a root or a sweep's folder of this program, or its exported results.parquet or results.csv: needs no names of columns
  any CSV, TSV or Parquet file, one row a run
  an MLflow tracking URI (sqlite:///FILE, http://HOST:PORT, ...): one row a run; of a metric its last value

columns; of MLflow params.x, metrics.x, tags.x, or plain x where only one is called so
  --accum COL            accumulation factor: positive whole numbers
  --seed COL             runs of one seed are compared with each other; at least 3 seeds are needed. Without it all rows are one seed
  --response COL ...     what is judged, the first one with all its details (default RESPONSE). A column with "perplexity" in
                         its name is judged as its logarithm
  --setup COL[,COL...]   settings besides accumulation and seed: each combination is judged by itself (default: all rows together)
  --replicate COL        number of a rerun with nothing changed
  --control COL          none, or the kind of rounding control: CONTROLS
  --status COL           finished, diverged, running, failed, ... (MLflow knows it; elsewhere the default is finished)

judging
  --reference K          accumulation factor that others are compared with (default: each setup's smallest)
  --margin X             largest shift of the first response that does not matter, in its unit (nats for losses and perplexities)
  --earlier SOURCE       earlier runs of the same setups with other seeds, from which margins come
  --sign-flip            sign-flip tests in place of paired t tests

more
  --experiment NAME      MLflow experiment (default: the only one)
  --sweep NAME           one sweep of a root or experiment of this program
  --csv FILE             write the verdicts as a table: a row for each setup, response and k
  --html FILE            write the report, one file that needs no network
  --help                 this text

What was left out or assumed is printed to stderr as "note: ...". Exit codes: 0 judged, whatever the verdict; 2 cannot be judged.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out one command line; the exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        return _main(given)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_CALL
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader of the output (head, less) has gone; python would complain again at its exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE


def _main(given: Sequence[str]) -> int:
    options = _parser().parse_args(given)
    if options.help:
        print(_help(), end="")
        return 0
    if options.source is None:
        raise UserError("SOURCE is missing; write it first, before the options.\n  See python -m accum_sweeps.analysis --help")
    told: list[str] = []
    results = _trainings(_read(options, options.source, told))
    earlier = None if options.earlier is None else _trainings(_read(options, options.earlier, []))
    judged = _judged(options, of_newest_plan(results), earlier)
    if not judged.opening:
        raise UserError(f"{options.source}: no run to judge, all rows are rounding controls or none is left")
    for words in judged.left_out:
        if not any(words.rpartition(": ")[2] in note for note in told):  # the reading named the rows of it already
            _note(words)
    _write(options, judged, shlex.join(["python", "-m", "accum_sweeps.analysis", *given]))  # first: the reader of the text may go away
    print(render(judged))
    return 0


def _read(options: argparse.Namespace, source: str, told: list[str]) -> pd.DataFrame:
    """The table of ``source``; what the reading has to tell goes to stderr and into ``told``."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", TableWarning)
        warnings.simplefilter("always", DamagedRunWarning)
        results = load(
            source,
            sweep=options.sweep,
            experiment=options.experiment,
            accum=options.accum,
            seed=options.seed,
            replicate=options.replicate,
            control=options.control,
            status=options.status,
            response=options.response,
            setup=[name for text in options.setup for name in text.split(",") if name],
        )
    for each in caught:
        if issubclass(each.category, (TableWarning, DamagedRunWarning)):
            told.append(str(each.message))
            _note(told[-1])
        else:
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
    return results


def _note(words: str) -> None:
    print(f"note: {words}", file=sys.stderr)


def _trainings(results: pd.DataFrame) -> pd.DataFrame:
    """``results`` without runs of a single optimizer step, which have no response to judge."""
    if "measure" not in results:
        return results
    steps = is_one_step(results)
    if steps.any():
        _note(f"{int(steps.sum())} runs of a single optimizer step are not judged; action=report shows them")
    return results[~steps]


def _judged(options: argparse.Namespace, results: pd.DataFrame, earlier: pd.DataFrame | None) -> Judged:
    """The judged table, with the verdicts on all responses that were asked for."""
    responses = list(dict.fromkeys(options.response)) or [RESPONSE]
    root = _root(options.source)
    found = []
    for response in responses:
        is_first = response == responses[0]
        judging = Judging(
            reference=options.reference,
            response=response,
            margins={response: options.margin} if options.margin is not None and is_first else {},
            sign_flip=options.sign_flip,
        )
        found.append(judge_table(results, judging, earlier=earlier, margin_source=GIVEN, root=root if is_first else None))
    verdicts = {name: each for judged in reversed(found) for name, each in judged.verdicts.items()}
    components = {name: each for judged in reversed(found) for name, each in judged.components.items()}
    order = list(dict.fromkeys([*responses, *verdicts]))
    return replace(found[0], verdicts={name: verdicts[name] for name in order}, components={name: components[name] for name in order})


def _root(source: str) -> Path | None:
    """The root that holds the runs' sketches, if ``source`` is one or a sweep's folder."""
    path = Path(source).expanduser()
    return next((each for each in (path, path.parent.parent) if path.is_dir() and (each / "root.json").exists()), None)


def _write(options: argparse.Namespace, judged: Judged, command: str) -> None:
    if options.csv is not None:
        frames = [verdicts.to_frame() for verdicts in judged.verdicts.values()]
        table = pd.concat([frame for frame in frames if len(frame)] or frames[:1], ignore_index=True)
        _saved(options.csv, lambda path: table.to_csv(path, index=False))
    if options.html is not None:
        from accum_sweeps.analysis.report import write_report

        curves = trajectories(options.source, sweep=options.sweep) if _root(options.source) else None
        facts = {"command": command, "source": options.source}
        _saved(options.html, lambda path: write_report(path, judged, facts=facts, curves=curves, distances=None))


def _saved(path: Path, write: Callable[[Path], Any]) -> None:
    try:
        write(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror or error})") from None


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}\n  See python -m accum_sweeps.analysis --help")


def _parser() -> _Parser:
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("source", nargs="?")
    for name in ("accum", "seed", "replicate", "control", "status", "earlier", "experiment", "sweep"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--response", nargs="+", action="extend", default=[])
    parser.add_argument("--setup", nargs="+", action="extend", default=[])
    parser.add_argument("--reference", type=_factor)
    parser.add_argument("--margin", type=_margin)
    parser.add_argument("--sign-flip", action="store_true")
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--html", type=Path)
    parser.add_argument("--help", "-h", action="store_true")
    return parser


def _factor(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be an accumulation factor, a positive whole number")
    return int(text)


def _margin(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} must be above 0 and finite, in the response's unit")
    return value


def _help() -> str:
    from accum_sweeps.analysis.cells import KINDS

    return HELP.replace("RESPONSE", RESPONSE).replace("CONTROLS", ", ".join(KINDS))
