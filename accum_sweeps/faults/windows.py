"""Faults of the window of micro-batches that an update is made from, most of them at the end of an epoch.

A short window has fewer than k micro-batches, since the epoch's rows end. g_i, n_i, N and r as in ``faults.division``.
"""

import dataclasses
from typing import Any

from accum_sweeps.faults.buffer import Buffer, finish, kept, restored
from accum_sweeps.faults.case import Case
from accum_sweeps.training.accumulate import drop_gradients
from accum_sweeps.training.task import StepOutcome, Training


def short_window(case: Case, training: Training, micro_batches: list[Any]) -> StepOutcome:
    """Each micro-batch is divided by the k of the settings, also where fewer are left at the end of an epoch.

    transformers#38837 (third update half), Lightning#19987. With m of k micro-batches gradient and logged loss are m / k of the right
    ones. Inert in full windows, and so where k divides the number of micro-batches of an epoch.
    """
    buffer = Buffer(training)
    for member in case.members(training, micro_batches):
        buffer.add(member)
    terms_of_a_micro_batch = buffer.terms / len(micro_batches)
    buffer.divide(terms_of_a_micro_batch * case.accum)
    return finish(training, buffer, loss=buffer.mean * len(micro_batches) / case.accum)


def dropped_window(case: Case, training: Training, micro_batches: list[Any]) -> StepOutcome:
    """The epoch ends before the k-th micro-batch, no update is due, and the next epoch begins with ``zero_grad``.

    ultralytics#11217. No update in a short window, though its loss is logged; the samples were for nothing. Inert in full windows.
    """
    buffer = Buffer(training)
    for member in case.members(training, micro_batches):
        buffer.add(member)
    if len(micro_batches) < case.accum:
        return StepOutcome(loss=buffer.mean, terms=buffer.terms)
    buffer.divide(buffer.terms)
    return finish(training, buffer)


class Waiting:
    """Gradients that wait for a later call; they are forgotten where the call that follows is not the next optimizer step."""

    def __init__(self) -> None:
        self._buffer: Buffer | None = None
        self._state: dict[str, Any] | None = None
        self._step = 0

    def put(self, training: Training, buffer: Buffer) -> None:
        """Keep ``buffer`` for the optimizer step after this one."""
        self._buffer, self._state, self._step = buffer, None, training.position + 1

    def take(self, training: Training) -> Buffer:
        """What waits for this optimizer step, else an empty buffer."""
        found = self._buffer if self._state is None else restored(training, self._state)
        self._buffer = self._state = None
        return found if found is not None and self._step == training.position else Buffer(training)

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint."""
        held = self._state if self._buffer is None else kept(self._buffer)
        return {"step": self._step, "held": held}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave."""
        self._buffer, self._state, self._step = None, state["held"], state["step"]


class MergedWindow(Waiting):
    """The epoch ends before the k-th micro-batch, no update is due, and nobody calls ``zero_grad`` before the next epoch.

    transformers#22082. No update in a short window; the next one is made from both, (sum of all g_i) / (number of all terms), with
    gradients of the same weights. The last window of a run that is short is lost. Inert in full windows.
    """

    def __init__(self, case: Case) -> None:
        super().__init__()
        self._case = case

    def __call__(self, training: Training, micro_batches: list[Any]) -> StepOutcome:
        """One window, after what waits."""
        buffer, window = self.take(training), Buffer(training)
        for member in self._case.members(training, micro_batches):
            buffer.add(member)
            window.see(member)
        if len(micro_batches) < self._case.accum:
            self.put(training, buffer)
            return StepOutcome(loss=window.mean, terms=window.terms)
        buffer.divide(buffer.terms)
        return dataclasses.replace(finish(training, buffer), terms=window.terms)


class EarlyStep(Waiting):
    """``if index % k == 0`` with an index that begins at 0: the update comes after the first micro-batch of each k.

    LLMs-from-scratch#299. The first update of a run is made from one micro-batch alone, g_1 / n_1; each later one from the k - 1 that wait
    since the last and one more. What waits at the end of the run is lost. Inert at k = 1.
    """

    def __init__(self, case: Case) -> None:
        super().__init__()
        self._case = case

    def __call__(self, training: Training, micro_batches: list[Any]) -> StepOutcome:
        """One update, then the gradients of the micro-batches after it."""
        buffer, window, outcome = self.take(training), Buffer(training), None
        for member in self._case.members(training, micro_batches):
            buffer.add(member)
            window.see(member)
            if outcome is None:
                buffer.divide(buffer.terms)
                outcome = finish(training, buffer)
                buffer = Buffer(training)
        drop_gradients(training.parameters)
        self.put(training, buffer)
        assert outcome is not None  # no window is empty
        return dataclasses.replace(outcome, terms=window.terms)
