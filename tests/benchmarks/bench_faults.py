"""The fault benchmark of the ladder: known faults and clean cases, the answers, and the same cases through the checks of today.

    python tests/benchmarks/bench_faults.py [--fraction N] [--only TEXT] [--rows FILE] [--processes P] [--no-scan]

The whole takes a quarter of an hour to an hour on two cores. Prints its page as Markdown, and its progress to standard error; writes a
line for each case to FILE. ``--fraction 40`` takes 40 cheap cases, ``--only`` those whose name holds TEXT. The cases depend on cases.SEED
alone, the floors are those of faults/floors.csv, made beforehand by ``python -m tests.benchmarks.faults.floors``.
"""

import argparse
import csv
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from tests.benchmarks.faults.cases import Case, all_cases, fraction
from tests.benchmarks.faults.one_case import KEYS, row_of
from tests.benchmarks.faults.scan import jobs, scanned
from tests.benchmarks.faults.table import errors, summary

Job = TypeVar("Job")
Done = TypeVar("Done")


def chosen(count: int | None, only: str) -> list[Case]:
    """The cases that are asked for."""
    cases = all_cases() if count is None else fraction(count)
    return [case for case in cases if only in name_of(case)]


def name_of(case: Case) -> str:
    """All that tells ``case`` from others, in words."""
    words = [case.subject, case.fault, case.dtype, case.optimizer, f"k={case.k}", f"seed={case.seed}", *case.toggles]
    return f"#{case.number} " + " ".join(words)


def run(cases: list[Case], processes: int = 1) -> list[dict[str, Any]]:
    """The rows of ``cases``, in their order."""
    rows, end = [], "\r" if sys.stderr.isatty() else "\n"
    for row in _each(row_of, cases, processes):
        rows.append(row)
        if end == "\r" or not len(rows) % 50 or len(rows) == len(cases):
            words = f"{len(rows)} of {len(cases)} cases, {len(list(errors(rows)))} not as they should be"
            print(words, end=end, file=sys.stderr, flush=True)
    return sorted(rows, key=lambda row: row["number"])


def _each(call: Callable[[Job], Done], work: Iterable[Job], processes: int) -> Iterator[Done]:
    if processes == 1:
        yield from map(call, work)
        return
    with multiprocessing.get_context("spawn").Pool(processes, initializer=_one_thread) as pool:
        yield from pool.imap_unordered(call, work)


def _one_thread() -> None:
    torch.set_num_threads(1)


def write(rows: list[dict[str, Any]], path: Path) -> None:
    """A line for each case."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, KEYS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    """Run, write, print."""
    parser = argparse.ArgumentParser(description="The fault benchmark of the ladder.")
    parser.add_argument("--fraction", type=int, help="this many cheap cases in place of all")
    parser.add_argument("--only", default="", help="the cases whose name holds this text, such as k=64 or '#12 '")
    parser.add_argument("--rows", type=Path, default=Path("sweeps/fault_benchmark.csv"), help="where the lines of the cases go")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--no-scan", action="store_true", help="leave the smallest strengths out")
    given = parser.parse_args()
    _one_thread()
    began = time.monotonic()
    rows = run(chosen(given.fraction, given.only), given.processes)
    write(rows, given.rows)
    scans = [] if given.no_scan else sorted(_each(scanned, jobs(), given.processes), key=lambda each: (each.fault, each.dtype))
    print(summary(rows, scans, time.monotonic() - began))


if __name__ == "__main__":
    main()
