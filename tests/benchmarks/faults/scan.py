"""How weak a fault may be and still be named: a scan of ``fault_strength``, from the public case down by decades."""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from accum_sweeps.ladder.bench import Bench
from accum_sweeps.ladder.diagnosis import diagnose
from tests.benchmarks.faults.cases import DTYPES, Case
from tests.benchmarks.faults.effects import effect

SMALLEST = 15  # decades
K = 8
# From the size of a deviation to fault_strength. Whole micro-batches are lost: their least share is one of k.
STRENGTHS: dict[str, Callable[[float], float]] = {
    "missing_division": lambda size: size,
    "double_division": lambda size: size,
    "wrong_divisor": lambda size: size,
    "wrong_divisor_terms": lambda size: size,
    "reweighted_buffer": lambda size: 1 - size,
    "auxiliary_scale": lambda size: 1 + size,
    "reporting_scaled": lambda size: 1 + size,
}
BY_SHARE = ("lost_micro_batches", "resume_inside_window")


@dataclass(frozen=True, kw_only=True)
class Smallest:
    """The smallest ``strength`` that is named, with its ``effect``, and the first one that is not; "" = none was tried."""

    fault: str
    dtype: str
    strength: float | str
    effect: float | str
    missed: float | str
    missed_effect: float | str


def scan(fault: str, dtype: str) -> Smallest:
    """By decades, down to the first that is not named, all of one seed."""
    last: tuple[float | str, float | str] = ("", "")
    for strength in _strengths(fault):
        case = _case(fault, dtype, strength)
        size = effect(case.spec()).size
        if sorted(set(diagnose(Bench(case.spec())).names)) != list(case.truth):
            return Smallest(fault=fault, dtype=dtype, strength=last[0], effect=last[1], missed=strength, missed_effect=size)
        last = strength, size
    return Smallest(fault=fault, dtype=dtype, strength=last[0], effect=last[1], missed="", missed_effect="")


def _strengths(fault: str) -> Iterator[float]:
    if fault in BY_SHARE:
        yield 1 / K
        return
    for decade in range(1, SMALLEST + 1):
        strength = STRENGTHS[fault](10.0**-decade)
        if strength not in (0.0, 1.0):
            yield strength


def _case(fault: str, dtype: str, strength: float) -> Case:
    return Case(number=-1, subject="lm", fault=fault, dtype=dtype, optimizer="adamw", k=K, rows=2, seed=8000, strength=strength)


def jobs() -> list[tuple[str, str]]:
    """All (fault, dtype) that are scanned."""
    return [(fault, dtype) for fault in (*STRENGTHS, *BY_SHARE) for dtype in DTYPES]


def scanned(job: tuple[str, str]) -> Smallest:
    """The scan of ``job``, whatever torch warns of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return scan(*job)
