"""The training session of a run with a fault: what a faulty step remembers is kept in checkpoints, and it is told of a resume."""

from pathlib import Path
from typing import Any

from accum_sweeps.faults.case import Case
from accum_sweeps.faults.catalogue import faulty_step
from accum_sweeps.faults.logs import ResumeInsideWindow
from accum_sweeps.faults.members import Members, plain
from accum_sweeps.faults.windows import Waiting
from accum_sweeps.plan.errors import UserError
from accum_sweeps.plan.faults import NONE
from accum_sweeps.plan.spec import RunSpec
from accum_sweeps.training.loop import TrainingSession
from accum_sweeps.training.step import train_step
from accum_sweeps.training.task import Step, Task


def session(spec: RunSpec, task: Task, step: Step = train_step, members: Members = plain) -> TrainingSession:
    """The training of ``task`` with ``step``, or with the fault of ``spec`` in its place; ``members`` has its gradients.

    Raises UserError where the fault would replace an optimizer step of the user's own.
    """
    fault = spec.setup.fault
    if fault == NONE:
        return TrainingSession(spec, task, step)
    if step is not train_step and members is plain:
        raise UserError(
            f"fault={fault}: the subject's class has a step of its own, which a fault would replace\n  Leave out its method step."
        )
    return FaultySession(spec, task, faulty_step(Case(spec=spec, members=members)))


class FaultySession(TrainingSession):
    """A training session whose step may remember something from one optimizer step to the next."""

    def _further_state(self) -> dict[str, Any]:
        remembered = {"fault": self._step} if isinstance(self._step, Waiting) else {}
        return super()._further_state() | remembered

    def load(self, path: Path) -> int:
        """Continue from what :meth:`save` wrote, as a resumed run."""
        step = super().load(path)
        if isinstance(self._step, ResumeInsideWindow):
            self._step.resume()
        return step
