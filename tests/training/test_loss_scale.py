"""Loss scaling: a power of two changes nothing but the range, overflows are left out, and the scale adapts."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from accum_sweeps.training.loop import TrainingSession
from accum_sweeps.training.sketch import weights_hash
from accum_sweeps.training.step import train_step
from accum_sweeps.training.task import Training
from tests.specs import make_spec
from tests.training.toy import ToyTask

HUGE = 2.0**120  # times a scale of 2^10 past the largest float32; the weight itself is near 0, so the loss is not


def training(scale: float, max_norm: float | None = None, **changes: Any) -> Training:
    """One weight at 0 under plain SGD; a micro-batch is (slope of the summed loss, number of terms)."""
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)

    def loss(micro_batch: tuple[float, float]) -> tuple[Tensor, float]:
        return (model.weight * micro_batch[0]).sum(), micro_batch[1]

    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    return Training(model=model, optimizer=optimizer, loss=loss, max_norm=max_norm, scaler=scaler, **changes)


def weight(state: Training) -> float:
    return float(state.parameters[0].detach())


@pytest.mark.parametrize("accumulator", [None, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("micro_batches", [[(2.0, 1), (4.0, 3)], [(6.0, 4)]], ids=["k=2", "k=1"])
def test_the_factor_is_taken_out_again_once(micro_batches: list[tuple[float, float]], accumulator: torch.dtype | None) -> None:
    state = training(1024.0, accumulator=accumulator)
    outcome = train_step(state, micro_batches)
    assert (weight(state), outcome.values["grad_norm"], outcome.values["loss_scale"]) == (-1.5, 1.5, 1024.0)


def test_gradients_are_clipped_after_the_factor_is_taken_out() -> None:
    state = training(1024.0, max_norm=1.0)
    train_step(state, [(6.0, 4)])
    assert weight(state) == pytest.approx(-1.0, rel=1e-5)  # 1.5 clipped to 1; the norm's divisor has 1e-6 added


@pytest.mark.parametrize("max_norm", [None, 1.0])
@pytest.mark.parametrize("where", [0, 1])
def test_an_overflow_leaves_the_weights_halves_the_scale_and_training_goes_on(where: int, max_norm: float | None) -> None:
    state = training(1024.0, max_norm=max_norm)
    train_step(state, [(1.0, 1), (1.0, 1)])
    before = weight(state)
    overflowing = [(1.0, 1), (1.0, 1)]
    overflowing[where] = (HUGE, 1)
    outcome = train_step(state, overflowing)
    assert math.isfinite(outcome.loss) and not math.isfinite(outcome.values["grad_norm"])
    assert (weight(state), outcome.values["loss_scale"], state.scaler.get_scale()) == (before, 1024.0, 512.0)  # type: ignore[union-attr]
    outcome = train_step(state, [(1.0, 1), (1.0, 1)])
    assert weight(state) < before and outcome.values["loss_scale"] == 512.0


def test_the_scale_falls_until_the_gradients_fit() -> None:
    state = training(2.0**16)
    slope = 2.0**118  # times 2^10 it is past the largest float32, times 2^9 it is not
    scales = [train_step(state, [(slope, 2.0**118)]).values["loss_scale"] for _ in range(9)]
    assert scales == [2.0**16, 2.0**15, 2.0**14, 2.0**13, 2.0**12, 2.0**11, 2.0**10, 2.0**9, 2.0**9]
    assert weight(state) == -2.0


def session(**changes: Any) -> TrainingSession:
    spec = make_spec(dtype="amp_fp16", **{"steps": 6, "eval_every": 0, "loss_scale": 2.0**30, **changes})
    return TrainingSession(spec, ToyTask(spec))


def test_an_overflow_in_float16_is_no_divergence_and_leaves_average_and_weights() -> None:
    run = session(ema=0.5, steps=40)
    start = weights_hash(run.training.model)
    seen = []
    for record in run.steps():
        seen.append((math.isfinite(record.values["grad_norm"]), weights_hash(run.training.model) == start))
        assert run.training.average is not None
        assert int(run.training.average.n_averaged) == sum(fits for fits, _ in seen)
    assert len(seen) == 40
    overflows = [fits for fits, _ in seen].index(True)
    assert 5 < overflows < 30 and seen[:overflows] == [(False, True)] * overflows and seen[overflows] == (True, False)


def test_the_scale_continues_from_a_checkpoint(tmp_path: Path) -> None:
    expected = [str(record.values) for record in session(steps=30).steps()]  # as text: the norm of an overflow is not a number
    first = session(steps=30)
    for _ in zip(range(4), first.steps(), strict=False):
        pass
    first.save(tmp_path / "checkpoint.pt")
    second = session(steps=30)
    second.load(tmp_path / "checkpoint.pt")
    assert [str(record.values) for record in second.steps()] == expected[4:]
    assert "'loss_scale': 67108864.0" in expected[4]  # 2^30 / 2^4


def test_other_dtypes_have_no_scale() -> None:
    spec = make_spec(dtype="amp_bf16", steps=1)
    run = TrainingSession(spec, ToyTask(spec))
    assert run.training.scaler is None and "loss_scale" not in next(run.steps()).values


@pytest.mark.gpu
def test_on_a_gpu_an_overflow_leaves_the_weights() -> None:
    run = session(device="cuda", steps=40)
    start = weights_hash(run.training.model)
    first = next(run.steps())
    assert not math.isfinite(first.values["grad_norm"]) and weights_hash(run.training.model) == start
    assert math.isfinite(list(run.steps())[-1].values["grad_norm"])
