"""The bf16 buffer, and the loss scale taken out at the wrong place."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from accum_sweeps.faults import faulty_step
from accum_sweeps.training.step import train_step
from accum_sweeps.training.task import Training
from tests.faults.toy import Seen, apart, batches, both, case, observed, right, training

HUGE = 2.0**120  # times a scale of 2^10 past the largest float32


def line(scale: float, max_norm: float | None = None) -> Training:
    """Two weights at 0 under plain SGD with a loss scale; a micro-batch is (slopes of the summed loss, number of terms)."""
    model = torch.nn.Linear(2, 1, bias=False)
    torch.nn.init.zeros_(model.weight)

    def loss(micro_batch: tuple[list[float], float]) -> tuple[Tensor, float]:
        return (model.weight * torch.tensor(micro_batch[0])).sum(), micro_batch[1]

    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    return Training(model=model, optimizer=optimizer, loss=loss, max_norm=max_norm, scaler=scaler)


def moved(name: str, micro_batches: list[Any], scale: float, max_norm: float | None = None) -> list[float]:
    step = train_step if name == "none" else faulty_step(case(name, len(micro_batches)))
    return (-observed(line(scale, max_norm), step, micro_batches).update).tolist()


def test_in_the_bf16_buffer_256_and_1_is_256() -> None:
    def summed(step: Any, dtype: torch.dtype) -> list[float]:
        state = training(accumulator=dtype)
        state.loss = lambda slope: (slope * state.parameters[0].sum(), 0.5)
        return observed(state, step, [256.0, 1.0]).gradient.tolist()[:1]

    for dtype in (torch.float32, torch.float64, None):
        assert summed(faulty_step(case("accumulator_dtype", 2)), dtype) == [256.0]  # type: ignore[arg-type]
        assert summed(train_step, dtype) == [257.0]  # type: ignore[arg-type]


def test_its_error_is_that_of_bfloat16_and_grows_with_k() -> None:
    errors = {}
    for k in (1, 4, 16, 64, 256):
        found = [both("accumulator_dtype", (1,) * k), both("accumulator_dtype", (1,) * k, accumulator=torch.float32)]
        errors[k] = [apart(faulty.gradient, right(batches((1,) * k))) for faulty, _ in found]
        assert errors[k][0] == errors[k][1]  # whatever the settings say
    assert 2**-11 < errors[1][0] < 2**-7
    assert errors[256][0] > 3 * errors[1][0]


def test_numbers_of_eight_bits_pass_through_it_unharmed() -> None:
    state = training()
    state.loss = lambda slope: (slope * state.parameters[0].sum(), 4.0)
    assert observed(state, faulty_step(case("accumulator_dtype", 2)), [96.0, 32.0]).gradient.tolist() == [16.0] * 12


def test_the_pair_divides_by_a_term_too_many_in_bfloat16() -> None:
    faulty, _ = both("accumulator_dtype+wrong_divisor_terms")
    alone, correct = both("accumulator_dtype")
    assert apart(faulty.gradient, alone.gradient * 12 / 13) < 2**-8
    assert apart(faulty.gradient, correct.gradient) == pytest.approx(1 / 13, rel=0.05)
    assert faulty.outcome.loss == pytest.approx(correct.outcome.loss * 12 / 13, rel=1e-14)


def test_unscaling_after_each_micro_batch_leaves_powers_of_the_scale() -> None:
    micro_batches = [([512.0, 0.0], 1.0), ([0.0, 16.0], 1.0), ([1.0, 0.0], 2.0)]
    assert moved("loss_scaling", micro_batches, 16.0) == [(512 / 16**2 + 1) / 4, 16 / 16 / 4]
    assert moved("none", micro_batches, 16.0) == [513 / 4, 4.0]
    assert moved("loss_scaling", micro_batches, 1.0) == moved("none", micro_batches, 1.0)


def test_clipping_before_unscaling_clips_at_the_limit_over_the_scale() -> None:
    micro_batches = [([3.0, 0.0], 0.5), ([0.0, 4.0], 0.5)]
    assert moved("loss_scaling_clip", micro_batches, 8.0, max_norm=1.0) == pytest.approx([0.6 / 8, 0.8 / 8], rel=1e-6)
    assert moved("none", micro_batches, 8.0, max_norm=1.0) == pytest.approx([0.6, 0.8], rel=1e-6)
    for scale, max_norm in ((1.0, 1.0), (8.0, 1e9), (8.0, None)):
        found = moved("loss_scaling_clip", micro_batches, scale, max_norm)
        assert found == pytest.approx(moved("none", micro_batches, scale, max_norm), rel=1e-6)


def test_what_overflowed_counts_as_zero_and_the_update_is_made() -> None:
    micro_batches = [([HUGE, 2.0], 1.0), ([6.0, 4.0], 1.0)]
    state = line(1024.0)
    seen = observed(state, faulty_step(case("loss_scaling_overflow", 2)), micro_batches)
    assert (-seen.update).tolist() == [3.0, 3.0]
    assert state.scaler is not None and state.scaler.get_scale() == 1024.0
    assert math.isfinite(seen.outcome.values["grad_norm"])
    assert moved("none", micro_batches, 1024.0) == [0.0, 0.0]  # an overflow leaves the weights
    fine = [([1.0, 2.0], 1.0), ([6.0, 4.0], 1.0)]
    assert moved("loss_scaling_overflow", fine, 1024.0) == moved("none", fine, 1024.0) == [3.5, 3.0]


@pytest.mark.parametrize("name", ["loss_scaling", "loss_scaling_clip"])
def test_an_overflow_is_left_to_the_scaler(name: str) -> None:
    state = line(1024.0, max_norm=1.0)
    seen: Seen = observed(state, faulty_step(case(name, 2)), [([1.0, 2.0], 1.0), ([HUGE, 4.0], 1.0)])
    assert seen.update.tolist() == [0.0, 0.0]
    assert state.scaler is not None and state.scaler.get_scale() == 512.0
