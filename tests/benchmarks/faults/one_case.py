"""One case: its effect, the diagnosis, and the checks of today, as one row of the results. A failure is a row too."""

import time
import warnings
from typing import Any

from accum_sweeps.ladder.bench import Bench
from accum_sweeps.ladder.diagnosis import Diagnosis, diagnose
from accum_sweeps.plan.faults import NONE
from tests.benchmarks.faults.cases import Case
from tests.benchmarks.faults.checks_of_today import CHECKS, checks
from tests.benchmarks.faults.effects import INERT, Effect, effect
from tests.benchmarks.faults.floors import floor_of

ERROR = "error"
KEYS = (
    *("number", "subject", "fault", "strength", "dtype", "optimizer", "k", "rows", "seed", "cluster", "toggles", "truth", "kind"),
    *("answer", "found_kind", "is_exact", "words", "seconds", "rung", "effect", "effect_dtype", "floor", "floor_own", "is_inert"),
    *("is_detectable", "is_above_own", *(f"check_{name}" for name in CHECKS)),
)


def row_of(case: Case) -> dict[str, Any]:
    """The results of ``case`` by KEYS."""
    row: dict[str, Any] = dict.fromkeys(KEYS, "") | {
        key: getattr(case, key) for key in ("number", "subject", "fault", "dtype", "optimizer", "k", "rows", "seed", "cluster", "kind")
    }
    row |= {"strength": "" if case.strength is None else case.strength, "toggles": "+".join(case.toggles), "truth": "+".join(case.truth)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about lr schedules and lonely optimizers
        return row | _diagnosed(case) | _sized(case) | _checked(case)


def _diagnosed(case: Case) -> dict[str, Any]:
    began = time.process_time()
    try:
        found = diagnose(Bench(case.spec()))
    except Exception as error:  # whatever it is, it is a result
        return {"answer": ERROR, "words": _short(error), "seconds": time.process_time() - began}
    return {
        "answer": "+".join(sorted(found.names)) or NONE,
        "found_kind": found.kind,
        "is_exact": found.is_exact,
        "words": _words(found),
        "seconds": time.process_time() - began,
    }


def _words(found: Diagnosis) -> str:
    return "; ".join(f"{each.name}: {each.words}" for each in found.findings)


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}"


def _sized(case: Case) -> dict[str, Any]:
    if case.fault == NONE:
        return {}
    try:
        found = effect(case.spec())
        floors = [floor_of(case.subject, case.optimizer, dtype, case.k, found.rung) for dtype in (found.dtype, case.dtype)]
    except Exception as error:
        return {"rung": f"{ERROR}: {_short(error)}"}
    return _against(found, *floors)


def _against(found: Effect, floor: float, floor_own: float) -> dict[str, Any]:
    return {
        "rung": found.rung,
        "effect": found.size,
        "effect_dtype": found.dtype,
        "floor": floor,
        "floor_own": floor_own,
        "is_inert": found.size <= INERT,
        "is_detectable": found.size > floor,
        "is_above_own": found.size > floor_own,
    }


def _checked(case: Case) -> dict[str, Any]:
    try:
        return {f"check_{name}": is_reported for name, is_reported in checks(case.spec()).items()}
    except Exception as error:
        return {f"check_{name}": f"{ERROR}: {_short(error)}" for name in CHECKS}
