"""The command line of ``python -m accum_sweeps.analysis``: reads a table, judges it, prints the verdicts; notes go to stderr."""

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from accum_sweeps.analysis.cells import KINDS
from accum_sweeps.analysis.judge_source import Asked, judge_source, write_page, write_verdicts
from accum_sweeps.analysis.summary import render
from accum_sweeps.plan.errors import UserError
from accum_sweeps.plan.judging import RESPONSE, Judging

BAD_CALL, INTERRUPTED, BROKEN_PIPE = 2, 130, 141

HELP = """\
Does gradient accumulation change the result, compared with another seed and with rounding? Reads a table of runs,
one row a run, and prints the verdict on each setup, the shifts by accumulation factor and the components of variance.

  python -m accum_sweeps.analysis SOURCE [options]
  python -m accum_sweeps.analysis runs.csv --accum accum --seed seed --response eval_perplexity --setup model,lr
  python -m accum_sweeps.analysis sqlite:///mlflow.db --accum grad_accum --seed seed --response loss --setup lr

SOURCE
  a root or a sweep's folder of this program, or its results.parquet or results.csv: columns need no names
  any CSV, TSV or Parquet file, one row a run
  an MLflow tracking URI (sqlite:///FILE, http://HOST:PORT, ...): one row a run; of a metric its last value

columns (of MLflow params.x, metrics.x, tags.x, or plain x where only one is called so)
  --accum COL            accumulation factor: positive whole numbers
  --seed COL             runs of one seed are compared; a verdict needs 3 seeds. Without it all rows are one seed
  --response COL ...     what is judged, the first one with all its details (default RESPONSE). A column with
                         "perplexity" in its name is judged as its logarithm
  --setup COL[,COL...]   settings besides accumulation and seed: each combination is judged by itself (default: none)
  --replicate COL        number of a rerun with nothing changed
  --control COL          none, or the kind of rounding control (CONTROLS)
  --status COL           finished, diverged, running, failed, ... (default: what MLflow says; elsewhere finished)
Columns called accum, seed, replicate, control and status need no option.

judging
  --reference K          accumulation factor that others are compared with (default: each setup's smallest)
  --margin X             largest shift of the first response that does not matter, in its unit (nats for losses and
                         perplexities)
  --earlier SOURCE       earlier runs of the same setups with other seeds, from which margins come; same columns
  --sign-flip            sign-flip tests in place of paired t tests

more
  --experiment NAME      MLflow experiment (default: the only one); --earlier-experiment NAME for that of --earlier
  --sweep NAME           one sweep of a root or experiment of this program
  --csv FILE             write the verdicts as a table: a row for each setup, response and k
  --html FILE            write the report, one file that needs no network
  --help                 this text

What was left out or assumed is printed to stderr as "note: ...".
Exit codes: 0 judged, whatever the verdict; 2 cannot be judged.
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
    asked = _asked(options)
    judged = judge_source(asked)
    for words in judged.left_out:
        print(f"note: {words}", file=sys.stderr)
    # The files first: whoever reads the text may go away in the middle.
    if options.csv is not None:
        write_verdicts(options.csv, judged)
    if options.html is not None:
        write_page(options.html, judged, asked, shlex.join(["python", "-m", "accum_sweeps.analysis", *given]))
    print(render(judged))
    return 0


def _asked(options: argparse.Namespace) -> Asked:
    responses = tuple(dict.fromkeys(options.response))
    first = responses[0] if responses else RESPONSE
    if options.csv is not None and options.csv == options.html:
        raise UserError(f"--csv and --html both name {options.csv}.\n  Give each a file of its own.")
    judging = Judging(
        reference=options.reference,
        response=first,
        margins={} if options.margin is None else {first: options.margin},
        sign_flip=options.sign_flip,
    )
    columns = {role: getattr(options, role) for role in ("accum", "seed", "replicate", "control", "status", "experiment", "sweep")}
    return Asked(
        source=options.source,
        earlier=options.earlier,
        earlier_experiment=options.earlier_experiment,
        judging=judging,
        others=responses[1:],
        columns=columns | {"response": responses, "setup": [name for text in options.setup for name in text.split(",") if name]},
    )


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}\n  See python -m accum_sweeps.analysis --help")


def _parser() -> _Parser:
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("source", nargs="?")
    for name in ("accum", "seed", "replicate", "control", "status", "earlier", "earlier-experiment", "experiment", "sweep"):
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
    return HELP.replace("RESPONSE", RESPONSE).replace("CONTROLS", ", ".join(KINDS))
