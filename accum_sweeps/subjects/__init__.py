"""What is trained: the built-in language model and dual encoder, and the hooks for users' own training.

Public: :func:`session` and :func:`correct_session`, :class:`~accum_sweeps.subjects.protocol.Session` which they return, and
:func:`without_fault`.
"""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from accum_sweeps.plan.faults import NONE
from accum_sweeps.plan.spec import RunSpec
from accum_sweeps.subjects.protocol import Session

if TYPE_CHECKING:
    from accum_sweeps.training.loop import TrainingSession

__all__ = ["Session", "correct_session", "session", "without_fault"]


def session(spec: RunSpec, folder: Path, attempt: int) -> Session:
    """The training that ``spec`` asks for, at its start.

    ``folder`` is the run directory and ``attempt`` the number of the attempt; only subjects that write files of their
    own use them. Raises UserError where the subject or its data cannot be had as specified.
    """
    # Imported here: each subject brings its own dependencies, and a worker needs one of them.
    match spec.setup.subject.kind:
        case "lm":
            from accum_sweeps.subjects.lm import session as language_model

            return _leading(language_model(spec), spec)
        case "clip":
            from accum_sweeps.subjects.clip import session as contrastive

            return contrastive(spec)
        case "python":
            from accum_sweeps.subjects.python_hook import session as python_hook

            return _leading(python_hook(spec), spec)
        case "command":
            from accum_sweeps.subjects.command import session as command

            return command(spec, folder, attempt)
        case kind:
            raise AssertionError(f"a subject of kind {kind!r} passed validation")


def correct_session(spec: RunSpec) -> Session:
    """The same training by the product's own accumulation: without the fault, or the user's own step, that ``spec`` names.

    Raises UserError as :func:`session` does.
    """
    clean = without_fault(spec)
    if spec.setup.subject.kind == "python":
        from accum_sweeps.subjects.python_hook import session as python_hook

        return python_hook(clean, has_own_step=False)
    return session(clean, Path(), 0)


def without_fault(spec: RunSpec) -> RunSpec:
    """``spec`` without the fault that its settings build in."""
    return dataclasses.replace(spec, setup=dataclasses.replace(spec.setup, fault=NONE, fault_strength=None))


def _leading(made: "TrainingSession", spec: RunSpec) -> Session:
    """``made`` as rank 0 of its run, if that has ranks."""
    if spec.setup.ranks > 1:
        from accum_sweeps.subjects.second_rank import second_rank

        made.second_rank = second_rank
    return made
