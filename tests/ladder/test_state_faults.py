"""What an update applies or keeps beside the gradient is named only where the name's own mechanism is what was made."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import accum_sweeps as acs
from accum_sweeps.ladder.bench import Bench
from accum_sweeps.ladder.diagnosis import diagnose
from tests.faults.subjects import lm_spec

ADAM = {"kind": "adam", "name": "adam", "lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0}
ADAM |= {"max_norm": None, "schedule": "cosine", "warmup_steps": 2}
VARIANTS = {"state_per_micro_batch": "weight decay at 0", "state_per_micro_batch_count": "the right update with that count"}
VARIANTS |= {"state_per_micro_batch_ema": "the right average, moved with each micro-batch"}


@pytest.mark.parametrize("dtype", ["fp64", "fp32", "bf16"])
@pytest.mark.parametrize("fault", VARIANTS)
def test_the_mechanism_that_is_named_explains_all_of_the_difference(fault: str, dtype: str) -> None:
    [finding] = diagnose(Bench(lm_spec(fault, dtype=dtype))).findings
    [proof] = finding.experiments
    assert (finding.name, finding.variant, proof.words) == ("state_per_micro_batch", fault, VARIANTS[fault])
    assert proof.before > 1e-3 and proof.after < 1e-12


class Right:
    """A regression whose step makes the right gradient and a right update; ``after`` comes behind the update."""

    def build(self, config: Any, seeds: Any) -> nn.Module:
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))

    def batch(self, step: int, seed: int) -> Any:
        return torch.randn(8, 4, generator=torch.Generator().manual_seed(1000 * seed + step))

    def loss(self, model: Any, samples: Any) -> tuple[Tensor, Any]:
        return (model(samples[:, :3]) - samples[:, 3:]).square().sum(), len(samples)

    def step(self, model: Any, optimizer: Any, micro_batches: list[Any]) -> tuple[float, float]:
        optimizer.zero_grad()
        losses, terms = 0.0, float(sum(len(samples) for samples in micro_batches))
        for samples in micro_batches:
            total, _ = self.loss(model, samples)
            (total / terms).backward()
            losses += float(total.detach())
        optimizer.step()
        with torch.no_grad():
            self.after(model, optimizer, len(micro_batches))
        return losses, terms

    def after(self, model: Any, optimizer: Any, k: int) -> None: ...


class Cut(Right):
    """No weight beyond 0.3."""

    def after(self, model: Any, optimizer: Any, k: int) -> None:
        for p in model.parameters():
            p.clamp_(-0.3, 0.3)


class Forgetful(Right):
    """The first moments begin anew after each update."""

    def after(self, model: Any, optimizer: Any, k: int) -> None:
        for state in optimizer.state.values():
            state["exp_avg"].zero_()


class CountsAndCuts(Cut):
    """The count is ahead too, and explains only a part."""

    def after(self, model: Any, optimizer: Any, k: int) -> None:
        super().after(model, optimizer, k)
        for state in optimizer.state.values():
            state["step"] += k - 1


class DecaysOnce(Right):
    """A decay of its own, once an update whatever k is: other than the settings', and not by accumulation."""

    def after(self, model: Any, optimizer: Any, k: int) -> None:
        for p in model.parameters():
            p.mul_(0.99)


class DecaysWithEachMicroBatch(Right):
    """By hand, so that the settings know nothing of it."""

    def after(self, model: Any, optimizer: Any, k: int) -> None:
        for p in model.parameters():
            p.div_(1.01**k)


class CountsBehind(Right):
    """The count goes on behind the update."""

    def after(self, model: Any, optimizer: Any, k: int) -> None:
        for state in optimizer.state.values():
            state["step"] += k - 1


CASES: list[tuple[type[Right], str]] = [(Right, "rounding"), (Cut, "unknown_fault"), (Forgetful, "unknown_fault")]
CASES += [(CountsAndCuts, "unknown_fault"), (DecaysOnce, "unknown_fault")]
CASES += [(CountsBehind, "state_per_micro_batch"), (DecaysWithEachMicroBatch, "state_per_micro_batch")]


@pytest.mark.parametrize(("hook", "answer"), CASES)
def test_another_change_of_the_state_is_not_called_by_a_name_that_it_has_not(hook: type[Right], answer: str) -> None:
    [one] = acs.audit(hook(), accum=4, optimizer=ADAM).found
    assert one["answer"] == answer, one["diagnosis"]["findings"]
