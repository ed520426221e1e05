"""The small classification trained by a loop of Accelerate's, as its manual says; with the scheduler unprepared, and by plain means."""

from typing import Any

from accelerate import Accelerator
from torch.utils.data import DataLoader

from tests.ladder.trainers.hooks import IGNORED, Ragged


class ByAccelerate(Ragged):
    """Right: Accelerate divides each loss by k, so that the sum over a window's terms is multiplied by it first."""

    prepares_scheduler = True

    def divided(self, total: Any, count: Any, terms: Any, accum: int) -> Any:
        return total / terms * accum

    def train(self, model: Any, optimizer: Any, scheduler: Any, micro_batches: Any, accum: int) -> None:
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accum)
        model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(micro_batches, batch_size=None))
        scheduler = accelerator.prepare(scheduler) if self.prepares_scheduler else scheduler
        counts = [int((samples["y"] != IGNORED).sum()) for samples in micro_batches]
        terms = [sum(counts[place - place % accum :][:accum]) for place in range(len(counts))]
        for samples, of_window in zip(loader, terms, strict=True):
            with accelerator.accumulate(model):
                total, count = self.loss(model, samples)
                accelerator.backward(self.divided(total, count, of_window, accum))
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()


class UnpreparedScheduler(ByAccelerate):
    """accelerate#963: a scheduler that was not prepared steps with every micro-batch."""

    prepares_scheduler = False


class MeansByAccelerate(ByAccelerate):
    """Each micro-batch's own mean, as a model that returns a mean loss gives it."""

    def divided(self, total: Any, count: Any, terms: Any, accum: int) -> Any:
        return total / count
