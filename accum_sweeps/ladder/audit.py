"""The whole ladder on one configuration, and its answer: is my accumulation right?"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from accum_sweeps.ladder.amplified import Amplified, amplified
from accum_sweeps.ladder.bench import Bench
from accum_sweeps.ladder.diagnosis import Diagnosis, diagnose, exact_windows
from accum_sweeps.ladder.geometry import Geometry, geometry
from accum_sweeps.ladder.own_code import remarks
from accum_sweeps.ladder.rungs import Precision, Rung, Sides, precisions, rungs, sides
from accum_sweeps.ladder.shares import norm

AMPLIFIED, BELOW_FLOOR, DEPENDENCE, NOT_OBSERVABLE = "amplified_rounding", "below_floor", "real_dependence", "not_observable"
COARSE = 1e-3  # where nothing finer than this can be told from rounding, a fault may hide below it


@dataclass(frozen=True, kw_only=True)
class Audit:
    """``answer``: rounding, amplified_rounding, fault classes joined by "+", real_dependence, below_floor, not_observable.

    ``geometry``: of the gradient to that of one batch, in the run's own precision. ``resolution``: a fault that changes the gradient by
    less than this, relative, would not have been seen.
    """

    label: str
    accum: int
    dtype: str
    answer: str
    diagnosis: Diagnosis | None
    rungs: tuple[Rung, ...] = ()
    geometry: Geometry | None = None
    precisions: tuple[Precision, ...] = ()
    amplified: Amplified | None = None
    resolution: float | None = None
    remark: str = ""

    @property
    def is_fault(self) -> bool:
        """Whether a fault was found; a real dependence is none."""
        return self.diagnosis is not None and bool(self.diagnosis.names)

    @property
    def faults(self) -> tuple[str, ...]:
        """Their classes."""
        return self.diagnosis.names if self.diagnosis is not None else ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a file."""
        values: dict[str, Any] = _plain(dataclasses.asdict(self))
        return values


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def audit(bench: Bench, label: str) -> Audit:
    """Climb the ladder. What cannot be asked is said in ``remark``."""
    spec = bench.spec
    blank = Audit(label=label, accum=spec.accum, dtype=spec.setup.dtype, answer=NOT_OBSERVABLE, diagnosis=None)
    obstacle = bench.obstacle()
    if obstacle:
        return dataclasses.replace(blank, remark=obstacle)
    windows = exact_windows(bench)
    found = diagnose(bench, windows)
    is_dependent = bool(found.kind)
    step = sides(bench, spec, is_dependent)
    is_moved = not math.isnan(step.arm.lr)  # by the settings' optimizer
    grown = amplified(bench, step.arm, step.whole) if not found.names and not is_dependent and is_moved else None
    resolution = max(each.tolerance for each in windows.begin)
    return dataclasses.replace(
        blank,
        answer=_answer(found, grown, resolution),
        diagnosis=found,
        rungs=tuple(rungs(bench, step, windows)),
        geometry=geometry(step.arm.gradient, step.whole.gradient) if step.arm.gradient else None,
        precisions=tuple(precisions(bench, is_dependent, {spec.setup.dtype: step})),
        amplified=grown,
        resolution=resolution,
        remark=_remark(bench, step),
    )


def _remark(bench: Bench, step: Sides) -> str:
    words = remarks(bench)
    if not math.isfinite(norm(step.whole.gradient)):
        scale = bench.spec.setup.loss_scale
        words.append(f"in {step.dtype} the right gradient overflows at a loss scale of {scale:g}: nothing can be compared in it")
    if not bench.has_fp64:
        words.append("the subject does not run in float64: small faults may hide in the rounding of its own precision")
    if bench.rerun:
        words.append(f"the same step again differs by {bench.rerun:.2g}, relative: that is taken as the least that rounding does")
    return "; ".join(words)


def _answer(found: Diagnosis, grown: Amplified | None, resolution: float) -> str:
    if found.names or found.kind:
        return found.answer
    if resolution > COARSE:
        return BELOW_FLOOR
    return AMPLIFIED if grown is not None and grown.mechanism else found.answer
