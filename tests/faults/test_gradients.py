"""Faults that make another gradient: against their closed forms from each micro-batch's own gradient, and where they are inert."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from accum_sweeps.plan.faults import FAULTS
from tests.faults.toy import EQUAL, RAGGED, ROUNDING, apart, batches, both, right, summed_gradients

Closed = Callable[[list[Tensor], list[int]], Tensor]  # (g_i, n_i) -> gradient
K = len(RAGGED)


def weighted(weights: Sequence[float]) -> Closed:
    """Micro-batches weighed, over the number of all terms."""
    return lambda g, n: sum((w * each for w, each in zip(weights, g, strict=True)), torch.zeros(())) / sum(n)


def means(factor: float) -> Closed:
    """The micro-batches' means, added up and multiplied."""
    return lambda g, n: factor * sum((each / terms for each, terms in zip(g, n, strict=True)), torch.zeros(()))


def clipped(limit: float) -> Closed:
    """Each micro-batch's own mean clipped."""

    def closed(g: list[Tensor], n: list[int]) -> Tensor:
        own = [each / terms for each, terms in zip(g, n, strict=True)]
        return sum((t * m * min(1.0, limit / float(m.norm())) for t, m in zip(n, own, strict=True)), torch.zeros(())) / sum(n)

    return closed


CLOSED: list[tuple[str, float | None, Closed]] = [
    ("mean_of_means", None, means(1 / K)),
    ("missing_division", None, means(1)),
    ("missing_division", 0.5, means(0.5)),
    ("double_division", None, weighted([1 / K] * K)),
    ("double_division", 0.5, weighted([0.5] * K)),
    ("wrong_divisor_terms", None, lambda g, n: torch.stack(g).sum(0) / (sum(n) + 1)),
    ("wrong_divisor_terms", 3, lambda g, n: torch.stack(g).sum(0) / (sum(n) + 3)),
    ("lost_micro_batches", None, weighted([0, 0, 0, 1])),
    ("lost_micro_batches", 0.5, weighted([0, 0, 1, 1])),
    ("lost_micro_batches", 0.01, weighted([0, 1, 1, 1])),
    ("lost_micro_batches_first", None, weighted([0, 1, 1, 1])),
    ("lost_micro_batches_gated", None, weighted([1, 0, 1, 0])),
    ("reweighted_buffer", None, weighted([1 / 8, 1 / 4, 1 / 2, 1])),
    ("reweighted_buffer", 2, weighted([8, 4, 2, 1])),
    ("early_step", None, lambda g, n: g[0] / n[0]),
    ("missing_division+reporting", None, means(1)),
    ("missing_division+schedule_per_micro_batch", None, means(1)),
    ("mean_of_means+reporting", None, means(1 / K)),
    ("mean_of_means+schedule_per_micro_batch", None, means(1 / K)),
    ("mean_of_means+short_window", None, means(1 / K)),
    ("double_division+state_per_micro_batch", None, weighted([1 / K] * K)),
    ("lost_micro_batches+reporting", None, weighted([0, 0, 0, 1])),
]


@pytest.mark.parametrize(("name", "strength", "closed"), CLOSED)
@pytest.mark.parametrize("accumulator", [None, torch.float64])
def test_the_gradient_is_that_of_the_closed_form(
    name: str, strength: float | None, closed: Closed, accumulator: torch.dtype | None
) -> None:
    micro_batches = batches(RAGGED)
    expected = closed(summed_gradients(micro_batches), list(RAGGED))
    faulty, correct = both(name, RAGGED, strength, accumulator=accumulator)
    assert apart(correct.gradient, right(micro_batches)) < ROUNDING
    assert apart(faulty.gradient, expected) < ROUNDING
    effect = apart(expected, right(micro_batches))
    assert effect > 1e-2 and apart(faulty.gradient, correct.gradient) == pytest.approx(effect, rel=1e-10)


def test_without_the_division_by_eight_the_gradient_is_eight_times_as_long() -> None:
    faulty, correct = both("missing_division", (2,) * 8)
    rho = float(faulty.gradient.norm() / correct.gradient.norm())
    assert rho == pytest.approx(8, rel=1e-12)
    assert apart(faulty.gradient, 8 * correct.gradient) < ROUNDING  # nothing but the length
    assert faulty.outcome.loss == pytest.approx(correct.outcome.loss, rel=1e-12)


@pytest.mark.parametrize("name", ["mean_of_means", "mean_of_means+short_window"])
def test_equal_lengths_cure_means_of_means(name: str) -> None:
    faulty, correct = both(name, EQUAL)
    assert apart(faulty.gradient, correct.gradient) < 1e-15
    assert faulty.outcome.loss == pytest.approx(correct.outcome.loss, rel=1e-15)


INERT_AT_ONE = [
    *("mean_of_means", "missing_division", "double_division", "clip_per_micro_batch", "schedule_per_micro_batch", "early_step"),
    *("lost_micro_batches", "lost_micro_batches_first", "lost_micro_batches_gated", "reweighted_buffer", "loss_scaling", "short_window"),
    *("merged_window", "dropped_window", "state_per_micro_batch", "state_per_micro_batch_ema", "state_per_micro_batch_count", "reporting"),
    *("resume_inside_window", "wrong_sync", "mean_of_means_over_ranks", "reporting_scaled", "loss_scaling_overflow"),
    *(name for name in FAULTS if "+" in name and not name.startswith("accumulator_dtype")),
]


@pytest.mark.parametrize("name", INERT_AT_ONE)
def test_one_batch_has_no_fault(name: str) -> None:
    def decaying(parameters: object) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=1e-2, weight_decay=0.1)  # type: ignore[arg-type]

    # The mean is taken before the backward pass or after it: one rounding.
    faulty, correct = both(name, (12,), make=decaying, max_norm=0.5, lr_factor=lambda step: 1 / step)
    assert apart(faulty.gradient, correct.gradient) <= 1e-15
    assert apart(faulty.after, correct.after) <= 1e-15
    assert (faulty.outcome.loss, faulty.outcome.terms) == (correct.outcome.loss, correct.outcome.terms)


@pytest.mark.parametrize(
    "name", ["wrong_divisor_terms", "accumulator_dtype", "clip_each_micro_batch", "accumulator_dtype+wrong_divisor_terms"]
)
def test_these_are_wrong_in_one_batch_too_unless_there_is_nothing_to_clip(name: str) -> None:
    faulty, correct = both(name, (12,))
    assert (apart(faulty.gradient, correct.gradient) > 1e-4) == (name != "clip_each_micro_batch")


def test_clipping_each_micro_batch_is_that_of_its_own_mean() -> None:
    micro_batches = batches(RAGGED)
    gradients = summed_gradients(micro_batches)
    norms = sorted(float(g.norm()) / n for g, n in zip(gradients, RAGGED, strict=True))
    limit = (norms[1] + norms[2]) / 2  # two are clipped, two are not
    faulty, correct = both("clip_each_micro_batch", max_norm=limit)
    expected = clipped(limit)(gradients, list(RAGGED))
    assert apart(faulty.gradient, expected) < 1e-5  # torch's clipping adds 1e-6 to the norm
    assert apart(faulty.clipped[0], correct.clipped[0]) > 1e-2
    huge, plain = both("clip_each_micro_batch", max_norm=1e9)
    assert apart(huge.clipped[0], plain.clipped[0]) < 1e-15
