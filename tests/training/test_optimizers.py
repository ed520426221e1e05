"""torch's optimizers with the specified settings, and the learning rate by optimizer step."""

import io
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from accum_sweeps.plan.errors import UserError
from accum_sweeps.plan.parts import Optimizer
from accum_sweeps.training import optimizers
from accum_sweeps.training.models import decoder
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

ADAM = BASE["optimizer"] | {"kind": "adam", "name": "adam"}
MUON = {
    "kind": "muon",
    "name": "muon",
    "lr": 0.02,
    "momentum": 0.95,
    "nesterov": True,
    "ns_steps": 5,
    "adamw_lr": 3e-3,
    "betas": [0.9, 0.95],
    "eps": 1e-8,
    "weight_decay": 0.05,
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


def test_adam_takes_all_its_settings_and_couples_the_decay() -> None:
    changed = ADAM | {"lr": 0.1, "betas": [0.8, 0.9], "eps": 1e-3, "weight_decay": 0.2}
    made = optimizers.make(make_spec(optimizer=changed).setup.optimizer, nn.Linear(2, 2))
    assert type(made) is torch.optim.Adam
    names = ("lr", "betas", "eps", "weight_decay", "decoupled_weight_decay")
    assert [made.defaults[name] for name in names] == [0.1, (0.8, 0.9), 1e-3, 0.2, False]


def muon(model: nn.Module, **changes: Any) -> torch.optim.Optimizer:
    return optimizers.make(make_spec(optimizer=MUON | changes).setup.optimizer, model)


def hidden_names(model: nn.Module) -> list[str]:
    hidden = {id(p) for p in optimizers.hidden_matrices(model)}
    return [name for name, p in model.named_parameters() if id(p) in hidden]


def test_the_decoders_hidden_matrices_are_those_of_its_blocks() -> None:
    model = decoder.build(make_spec(**{"model.layers": 1}).setup.model, 0)  # type: ignore[arg-type]
    assert hidden_names(model) == [
        "blocks.0.attention.query_key_value.weight",
        "blocks.0.attention.output.weight",
        "blocks.0.feed_forward.gate_up.weight",
        "blocks.0.feed_forward.output.weight",
    ]


def test_clips_hidden_matrices_are_those_of_its_encoder_layers() -> None:
    import transformers  # seconds

    sides = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = sides | {"vocab_size": 9, "bos_token_id": 1, "eos_token_id": 2}
    config = transformers.CLIPConfig(text_config=text, vision_config=sides | {"image_size": 8, "patch_size": 4}, projection_dim=4)
    names = hidden_names(transformers.CLIPModel(config))
    assert len(names) == 2 * 2 * 6  # sides, layers, and queries, keys, values, output, fc1, fc2
    assert all(".encoder.layers." in name and name.endswith("weight") for name in names)


class Block(nn.Module):
    """A block of a user's own, with an embedding whose weight is a Linear's too."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.linear, self.tied = nn.Embedding(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)
        self.tied.weight = self.embedding.weight


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)), ["2.weight"]),
        (lambda: nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)]), ["1.weight"]),
        (
            lambda: nn.Sequential(nn.Linear(3, 3), nn.Sequential(Block(), Block()), nn.Linear(3, 3)),
            ["1.0.linear.weight", "1.1.linear.weight"],
        ),
        (lambda: nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.Dropout(), nn.Linear(3, 3)), nn.Linear(3, 3)), ["1.1.weight"]),
    ],
    ids=["chain", "list of layers", "blocks", "no repeated blocks"],
)
def test_hidden_matrices_of_users_models(make: Callable[[], nn.Module], names: list[str]) -> None:
    assert hidden_names(make()) == names


def test_a_model_without_a_hidden_matrix_is_refused() -> None:
    frozen = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 2))
    for model in (nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), frozen):
        with pytest.raises(UserError, match=f"optimizer=muon: {type(model).__name__} has no hidden matrix to train"):
            muon(model)


def chain() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.LayerNorm(6), nn.Linear(6, 4), nn.Linear(4, 2))


def moved(model: nn.Module, *steppers: torch.optim.Optimizer, steps: int = 3) -> list[torch.Tensor]:
    """The parameters of ``model`` after ``steps`` updates with gradients that are the same for equal models."""
    for _ in range(steps):
        for p in model.parameters():
            p.grad = torch.sin(7 * p.detach())
        for stepper in steppers:
            stepper.step()
    return [p.detach().clone() for p in model.parameters()]


def test_muon_is_torchs_muon_and_adamw_side_by_side() -> None:
    ours, theirs = chain(), chain()
    hidden = theirs[2].weight  # type: ignore[index]
    others = [p for p in theirs.parameters() if p is not hidden]
    pair = (
        torch.optim.Muon([hidden], lr=0.02, momentum=0.9, nesterov=False, ns_steps=3, weight_decay=0.1),
        torch.optim.AdamW(others, lr=0.01, betas=(0.7, 0.8), eps=1e-4, weight_decay=0.1),
    )
    own = muon(ours, momentum=0.9, nesterov=False, ns_steps=3, weight_decay=0.1, adamw_lr=0.01, betas=[0.7, 0.8], eps=1e-4)
    for mine, expected in zip(moved(ours, own), moved(theirs, *pair), strict=True):
        assert torch.equal(mine, expected)


def test_muon_moves_all_directions_of_a_matrix_about_equally() -> None:
    # Five Newton-Schulz steps bring singular values between 1/200 and 1 to between 0.68 and 1.13 (Jordan 2024), in bf16 nearly so.
    model = chain().double()
    matrix = model[2].weight  # type: ignore[index]
    before = matrix.detach().clone()
    moved(model, muon(model, lr=1.0, weight_decay=0.0), steps=1)
    values = torch.linalg.svdvals(before - matrix.detach())
    assert values.min() > 0.6 and values.max() < 1.2


@pytest.mark.parametrize(("noise", "least", "most"), [(1e-15, 0.0, 0.0), (1e-4, 3e-3, 5e-2)])
def test_muon_gives_the_same_bits_or_a_difference_of_bfloat16(noise: float, least: float, most: float) -> None:
    """Newton-Schulz begins with rounding to bfloat16: a difference vanishes there, or flips a last bit, which the iteration spreads.

    Measured on the 96 x 512 matrices of model=tiny: relative differences up to 1e-8 give equal bits, 1e-6 gives 9e-3, 1e-4 1.6e-2.
    In float32, where k = 4 and k = 1 differ by 1.5e-7, each matrix of that model is bitwise equal or differs by 3e-3 to 2e-2. In
    float64 the same iteration would multiply a difference by 14, and its result is 4e-2 away from that in bfloat16.
    """
    torch.manual_seed(0)
    gradient = torch.randn(96, 96, dtype=torch.float64)
    other = gradient * (1 + noise * torch.randn(96, 96, dtype=torch.float64))
    updates = []
    for g in (gradient, other):
        model = nn.Sequential(nn.Linear(1, 1), nn.Linear(96, 96, bias=False), nn.Linear(1, 1)).double()
        nn.init.zeros_(model[1].weight)  # type: ignore[arg-type]
        model[1].weight.grad = g.clone()
        muon(model, weight_decay=0.0).step()
        updates.append(model[1].weight.detach().clone())  # type: ignore[operator]
    found = float((updates[1] - updates[0]).norm() / updates[0].norm())
    assert least <= found <= most


def test_muon_continues_bitwise_from_a_checkpoint() -> None:
    model = chain()
    optimizer = muon(model)
    moved(model, optimizer)
    with io.BytesIO() as file:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        file.seek(0)
        state = torch.load(file, weights_only=True)
    expected = moved(model, optimizer)
    again = chain()
    fresh = muon(again)
    again.load_state_dict(state["model"])
    fresh.load_state_dict(state["optimizer"])
    assert all(torch.equal(mine, other) for mine, other in zip(moved(again, fresh), expected, strict=True))


def test_muon_is_one_optimizer_for_rates_hooks_and_loss_scalers() -> None:
    model, calls = chain(), []
    optimizer = muon(model)
    optimizers.set_lr(optimizer, 0.5)
    assert [group["lr"] for group in optimizer.param_groups] == [0.01, 0.0015]
    optimizer.register_step_pre_hook(lambda *_: calls.append(1))
    moved(model, optimizer, steps=2)
    assert len(calls) == 2
    assert {id(p) for p in optimizer.state} == {id(p) for p in model.parameters()}
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(sum(p.sum() for p in model.parameters())).backward()  # type: ignore[arg-type]
    for p in model.parameters():
        p.grad = torch.full_like(p, 4.0)
    scaler.unscale_(optimizer)
    assert all(torch.equal(p.grad, torch.ones_like(p)) for p in model.parameters() if p.grad is not None)


def test_muon_alone_where_all_else_is_frozen() -> None:
    model = chain().requires_grad_(False)
    model[2].weight.requires_grad_(True)  # type: ignore[index]
    assert [len(group["params"]) for group in muon(model).param_groups] == [1]


@pytest.mark.parametrize("optimizer", [BASE["optimizer"], ADAM, SGD, MUON], ids=["adamw", "adam", "sgd", "muon"])
def test_frozen_parameters_take_no_part(optimizer: dict[str, Any]) -> None:
    model = chain()
    model[0].requires_grad_(False)  # type: ignore[index]
    before = [p.detach().clone() for p in model.parameters()]
    stepper = optimizers.make(make_spec(optimizer=optimizer | {"weight_decay": 0.5}).setup.optimizer, model)
    for p in model.parameters():
        p.grad = torch.ones_like(p) if p.requires_grad else None
    stepper.step()
    assert [torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True)] == [not p.requires_grad for p in model.parameters()]


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
