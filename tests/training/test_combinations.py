"""Every precision with every optimizer and gradient buffer: it runs, and in float64 accumulation is exact up to rounding.

The network is a chain of three linear layers with a LayerNorm; eps is 1e-4 where all is in float16.
"""

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from accum_sweeps.plan.spec import ACCUMULATORS, DTYPES
from accum_sweeps.training import seeding
from accum_sweeps.training.loop import TrainingSession
from tests.specs import BASE, make_spec
from tests.training.test_optimizers import ADAM, MUON, SGD
from tests.training.toy import INPUTS, ToyTask

OPTIMIZERS = {"adamw": BASE["optimizer"], "adam": ADAM, "sgd": SGD, "muon": MUON}
HERE = [dtype for dtype in DTYPES if dtype != "tf32"]  # tf32 is fp32 with a flag, which only GPUs know
WIDTH = 16


class Chain(ToyTask):
    """ToyTask with two hidden layers; the loss in float32 or better."""

    def build(self) -> nn.Module:
        model = nn.Sequential(
            nn.Linear(INPUTS, WIDTH), nn.GELU(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, 1)
        )
        rng = seeding.generator("init", self.spec.seed_init, "chain")
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.from_numpy(rng.standard_normal(tuple(parameter.shape)) / 4))
        return model

    def loss(self, model: nn.Module, micro_batch: Any) -> tuple[Tensor, int]:
        x, y = micro_batch
        given = model(x)
        wide = torch.promote_types(given.dtype, torch.float32)
        return ((given.to(wide) - y.to(wide)) ** 2).sum(), len(x)


def session(dtype: str, optimizer: str, accumulator: str, accum: int, **changes: Any) -> TrainingSession:
    part = OPTIMIZERS[optimizer] | ({"eps": 1e-4} if dtype == "fp16" and optimizer != "sgd" else {})
    spec = make_spec(dtype=dtype, optimizer=part, accumulator=accumulator, accum=accum, steps=2, eval_every=0, probe_steps=[], **changes)
    return TrainingSession(spec, Chain(spec))


@pytest.mark.parametrize(("dtype", "optimizer"), list(itertools.product(HERE, OPTIMIZERS)))
def test_every_combination_trains(dtype: str, optimizer: str) -> None:
    for accumulator in ACCUMULATORS:
        run = session(dtype, optimizer, accumulator, 4)
        before = [p.detach().clone() for p in run.training.parameters]
        records = list(run.steps())
        assert [record.is_diverged for record in records] == [False, False]
        assert all(math.isfinite(record.values[key]) for record in records for key in ("train_loss", "grad_norm"))
        moved = [not torch.equal(p, old) for p, old in zip(run.training.parameters, before, strict=True)]
        assert sum(moved) >= len(moved) - 1  # in bf16 Adam moves the last bias by less than half its last bit


def first_step(optimizer: str, accumulator: str, accum: int, dtype: str = "fp64") -> tuple[Tensor, list[Tensor]]:
    """(whole gradient, update of each parameter) of the first optimizer step."""
    run = session(dtype, optimizer, accumulator, accum)
    before = [p.detach().clone() for p in run.training.parameters]
    seen: list[Tensor] = []
    run.training.on_gradient = lambda: seen.append(torch.cat([p.grad.flatten() for p in run.training.parameters if p.grad is not None]))
    next(run.steps())
    return seen[0], [p.detach() - old for p, old in zip(run.training.parameters, before, strict=True)]


def relative(value: Tensor, reference: Tensor) -> float:
    return float((value - reference).norm() / reference.norm())


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("accum", [2, 4, 16])
def test_in_float64_the_accumulated_gradient_is_that_of_one_batch(optimizer: str, accum: int) -> None:
    reference, _ = first_step(optimizer, "param", 1)
    for accumulator in ("param", "fp64"):
        assert relative(first_step(optimizer, accumulator, accum)[0], reference) < 1e-12


@pytest.mark.parametrize(("accumulator", "least", "most"), [("fp32", 1e-9, 2.0**-23), ("bf16", 1e-4, 2.0**-7)])
def test_a_narrower_buffer_costs_about_its_unit_roundoff(accumulator: str, least: float, most: float) -> None:
    # At most one rounding for each of the four parts and one for the quotient, in parts smaller than the whole.
    reference, _ = first_step("sgd", "param", 1)
    assert least < relative(first_step("sgd", accumulator, 4)[0], reference) < most


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_in_float64_the_update_is_that_of_one_batch(optimizer: str) -> None:
    """Muon's too, although it computes in bfloat16: gradients that differ by 1e-16 are rounded to the same bfloat16 numbers."""
    _, one = first_step(optimizer, "param", 1)
    _, four = first_step(optimizer, "param", 4)
    assert relative(torch.cat([u.flatten() for u in four]), torch.cat([u.flatten() for u in one])) < 1e-12


@pytest.mark.parametrize(("dtype", "optimizer"), list(itertools.product(["fp32", "amp_fp16", "fp16"], OPTIMIZERS)))
def test_a_resumed_run_is_bitwise_equal(tmp_path: Path, dtype: str, optimizer: str) -> None:
    whole, first, second = (session(dtype, optimizer, "fp32", 4, ema=0.5) for _ in range(3))
    expected = [dict(record.values) for record in whole.steps()]
    next(first.steps())
    first.save(tmp_path / "checkpoint.pt")
    assert second.load(tmp_path / "checkpoint.pt") == 1
    assert [dict(record.values) for record in second.steps()] == expected[1:]
    for mine, other in zip(second.training.parameters, whole.training.parameters, strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_in_float16_an_eps_of_1e_8_is_zero_and_adam_divides_by_it(optimizer: str) -> None:
    # The second moments are (1 - 0.95) g^2: 0 in float16 for every |g| below 7e-4.
    spec = make_spec(dtype="fp16", optimizer=OPTIMIZERS[optimizer] | {"eps": 1e-8}, steps=3, eval_every=0, probe_steps=[])
    run = TrainingSession(spec, Chain(spec))
    records = list(run.steps())
    assert [record.is_diverged for record in records] == [False, True]
    assert float(torch.tensor(1e-8).half()) == 0.0
    broken = [~p.isfinite() for p in run.training.parameters]
    vanished = [run.training.optimizer.state[p]["exp_avg_sq"] == 0 for p in run.training.parameters]
    assert sum(int(b.sum()) for b in broken) > 0
    assert all(bool((zero | ~bad).all()) for bad, zero in zip(broken, vanished, strict=True))
