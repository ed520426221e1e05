"""Clipping within the loop: the public two-vector example, orders, and where it is inert."""

import pytest
import torch
from torch import Tensor

from accum_sweeps.faults import faulty_step
from accum_sweeps.training.step import train_step
from accum_sweeps.training.task import Training
from tests.faults.toy import ROUNDING, apart, batches, both, case, observed, right, summed_gradients, training

Pair = tuple[list[float], float]
X, Y = ([2.0, 0.0], 1.0), ([0.0, 2.0], 0.0)  # slope of the summed loss, number of terms: one term in all, no division


def plane(max_norm: float, scaler: torch.amp.GradScaler | None = None) -> Training:
    """Two weights at 0 under plain SGD."""
    model = torch.nn.Linear(2, 1, bias=False)
    torch.nn.init.zeros_(model.weight)

    def loss(micro_batch: Pair) -> tuple[Tensor, float]:
        return (model.weight * torch.tensor(micro_batch[0])).sum(), micro_batch[1]

    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    return Training(model=model, optimizer=optimizer, loss=loss, max_norm=max_norm, scaler=scaler)


def moved(name: str, micro_batches: list[Pair], max_norm: float = 1.0) -> list[float]:
    seen = observed(plane(max_norm), faulty_step(case(name, 2)), micro_batches)
    return [round(-value, 3) for value in seen.update.tolist()]


def test_the_public_example_has_its_public_numbers() -> None:
    assert moved("clip_per_micro_batch", [X, Y]) == [0.447, 0.894]
    assert moved("clip_per_micro_batch", [Y, X]) == [0.894, 0.447]
    seen = observed(plane(1.0), train_step, [X, Y])
    assert [round(-value, 3) for value in seen.update.tolist()] == [0.707, 0.707]


def test_clipping_each_micro_batch_does_not_depend_on_the_order() -> None:
    own = [([2.0, 0.0], 1.0), ([0.0, 6.0], 1.0)]
    assert moved("clip_each_micro_batch", own) == moved("clip_each_micro_batch", own[::-1]) == [0.5, 0.5]
    assert [round(-value, 3) for value in observed(plane(1.0), train_step, own).update.tolist()] == [0.316, 0.949]


@pytest.mark.parametrize("name", ["clip_per_micro_batch", "clip_each_micro_batch"])
def test_a_limit_that_nothing_reaches_cures_it(name: str) -> None:
    for max_norm in (None, 1e9):
        faulty, correct = both(name, max_norm=max_norm)
        assert apart(faulty.clipped[0], correct.clipped[0]) < 1e-15


def test_the_running_buffer_is_clipped_at_the_limit_of_the_whole_gradient() -> None:
    micro_batches, limit = batches((3, 3, 3, 3)), 0.3 * float(right(batches((3, 3, 3, 3))).norm())
    buffer = torch.zeros(21, dtype=torch.float64)
    for gradient in summed_gradients(micro_batches):
        buffer = buffer + gradient / 12
        buffer = buffer * min(1.0, limit / (float(buffer.norm()) + 1e-6))
    faulty = observed(training(max_norm=limit), faulty_step(case("clip_per_micro_batch")), micro_batches)
    correct = observed(training(max_norm=limit), train_step, micro_batches)
    assert apart(faulty.clipped[0], buffer) < ROUNDING
    assert float(faulty.clipped[0].norm()) == pytest.approx(limit, rel=1e-5) == float(correct.clipped[0].norm())
    assert apart(faulty.clipped[0], correct.clipped[0]) > 1e-2


@pytest.mark.parametrize(("name", "divisor"), [("missing_division", 1), ("mean_of_means", 4)])
def test_with_a_wrong_division_the_running_buffer_holds_means(name: str, divisor: int) -> None:
    sizes, limit = (1, 2, 5, 4), 0.7
    buffer = torch.zeros(21, dtype=torch.float64)
    for gradient, terms in zip(summed_gradients(batches(sizes)), sizes, strict=True):
        buffer = buffer + gradient / terms / divisor
        buffer = buffer * min(1.0, limit / (float(buffer.norm()) + 1e-6))
    faulty, correct = both(f"{name}+clip_per_micro_batch", sizes, max_norm=limit)
    assert apart(faulty.clipped[0], buffer) < ROUNDING
    assert apart(faulty.clipped[0], correct.clipped[0]) > 1e-2


@pytest.mark.parametrize("name", ["clip_per_micro_batch", "clip_each_micro_batch", "mean_of_means+clip_per_micro_batch"])
def test_a_loss_scale_does_not_move_the_limit(name: str) -> None:
    own: list[Pair] = [([2.0, 0.0], 1.0), ([0.0, 6.0], 1.0)]
    scaled = observed(plane(1.0, torch.amp.GradScaler("cpu", init_scale=1024.0)), faulty_step(case(name, 2)), own)
    assert apart(scaled.update, observed(plane(1.0), faulty_step(case(name, 2)), own).update) < 1e-6  # float32
