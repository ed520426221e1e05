"""Trainers in a few lines each, the right one and what people write instead; every one makes several optimizer steps by itself."""

from typing import Any

import torch

from tests.ladder.trainers.hooks import Equal, Ragged


class Loop(Ragged):
    """Right: sums, one division by the window's terms, one update, one step of the schedule."""

    tells = True

    def divided(self, total: Any, count: Any, terms: Any, k: int) -> Any:
        return total / terms

    def finish(self, model: Any, optimizer: Any, scheduler: Any) -> None:
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()

    def after_backward(self, model: Any, scheduler: Any) -> None:
        pass

    def windows(self, micro_batches: list[Any], accum: int) -> list[list[Any]]:
        return [micro_batches[start : start + accum] for start in range(0, len(micro_batches), accum)]

    def train(self, model: Any, optimizer: Any, scheduler: Any, micro_batches: list[Any], accum: int) -> Any:
        logged = []
        optimizer.zero_grad()
        for window in self.windows(micro_batches, accum):
            pairs, terms = [], sum((samples["y"] != -100).sum() for samples in window)
            for samples in window:
                total, count = self.loss(model, samples)
                self.divided(total, count, terms, len(window)).backward()
                pairs.append((total.detach(), count))
                self.after_backward(model, scheduler)
            self.finish(model, optimizer, scheduler)
            logged.append(float(sum(total for total, _ in pairs) / terms))
        return logged if self.tells else None


class Quiet(Loop):
    tells = False


class Dropping(Loop):
    dropout = 0.3


class Clipping(Loop):
    """Clips the whole gradient once: right."""

    def finish(self, model: Any, optimizer: Any, scheduler: Any) -> None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        super().finish(model, optimizer, scheduler)


class ClippingEachTensor(Loop):
    def finish(self, model: Any, optimizer: Any, scheduler: Any) -> None:
        for p in model.parameters():
            torch.nn.utils.clip_grad_norm_(p, 0.01)
        super().finish(model, optimizer, scheduler)


class ClippingEachElement(Loop):
    def finish(self, model: Any, optimizer: Any, scheduler: Any) -> None:
        torch.nn.utils.clip_grad_value_(model.parameters(), 0.001)
        super().finish(model, optimizer, scheduler)


class InClosure(Loop):
    """Runs the whole window inside the optimizer's closure."""

    def train(self, model: Any, optimizer: Any, scheduler: Any, micro_batches: list[Any], accum: int) -> Any:
        for window in self.windows(micro_batches, accum):
            terms = sum((samples["y"] != -100).sum() for samples in window)

            def closure(window: Any = window, terms: Any = terms) -> Any:
                optimizer.zero_grad()
                for samples in window:
                    (self.loss(model, samples)[0] / terms).backward()
                return torch.zeros(())

            optimizer.step(closure)
            scheduler.step()


class Concatenating(Loop):
    """One backward pass for a whole window."""

    def train(self, model: Any, optimizer: Any, scheduler: Any, micro_batches: list[Any], accum: int) -> Any:
        for window in self.windows(micro_batches, accum):
            totals, counts = zip(*[self.loss(model, samples) for samples in window], strict=True)
            (torch.stack(totals).sum() / torch.stack(counts).sum()).backward()
            self.finish(model, optimizer, scheduler)


class OwnSgd(Loop):
    """Has a plain SGD of its own in place of the given optimizer, and says its rate."""

    lr = 0.05

    def train(self, model: Any, optimizer: Any, scheduler: Any, micro_batches: list[Any], accum: int) -> Any:
        own = torch.optim.SGD(model.parameters(), lr=0.05)
        return super().train(model, own, torch.optim.lr_scheduler.ConstantLR(own, 1.0), micro_batches, accum)


class MeanOfMeans(Loop):
    def divided(self, total: Any, count: Any, terms: Any, k: int) -> Any:
        return total / count / k


class Undivided(Loop):
    def divided(self, total: Any, count: Any, terms: Any, k: int) -> Any:
        return k * total / terms


class UndividedAndClipped(Clipping, Undivided):
    pass


class UndividedByOwnSgd(OwnSgd, Undivided):
    pass


class TwiceDivided(Loop):
    def divided(self, total: Any, count: Any, terms: Any, k: int) -> Any:
        return total / terms / k


class OneTermLess(Loop):
    def divided(self, total: Any, count: Any, terms: Any, k: int) -> Any:
        return total / (terms - 1)


