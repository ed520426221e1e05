"""The training session of a run with a fault: what a faulty step remembers is kept in checkpoints, and it is told of a resume."""

from pathlib import Path
from typing import Any

from torch.optim import Optimizer

from accum_sweeps.faults.case import Case
from accum_sweeps.faults.catalogue import faulty_step
from accum_sweeps.faults.logs import ResumeInsideWindow
from accum_sweeps.faults.windows import Waiting
from accum_sweeps.plan.errors import UserError
from accum_sweeps.plan.faults import NONE
from accum_sweeps.plan.spec import RunSpec
from accum_sweeps.training.loop import TrainingSession
from accum_sweeps.training.members import Members, plain
from accum_sweeps.training.step import train_step
from accum_sweeps.training.task import Step, Task


def session(spec: RunSpec, task: Task, step: Step = train_step, members: Members = plain) -> TrainingSession:
    """The training of ``task`` with ``step``, or with the fault of ``spec`` in its place; ``members`` has its gradients.

    Raises UserError where the fault would replace an optimizer step of the user's own, or needs what the user's own optimizer lacks.
    """
    fault = spec.setup.fault
    if fault == NONE:
        return TrainingSession(spec, task, step, members)
    if step is not train_step and members is plain:
        raise UserError(
            f"fault={fault}: the subject's class has a step of its own, which a fault would replace\n  Leave out its method step."
        )
    made = FaultySession(spec, task, faulty_step(Case(spec=spec, members=members)), members)
    if made.training.lr_factor is None:
        _check_own_optimizer(fault, made.training.optimizer)
    return made


def _check_own_optimizer(fault: str, optimizer: Optimizer) -> None:
    """UserError where a fault of the settings' optimizer meets one of the user's own, which no plan can look into."""
    lacks = {
        "clip": "clipping, which is the settings' optimizer's",
        "schedule": "a schedule, which is the settings' optimizer's",
        "count": "" if any("betas" in group for group in optimizer.param_groups) else "Adam's count of steps",
        "state_per_micro_batch": "" if any(group.get("weight_decay") for group in optimizer.param_groups) else "weight decay",
    }
    endings = [part for name in fault.split("+") for part in (name, *name.split("_"))]
    missing = [words for part, words in lacks.items() if words and part in endings]
    if missing:
        raise UserError(f"fault={fault}: the subject's class has an optimizer of its own, without {missing[0]}\n  Leave its method out.")


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
