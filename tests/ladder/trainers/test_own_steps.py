"""A step of the user's own is read rightly whatever it does to the length of gradients, and however it calls the optimizer."""

from typing import Any

import pytest
import torch

from accum_sweeps.ladder.oracle import Tampering
from accum_sweeps.ladder.shares import norm
from tests.ladder.trainers.hooks import Ragged, audited, bench_of, words

LIMIT = 0.01


class Own(Ragged):
    """Right."""

    def step(self, model: Any, optimizer: Any, micro_batches: list[Any]) -> Any:
        optimizer.zero_grad()
        pairs = [(micro_batch, (micro_batch["y"] != -100).sum()) for micro_batch in micro_batches]
        terms = sum(int(count) for _, count in pairs)
        total = 0.0
        for micro_batch, count in pairs:
            loss, _ = self.loss(model, micro_batch)
            self.divided(loss, count, terms, len(pairs)).backward()
            self.after_backward(model)
            total += float(loss.detach())
        self.finish(model, optimizer)
        return total, terms

    def divided(self, total: Any, count: Any, terms: int, k: int) -> Any:
        return total / terms

    def after_backward(self, model: Any) -> None:
        pass

    def finish(self, model: Any, optimizer: Any) -> None:
        optimizer.step()


class OwnClipped(Own):
    def finish(self, model: Any, optimizer: Any) -> None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), LIMIT)
        optimizer.step()


class OwnUndividedAndClipped(OwnClipped):
    def divided(self, total: Any, count: Any, terms: int, k: int) -> Any:
        return k * total / terms


class OwnMeansAndClipped(OwnClipped):
    def divided(self, total: Any, count: Any, terms: int, k: int) -> Any:
        return total / count / k


class OwnClippingEach(Own):
    def after_backward(self, model: Any) -> None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), LIMIT)


class OwnRarelyClippingEach(Own):
    """The same with a limit that this batch does not reach."""

    def after_backward(self, model: Any) -> None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e3)


class OwnNormalized(OwnUndividedAndClipped):
    def finish(self, model: Any, optimizer: Any) -> None:
        length = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
        for p in model.parameters():
            p.grad /= length
        optimizer.step()


class OwnInClosure(Own):
    """The last micro-batch is run inside the closure."""

    def step(self, model: Any, optimizer: Any, micro_batches: list[Any]) -> Any:
        optimizer.zero_grad()
        pairs = [self.loss(model, micro_batch) for micro_batch in micro_batches]
        terms = sum(int(count) for _, count in pairs)
        for loss, _ in pairs[:-1]:
            (loss / terms).backward()

        def closure() -> Any:
            (pairs[-1][0] / terms).backward()

        optimizer.step(closure)
        return sum(float(loss.detach()) for loss, _ in pairs), terms


class OwnWithoutOptimizer(Own):
    def finish(self, model: Any, optimizer: Any) -> None:
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(p.grad, alpha=0.1)


ANSWERS = {
    "Own": "rounding",
    "OwnClipped": "rounding",
    "OwnUndividedAndClipped": "missing_division",
    "OwnMeansAndClipped": "mean_of_means",
    "OwnClippingEach": "clip_per_micro_batch",
    "OwnRarelyClippingEach": "clip_per_micro_batch",
    "OwnNormalized": "rounding",
    "OwnInClosure": "rounding",
    "OwnWithoutOptimizer": "not_observable",
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_own_step_is_called_what_it_is(name: str) -> None:
    found = audited(globals()[name]())
    assert found.answer == ANSWERS[name], words(found)


def test_the_limit_of_an_own_step_is_lifted_exactly_or_kept() -> None:
    own, clipped = bench_of(Own()), bench_of(OwnClipped())
    lifted, kept = (clipped.code(clipped.spec, tampering=Tampering(own_scale=scale)).observe() for scale in (2.0**-40, 1.0))
    plain = own.code(own.spec).observe()
    assert all(torch.equal(lifted.after[name], plain.after[name]) for name in plain.after)
    assert norm(plain.gradient) > 10 * LIMIT and norm(kept.gradient) == pytest.approx(LIMIT, rel=1e-3)


def test_settings_with_a_limit_leave_an_own_step_as_it_is() -> None:
    limited = {"kind": "sgd", "name": "sgd", "lr": 0.1, "momentum": 0.0, "nesterov": False, "weight_decay": 0.0}
    limited |= {"max_norm": LIMIT, "schedule": "constant", "warmup_steps": 0}
    for hook in (OwnClipped(), Own()):
        assert audited(hook, optimizer=limited).answer == "rounding"


def test_what_a_reader_must_know_is_said() -> None:
    hidden = "a division that is missing, wrong or made twice is not observable"
    assert hidden in audited(OwnNormalized()).remark and hidden not in audited(OwnClipped()).remark
    assert "makes no update by the optimizer that it is given" in audited(OwnWithoutOptimizer()).remark
