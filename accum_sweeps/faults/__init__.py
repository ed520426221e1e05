"""Known accumulation faults, each one the optimizer step as somebody would wrongly write it, whole.

``accum_sweeps.plan.faults`` has their names and what they need. A step gets the gradients of its micro-batches one after the other
(``members``), sums them in a ``buffer`` and makes an update; what is wrong stands in the step. The correct code knows nothing of this.

Public: :func:`session`, which subjects make their training with, :func:`faulty_step` with :class:`Case`, and :class:`Cached`.
"""

from accum_sweeps.faults.case import Case
from accum_sweeps.faults.catalogue import faulty_step
from accum_sweeps.faults.session import session
from accum_sweeps.training.members import Cached, Members, plain

__all__ = ["Cached", "Case", "Members", "faulty_step", "plain", "session"]
