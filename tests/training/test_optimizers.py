"""torch's optimizers with the specified settings, and the learning rate by optimizer step."""

import math
from typing import Any

import pytest
import torch

from accum_sweeps.plan.parts import Optimizer
from accum_sweeps.training import optimizers
from tests.specs import BASE, make_spec

SGD = {
    "kind": "sgd",
    "name": "sgd",
    "lr": 0.5,
    "momentum": 0.9,
    "nesterov": True,
    "weight_decay": 0.01,
    "max_norm": None,
    "schedule": "constant",
    "warmup_steps": 0,
}


def part(**changes: object) -> Optimizer:
    return make_spec(optimizer=BASE["optimizer"] | changes).setup.optimizer


def test_adamw_takes_all_its_settings() -> None:
    made = optimizers.make(part(lr=0.1, betas=[0.8, 0.9], eps=1e-3, weight_decay=0.2), torch.nn.Linear(2, 2))
    assert type(made) is torch.optim.AdamW
    assert {key: made.defaults[key] for key in ("lr", "betas", "eps", "weight_decay")} == {
        "lr": 0.1,
        "betas": (0.8, 0.9),
        "eps": 1e-3,
        "weight_decay": 0.2,
    }


def test_sgd_takes_all_its_settings() -> None:
    made = optimizers.make(make_spec(optimizer=SGD).setup.optimizer, torch.nn.Linear(2, 2))
    assert type(made) is torch.optim.SGD
    assert {key: made.defaults[key] for key in ("lr", "momentum", "nesterov", "weight_decay")} == {
        "lr": 0.5,
        "momentum": 0.9,
        "nesterov": True,
        "weight_decay": 0.01,
    }


def test_the_first_adamw_update_is_the_closed_form() -> None:
    # g / (|g| + eps) times lr: bias correction makes both moments those of the first gradient.
    model = torch.nn.Linear(3, 1, bias=False).double()
    torch.nn.init.zeros_(model.weight)
    gradient = torch.tensor([[1.0, -1e-8, 1e-10]], dtype=torch.float64)
    model.weight.grad = gradient.clone()
    optimizers.make(part(lr=0.1, eps=1e-8, weight_decay=0.5), model).step()
    expected = -0.1 * gradient / (gradient.abs() + 1e-8)
    assert torch.allclose(model.weight.detach(), expected, rtol=1e-7, atol=0)


def test_warmup_is_linear_and_ends_at_the_full_rate() -> None:
    factor = optimizers.schedule(part(schedule="constant", warmup_steps=4), steps=10)
    assert [factor(step) for step in range(1, 7)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_cosine_starts_at_the_full_rate_and_would_reach_zero_after_the_last_step() -> None:
    factor = optimizers.schedule(part(schedule="cosine", warmup_steps=2), steps=10)
    assert factor(3) == 1.0
    assert factor(7) == pytest.approx(0.5)
    assert factor(10) == pytest.approx(0.5 * (1 + math.cos(math.pi * 7 / 8)))
    assert factor(11) == pytest.approx(0.0, abs=1e-15)


def test_a_warmup_as_long_as_the_run_is_possible() -> None:
    factor = optimizers.schedule(part(schedule="cosine", warmup_steps=3), steps=3)
    assert [factor(step) for step in (1, 2, 3)] == [1 / 3, 2 / 3, 1.0]


def test_the_rate_is_set_from_each_groups_own_start_and_does_not_drift() -> None:
    layers = [torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)]
    groups: list[dict[str, Any]] = [{"params": layers[0].parameters()}, {"params": layers[1].parameters(), "lr": 0.3}]
    optimizer = torch.optim.SGD(groups, lr=1.0)
    for factor in (0.5, 0.1, 0.5):
        optimizers.set_lr(optimizer, factor)
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.15]
