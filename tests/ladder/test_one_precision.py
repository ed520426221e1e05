"""Steps that are right in float64 and wrong in the precision that is asked about: autocast switches the fault on."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import accum_sweeps as acs


class Right:
    """Eight rows of a regression; the step is the user's own and right."""

    def build(self, config: Any, seeds: Any) -> nn.Module:
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))

    def batch(self, step: int, seed: int) -> Any:
        return torch.randn(8, 4, generator=torch.Generator().manual_seed(1000 * seed + step))

    def loss(self, model: Any, samples: Any) -> tuple[Tensor, Any]:
        return (model(samples[:, :3]) - samples[:, 3:]).square().sum(), len(samples)

    def step(self, model: Any, optimizer: Any, micro_batches: list[Any]) -> tuple[float, float]:
        optimizer.zero_grad()
        terms, losses = float(sum(len(each) for each in micro_batches)), 0.0
        is_low = torch.is_autocast_enabled("cpu") and len(micro_batches) > 1
        for samples in self.taken(micro_batches, is_low):
            total, _ = self.loss(model, samples)
            self.scaled(total / terms, is_low).backward()
            losses += float(total.detach())
        if is_low:
            self.spoil(model)
        optimizer.step()
        return losses, terms

    def taken(self, micro_batches: list[Any], is_low: bool) -> list[Any]:
        return micro_batches

    def scaled(self, loss: Tensor, is_low: bool) -> Tensor:
        return loss

    def spoil(self, model: Any) -> None:
        """Change the gradient, where a fault does that."""


class RoundedLoss(Right):
    """Its loss becomes a bfloat16 number before it is divided: coarse, and no fault."""

    def loss(self, model: Any, samples: Any) -> tuple[Tensor, Any]:
        total, terms = super().loss(model, samples)
        return (total.bfloat16() if torch.is_autocast_enabled("cpu") else total), terms


class Undivided(Right):
    def scaled(self, loss: Tensor, is_low: bool) -> Tensor:
        return 4.0 * loss if is_low else loss


class WithoutTheLast(Right):
    def taken(self, micro_batches: list[Any], is_low: bool) -> list[Any]:
        return micro_batches[:-1] if is_low else micro_batches


class Emptied(Right):
    def spoil(self, model: Any) -> None:
        for parameter in model.parameters():
            parameter.grad.zero_()


class OneSided(Right):
    """Three tenths of one tensor's gradient are lost: wrong in no known way."""

    def spoil(self, model: Any) -> None:
        model[2].weight.grad.mul_(0.7)


class NotANumber(Right):
    def spoil(self, model: Any) -> None:
        model[2].weight.grad[0, 0] = math.nan


FAULTS = {
    Undivided: "missing_division",
    WithoutTheLast: "lost_micro_batches",
    Emptied: "lost_micro_batches",
    OneSided: "unknown_fault",
    NotANumber: "unknown_fault",
}


def unwrapped(found: Any) -> str:
    return " ".join(str(found).split())


@pytest.mark.parametrize("dtype", ["amp_bf16", "amp_fp16"])
@pytest.mark.parametrize("setup", FAULTS)
def test_a_fault_under_autocast_alone_is_found_and_said_to_be_there(setup: type[Right], dtype: str) -> None:
    found = acs.audit(setup, accum=4, dtype=dtype)
    assert found.answers[4] == FAULTS[setup]
    assert f"in {dtype}, not in float64" in unwrapped(found)
    assert acs.audit(setup, accum=4, dtype="fp32").answers[4] == "rounding", "what autocast switches on is off without it"


@pytest.mark.parametrize("dtype", ["amp_bf16", "amp_fp16", "bf16", "fp16", "fp32"])
@pytest.mark.parametrize("setup", [Right, RoundedLoss])
def test_a_step_that_only_rounds_in_its_own_way_is_right(setup: type[Right], dtype: str) -> None:
    assert acs.audit(setup, accum=4, dtype=dtype).answers[4] == "rounding"


def test_numbers_that_only_the_code_under_test_makes_are_told_as_such() -> None:
    told = unwrapped(acs.audit(NotANumber, accum=4, dtype="amp_bf16"))
    assert "the gradient holds numbers that are not finite; the right code's are finite" in told
