"""The noise floor of each rung, measured on correct code alone with seeds of its own; ``floors.csv`` holds it.

floor = max(3 x the largest valid control, c u sqrt(N)), N the number of terms of a step. Made and committed before any case is diagnosed:

    python -m tests.benchmarks.faults.floors
"""

import csv
import dataclasses
import functools
import itertools
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from accum_sweeps.ladder.observation import Observation
from accum_sweeps.ladder.oracle import Oracle
from tests.benchmarks.faults.cases import KS
from tests.benchmarks.faults.effects import moved, relative, start_of
from tests.benchmarks.faults.settings import OPTIMIZERS, SUBJECTS, is_coupled, spec_of

FILE = Path(__file__).with_name("floors.csv")
SEEDS = (9000, 9001, 9002)
C = 0.2  # the largest that was measured on correct code in an earlier investigation
UNIT = {"fp64": 2.0**-53, "fp32": 2.0**-24, "amp_bf16": 2.0**-8, "bf16": 2.0**-8, "amp_fp16": 2.0**-11}
RUNGS = ("gradient", "given", "update", "average", "log")
# Where the others are measured: a window's and a resumed step's gradient is a gradient; an overflow is a matter of yes or no.
SAME_AS = {"window": "gradient", "resume": "gradient", "overflow": "gradient"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Floor:
    """The floor of one rung; ``control`` is the largest relative difference that a valid control made over the seeds."""

    subject: str
    optimizer: str
    dtype: str
    k: int
    rung: str
    control: float
    terms: float

    @property
    def floor(self) -> float:
        """max(3 x control, c u sqrt(N))."""
        return max(3 * self.control, C * UNIT[self.dtype] * math.sqrt(self.terms))


def measured(subject: str, optimizer: str, dtype: str, k: int) -> Iterator[Floor]:
    """The floors of one setting, at a second step: there optimizers have a state, and the moving average is one.

    Controls: one ULP in the weights, another order, and another partition of the samples, which is none where samples see each other.
    """
    rows = 4 if k == 2 else 1 if k == 64 else 2
    largest, terms = dict.fromkeys(RUNGS, 0.0), 0.0
    for seed in SEEDS[: 1 if subject.startswith("clip") else None]:
        spec = spec_of(subject, optimizer, k, rows, seed, dtype=dtype, fault="none", ema=0.9)
        state, plain = list(Oracle(spec, start_of(spec), is_correct=True).sequence(2))[-1]
        terms = max(terms, plain.terms)
        for kind in ("order", "ulp_weights") if is_coupled(subject) else ("regroup", "order", "ulp_weights"):
            found = Oracle(dataclasses.replace(spec, control=kind), state, is_correct=True).observe()
            for rung, value in _apart(found, plain).items():
                largest[rung] = max(largest[rung], value)
    for rung, control in largest.items():
        yield Floor(subject=subject, optimizer=optimizer, dtype=dtype, k=k, rung=rung, control=control, terms=terms)


def _apart(found: Observation, plain: Observation) -> dict[str, float]:
    apart = {name: part.double() - plain.average[name].double() for name, part in found.average.items()}
    length = math.sqrt(sum(float(part.square().sum()) for part in moved(plain).values()))
    average = math.sqrt(sum(float(part.square().sum()) for part in apart.values()))
    return {
        "gradient": relative(found.gradient, plain.gradient),
        "given": relative(found.clipped, plain.clipped),
        "update": relative(moved(found), moved(plain)),
        "average": average / length,
        "log": abs(found.loss / plain.loss - 1),
    }


@functools.cache
def committed() -> dict[tuple[str, ...], float]:
    """The floors of ``floors.csv`` by subject, optimizer, dtype, k and rung."""
    with FILE.open() as file:
        return {tuple(row[key] for key in KEYS): float(row["floor"]) for row in csv.DictReader(file)}


KEYS = ("subject", "optimizer", "dtype", "k", "rung")


def floor_of(subject: str, optimizer: str, dtype: str, k: int, rung: str) -> float:
    """The committed floor. Raises KeyError where none was measured."""
    return committed()[subject, optimizer, dtype, str(k), SAME_AS.get(rung, rung)]


def main() -> None:
    """Measure all floors and write them."""
    torch.set_num_threads(1)
    settings = [each for each in itertools.product(SUBJECTS, OPTIMIZERS, UNIT, KS) if not (each[0].startswith("clip") and each[3] == 64)]
    with FILE.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*KEYS, "control", "terms", "floor"], lineterminator="\n")
        writer.writeheader()
        for number, setting in enumerate(settings, 1):
            for each in measured(*setting):
                writer.writerow(_row(each))
            print(f"\r{number} of {len(settings)} settings", end="", file=sys.stderr, flush=True)


def _row(each: Floor) -> dict[str, Any]:
    values = {**dataclasses.asdict(each), "floor": each.floor}
    return {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in values.items()}


if __name__ == "__main__":
    main()
