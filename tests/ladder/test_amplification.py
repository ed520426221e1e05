"""What an optimizer makes of a difference: gain, shares and closed form, against torch's own optimizers."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from accum_sweeps.ladder.amplification import amplification, first_step
from accum_sweeps.ladder.observation import Observation
from accum_sweeps.plan.parts import Adam, AdamW, Muon, Optimizer, Sgd
from accum_sweeps.training import optimizers

COMMON: dict[str, Any] = {"name": "", "max_norm": None, "schedule": "constant", "warmup_steps": 0, "lr": 0.5}
ADAM: dict[str, Any] = {**COMMON, "betas": (0.9, 0.95), "eps": 1e-3}
G = torch.tensor([2.0, -1e-3, 1e-5, 0.0], dtype=torch.float64)
NUDGED = torch.tensor([2.0, -1e-3, -1e-5, 0.0], dtype=torch.float64)


def stepped(part: Optimizer, gradient: Tensor) -> Observation:
    """One step of the optimizer of ``part`` on weights 1, 2, 3, 4."""
    model = torch.nn.Linear(2, 2, bias=False, dtype=torch.float64)
    torch.nn.init._no_grad_fill_(model.weight, 1.0)
    with torch.no_grad():
        model.weight += torch.arange(4.0).view(2, 2)
    before = model.weight.detach().clone()
    model.weight.grad = gradient.view(2, 2).clone()
    optimizers.make(part, model).step()
    given = {"weight": gradient.view(2, 2)}
    after = {"weight": model.weight.detach()}
    return Observation(loss=0, terms=1, lr=part.lr, gradient=given, clipped=given, before={"weight": before}, after=after, buffers={})


@pytest.mark.parametrize(
    "part",
    [
        AdamW(**ADAM, weight_decay=0.1),
        Adam(**ADAM, weight_decay=0.1),
        Sgd(**COMMON, momentum=0.9, nesterov=False, weight_decay=0.1),
        Sgd(**COMMON, momentum=0.9, nesterov=True, weight_decay=0.1),
    ],
)
def test_the_closed_form_is_torchs_first_step(part: Optimizer) -> None:
    rule = first_step(part, part.lr)
    assert rule is not None
    arm, reference = stepped(part, NUDGED), stepped(part, G)
    decay = part.lr * part.weight_decay if isinstance(part, AdamW) else 0.0
    before = reference.before["weight"]
    predicted = before * (1 - decay) + rule(reference.clipped["weight"], before)
    # float64, two to five operations on numbers of order 1; the difference is 1e-5 or more, of which rounding is 1e-10
    assert torch.allclose(reference.after["weight"], predicted, rtol=1e-14, atol=0)
    assert amplification(arm, reference, rule, 1e-3).prediction == pytest.approx(1, rel=1e-9)


def test_gain_and_shares_are_those_done_by_hand() -> None:
    part = AdamW(**ADAM, weight_decay=0.0)
    found = amplification(stepped(part, NUDGED), stepped(part, G), first_step(part, 0.5), 1e-3)
    soft = [-1e-3 / 2e-3, 1e-5 / 1.01e-3]
    moved = 0.5 * math.sqrt((2 / 2.001) ** 2 + soft[0] ** 2 + soft[1] ** 2)
    assert found.gradient == pytest.approx(2e-5 / math.sqrt(4 + 1e-6 + 1e-10), rel=1e-12)
    assert found.update == pytest.approx(0.5 * 2 * soft[1] / moved, rel=1e-9)
    assert found.gain == found.update / found.gradient
    # All of the difference is in the third element: soft, and of another sign. The fourth has no gradient.
    assert found.soft_share == found.flip_share == 1.0
    assert (found.soft_elements, found.flip_elements) == (2 / 3, 1 / 3)
    assert (found.by_tensor, found.largest_tensor) == ({"weight": 1.0}, "weight")


def test_equal_gradients_have_no_gain_and_no_ratio_to_a_prediction() -> None:
    part = AdamW(**ADAM, weight_decay=0.1)
    found = amplification(stepped(part, G), stepped(part, G), first_step(part, 0.5), 1e-3)
    assert (found.update, found.gradient, found.gain, found.soft_share) == (0.0, 0.0, 0.0, 0.0)
    assert math.isnan(found.prediction)


def test_muon_has_no_closed_form() -> None:
    rest = {"momentum": 0.9, "nesterov": True, "ns_steps": 5, "adamw_lr": 0.1, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.0}
    assert first_step(Muon(**COMMON, **rest), 0.5) is None  # type: ignore[arg-type]
