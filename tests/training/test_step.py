"""One optimizer step: clipped once, updated once, and not at all where the loss is not finite."""

import math

import pytest
import torch
from torch import Tensor

from accum_sweeps.training.step import train_step
from accum_sweeps.training.task import Training

Pair = tuple[list[float], float]


def training(max_norm: float | None = None, lr: float = 1.0) -> Training:
    """Two weights at 0 under plain SGD; a micro-batch is (slope of the summed loss, number of terms)."""
    model = torch.nn.Linear(2, 1, bias=False)
    torch.nn.init.zeros_(model.weight)

    def loss(micro_batch: Pair) -> tuple[Tensor, float]:
        return (model.weight * torch.tensor(micro_batch[0])).sum(), micro_batch[1]

    return Training(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=lr), loss=loss, max_norm=max_norm)


def weights(state: Training) -> list[float]:
    return [round(value, 3) for value in state.parameters[0].flatten().tolist()]


@pytest.mark.parametrize("micro_batches", [[([2.0, 0.0], 1), ([0.0, 2.0], 0)], [([0.0, 2.0], 0), ([2.0, 0.0], 1)]])
def test_the_whole_gradient_is_clipped_once(micro_batches: list[Pair]) -> None:
    # Clipping the running buffer after each micro-batch would give (.447, .894) in one of the two orders.
    state = training(max_norm=1.0)
    outcome = train_step(state, micro_batches)
    assert weights(state) == [-0.707, -0.707]
    assert outcome.values["grad_norm"] == pytest.approx(math.sqrt(8), rel=1e-6)


def test_a_gradient_below_the_limit_is_left_as_it_is() -> None:
    state = training(max_norm=10.0)
    train_step(state, [([2.0, 0.0], 1), ([0.0, 2.0], 0)])
    assert weights(state) == [-2.0, -2.0]


def test_four_micro_batches_make_one_update() -> None:
    state, updates = training(), []
    state.optimizer.register_step_post_hook(lambda *_: updates.append(1))
    outcome = train_step(state, [([1.0, 0.0], 1), ([2.0, 0.0], 1), ([3.0, 0.0], 1), ([4.0, 0.0], 1)])
    assert (len(updates), weights(state), outcome.terms) == (1, [-2.5, 0.0], 4)


def test_the_loss_is_the_mean_over_all_terms_before_the_update() -> None:
    state = training()
    with torch.no_grad():
        state.parameters[0].copy_(torch.tensor([[1.0, 1.0]]))
    assert train_step(state, [([6.0, 0.0], 3), ([0.0, 4.0], 1)]).loss == 2.5


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_no_update_where_the_loss_is_not_finite(bad: float) -> None:
    state = training()
    with torch.no_grad():
        state.parameters[0].copy_(torch.tensor([[1.0, 1.0]]))
    outcome = train_step(state, [([1.0, 0.0], 1), ([bad, 0.0], 1)])
    assert not math.isfinite(outcome.loss)
    assert weights(state) == [1.0, 1.0]


def test_a_step_without_terms_is_refused() -> None:
    with pytest.raises(ValueError, match="the micro-batches of optimizer step 1 hold no term"):
        train_step(training(), [([0.0, 0.0], 0), ([0.0, 0.0], 0)])