class SchedulingEach(Loop):
    """Steps the schedule after each micro-batch."""

    def after_backward(self, model: Any, scheduler: Any) -> None:
        scheduler.step()

    def finish(self, model: Any, optimizer: Any, scheduler: Any) -> None:
        optimizer.step()
        optimizer.zero_grad()


class UpdatingEach(Loop):
    """Updates after each micro-batch: there is no accumulation."""

    def windows(self, micro_batches: list[Any], accum: int) -> list[list[Any]]:
        return [[samples] for samples in micro_batches]

    tells = False


class DroppingLast(Loop):
    def windows(self, micro_batches: list[Any], accum: int) -> list[list[Any]]:
        return [window for window in super().windows(micro_batches, accum) if len(window) == accum]


class ShortByK(Equal, Loop):
    """Divides by the number of micro-batches of a full window, also in the short one."""

    def train(self, model: Any, optimizer: Any, scheduler: Any, micro_batches: list[Any], accum: int) -> Any:
        self.k = accum
        return super().train(model, optimizer, scheduler, micro_batches, accum)

    def divided(self, total: Any, count: Any, terms: Any, k: int) -> Any:
        return total / count / self.k


class ShortByKSays(ShortByK):
    last_window = "full"


class ClippingEach(Loop):
    """Clips the running sum after each micro-batch."""

    def after_backward(self, model: Any, scheduler: Any) -> None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)


class LosingFirst(Loop):
    """Zeroes the gradient a micro-batch too late."""

    def train(self, model: Any, optimizer: Any, scheduler: Any, micro_batches: list[Any], accum: int) -> Any:
        self.done = 0
        return super().train(model, optimizer, scheduler, micro_batches, accum)

    def after_backward(self, model: Any, scheduler: Any) -> None:
        self.done += 1
        if self.done % 4 == 1:
            model.zero_grad()


class LoggingLast(Loop):
    """Logs the loss of each window's last micro-batch."""

    def train(self, model: Any, optimizer: Any, scheduler: Any, micro_batches: list[Any], accum: int) -> Any:
        self.last: list[float] = []
        super().train(model, optimizer, scheduler, micro_batches, accum)
        return self.last

    def divided(self, total: Any, count: Any, terms: Any, k: int) -> Any:
        self.mean = float(total.detach() / count)
        return total / terms

    def finish(self, model: Any, optimizer: Any, scheduler: Any) -> None:
        self.last.append(self.mean)
        super().finish(model, optimizer, scheduler)


class Normalizing(Undivided):
    """Gives every gradient the length 1: whether it was divided cannot be seen."""

    def finish(self, model: Any, optimizer: Any, scheduler: Any) -> None:
        length = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
        for p in model.parameters():
            p.grad /= length
        super().finish(model, optimizer, scheduler)


class ClippedByOwnSgd(OwnSgd, Clipping, Undivided):
    """Clips and updates by itself: the length of the gradient cannot be seen."""


class Idle(Loop):
    def train(self, model: Any, optimizer: Any, scheduler: Any, micro_batches: list[Any], accum: int) -> Any:
        return None


class OwnAdam(Loop):
    """An optimizer of its own, of which it tells nothing."""

    def train(self, model: Any, optimizer: Any, scheduler: Any, micro_batches: list[Any], accum: int) -> Any:
        own = torch.optim.Adam(model.parameters(), lr=0.05)
        return super().train(model, own, torch.optim.lr_scheduler.ConstantLR(own, 1.0), micro_batches, accum)


class Shuffling(Loop):
    def train(self, model: Any, optimizer: Any, scheduler: Any, micro_batches: list[Any], accum: int) -> Any:
        order = torch.randperm(len(micro_batches), generator=torch.Generator().manual_seed(3))
        return super().train(model, optimizer, scheduler, [micro_batches[place] for place in order], accum)


class TwoEpochs(Loop):
    tells = False

    def train(self, model: Any, optimizer: Any, scheduler: Any, micro_batches: list[Any], accum: int) -> Any:
        super().train(model, optimizer, scheduler, micro_batches, accum)
        super().train(model, optimizer, scheduler, micro_batches, accum)


class Random(Loop):
    """Noise that no mode turns off."""

    def loss(self, model: Any, samples: Any) -> Any:
        total, count = super().loss(model, samples)
        return total * (1 + 0.1 * torch.rand(())), count
