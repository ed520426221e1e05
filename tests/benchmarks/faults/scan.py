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
    """The smallest strength that was ``detected``, and the smallest one ``named`` rightly, None = none was; with their effects.

    ``misnamed`` are the strengths that were detected under another name, with the names.
    """

    fault: str
    dtype: str
    detected: float | None
    detected_effect: float | None
    named: float | None
    named_effect: float | None
    misnamed: tuple[tuple[float, str], ...]


def scan(fault: str, dtype: str) -> Smallest:
    """By decades, down to the first that is not detected, all of one seed."""
    detected: list[tuple[float, float]] = []
    named: list[tuple[float, float]] = []
    misnamed: list[tuple[float, str]] = []
    for strength in _strengths(fault):
        case = _case(fault, dtype, strength)
        names = sorted(set(diagnose(Bench(case.spec())).names))
        if not names:
            break
        detected.append((strength, effect(case.spec()).size))
        if names == list(case.truth):
            named.append(detected[-1])
        else:
            misnamed.append((strength, "+".join(names)))
    last = [pairs[-1] if pairs else (None, None) for pairs in (detected, named)]
    return Smallest(
        fault=fault,
        dtype=dtype,
        detected=last[0][0],
        detected_effect=last[0][1],
        named=last[1][0],
        named_effect=last[1][1],
        misnamed=tuple(misnamed),
    )


def _strengths(fault: str) -> Iterator[float]:
    if fault in BY_SHARE:
        yield 1 / K
        return
    for decade in range(1, SMALLEST + 1):
        strength = STRENGTHS[fault](10.0**-decade)
        if strength not in (0.0, 1.0):
            yield strength


def _case(fault: str, dtype: str, strength: float) -> Case:
    # Of ragged rows a weak missing division is left as a mean of means: there it is looked for at equal lengths.
    changes = {"data.lengths": "fixed"} if fault == "missing_division" else {}
    settings = {"subject": "lm", "fault": fault, "dtype": dtype, "optimizer": "adamw", "strength": strength, "changes": changes}
    return Case(number=-1, k=K, rows=2, seed=8000, **settings)  # type: ignore[arg-type]


def jobs() -> list[tuple[str, str]]:
    """All (fault, dtype) that are scanned."""
    return [(fault, dtype) for fault in (*STRENGTHS, *BY_SHARE) for dtype in DTYPES]


def scanned(job: tuple[str, str]) -> Smallest:
    """The scan of ``job``, whatever torch warns of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return scan(*job)
