"""The command: ``python -m accum_sweeps`` and ``accum-sweeps``. Hydra's only door; imports neither torch nor mlflow."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from accum_sweeps.plan.errors import UserError

BAD_CONFIGURATION, INTERRUPTED, BROKEN_PIPE = 2, 130, 141

HELP = """\
Does gradient accumulation change what you train, compared with just another seed? A designed grid of trainings
answers, with rounding controls, MLflow and a results table.

  python -m accum_sweeps +grid=NAME [key=value ...]
  python -m accum_sweeps +grid=adamw                             run what is missing, then show the table
  python -m accum_sweeps +grid=adamw action=plan                 list the runs, start nothing
  python -m accum_sweeps +grid=adamw optimizer.lr=1e-3 seed=3    a key for all runs; an axis reduced to one value
  python -m accum_sweeps +grid=adamw 'axes={accum:[1,16],model.norm:[rmsnorm,none],seed:{range:3}}'
  python -m accum_sweeps subject=python subject.target=my.module:Setup 'axes={seed:{range:5},accum:[1,4]}'

actions (action=...)
  run      start the runs that are missing (default)      sync     bring all runs into MLflow
  plan     runs, counts, expected time; starts nothing    cancel   stop the sweep
  status   state of every run                             list     all sweeps of the root
  report   tables and verdicts again                      prune    what could be deleted; asks first

axes
  'axes={NAME:[a,b]}', 'axes={NAME:{range:n}}'   replace or add; NAME is a group (optimizer) or a key (model.norm)
  axes.NAME=[a,b]  '~axes.NAME'  '~axes'         one axis; without it; without all of them

grids (+grid=NAME)GRIDS

options
  --config-dir DIR   your own grids and presets: DIR/grid/*.yaml, DIR/optimizer/*.yaml, ... (may be repeated)
  --cfg job          print the configuration and stop
  --help             this text

Results go to root= (or $ACCUM_SWEEPS_ROOT, default ./sweeps). The keys and their meaning: CONFIG
exit codes: 0 done, 1 some runs failed, 2 bad configuration, 3 done but MLflow lags, 4 an audit found a fault, 130 interrupted
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out one command line; the exit code."""
    try:
        return _main(sys.argv[1:] if arguments is None else arguments)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_CONFIGURATION
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader of the output (head, less) has gone; python would complain again at its exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE


def _main(arguments: Sequence[str]) -> int:
    options = _parser().parse_intermixed_args(arguments)
    if options.help:
        print(_help(options.config_dir), end="")
        return 0
    from accum_sweeps.plan.config import read_config, refuse_multirun

    if options.multirun:
        refuse_multirun(options.overrides, options.config_dir)
    config = read_config(options.overrides, options.config_dir)
    for notice in config.notices:
        print(f"note: {notice}", file=sys.stderr)
    if options.cfg:
        print(config.to_yaml(), end="")
        return 0
    from accum_sweeps.actions import perform

    return perform(config)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}\n  See python -m accum_sweeps --help")


def _parser() -> _Parser:
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--help", "-h", action="store_true")
    parser.add_argument("--config-dir", "-cd", action="append", type=Path, default=[])
    parser.add_argument("--cfg", choices=["job"])
    parser.add_argument("--multirun", "-m", action="store_true")
    return parser


def _help(config_dirs: Sequence[Path]) -> str:
    shipped = Path(__file__).parent / "conf"
    files = [file for folder in (shipped, *config_dirs) for file in sorted((folder / "grid").glob("*.yaml"))]
    grids = "".join(f"\n  {file.stem:<12} {_question(file)}" for file in files)
    return HELP.replace("GRIDS", grids or "\n  none found").replace("CONFIG", str(shipped / "config.yaml"))


def _question(file: Path) -> str:
    """The first comment line of a grid file, which says what question the grid answers."""
    lines = file.read_text(encoding="utf-8").splitlines()
    comment = next((line.lstrip("# ") for line in lines if line.startswith("#") and "@package" not in line), "")
    question, mark, _ = comment.partition("?")
    return question + mark


if __name__ == "__main__":
    sys.exit(main())
