"""What a faulty step knows of its run besides the training that it is given."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from accum_sweeps.plan.faults import FAULTS
from accum_sweeps.plan.spec import RunSpec
from accum_sweeps.training.members import Members, plain
from accum_sweeps.training.task import Step, StepOutcome, Training


@dataclass(frozen=True, kw_only=True)
class Case:
    """``members`` gives the micro-batches' gradients in the way of the subject."""

    spec: RunSpec
    members: Members = plain

    @property
    def accum(self) -> int:
        """The accumulation factor k that a full window has."""
        return self.spec.accum

    @property
    def strength(self) -> float:
        """``fault_strength``, or the fault's default. Raises ValueError where the default depends on k: see :meth:`strength_or`."""
        strength = FAULTS[self.spec.setup.fault].strength
        if strength is None or strength.default is None:
            raise ValueError(f"fault={self.spec.setup.fault} has no strength of its own")
        return self.strength_or(strength.default)

    def strength_or(self, default: float) -> float:
        """``fault_strength``, or ``default``."""
        given = self.spec.setup.fault_strength
        return default if given is None else given


Faulty = Callable[[Case, Training, list[Any]], StepOutcome]
Maker = Callable[[Case], Step]
