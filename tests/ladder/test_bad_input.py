"""Subjects that a ladder cannot stand on, and odd ones that it can: a clear statement, no crash, nobody accused."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import accum_sweeps as acs
from accum_sweeps.auditing import AccumulationError
from accum_sweeps.plan.errors import UserError


class Plain:
    """Eight rows of a regression, one term a row; what else is wrong with it is in the classes below."""

    rows = 8

    def build(self, config: Any, seeds: Any) -> nn.Module:
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))

    def batch(self, step: int, seed: int) -> Any:
        drawn = torch.randn(self.rows, 4, generator=torch.Generator().manual_seed(1000 * seed + step))
        return drawn[:, :3], drawn[:, 3:]

    def output(self, model: Any, x: Tensor) -> Tensor:
        given: Tensor = model(x)
        return given

    def loss(self, model: Any, samples: Any) -> tuple[Tensor, Any]:
        return (self.output(model, samples[0]) - samples[1]).square().sum(), len(samples[0])


class Undivided:
    """Somebody's step that forgets to divide."""

    def step(self, model: Any, optimizer: Any, micro_batches: list[Any]) -> tuple[float, float]:
        optimizer.zero_grad()
        losses, terms = 0.0, 0.0
        for micro_batch in micro_batches:
            total, count = self.loss(model, micro_batch)  # type: ignore[attr-defined]
            (total / count).backward()
            losses, terms = losses + float(total.detach()), terms + float(count)
        optimizer.step()
        return losses, terms


def found(hook: Any, accum: int = 4) -> Any:
    """The audit's plain values; the page can be made of all of them."""
    audits = acs.audit(hook, accum=accum)
    assert str(audits)
    [one] = audits.found
    return one


# --- nothing can be said ---------------------------------------------------------------------------------------------


class NotFinite(Plain):
    def __init__(self, value: float) -> None:
        self.value = value

    def loss(self, model: Any, samples: Any) -> tuple[Tensor, Any]:
        total, count = super().loss(model, samples)
        return total * self.value, count


class WithoutTerms(Plain):
    def loss(self, model: Any, samples: Any) -> tuple[Tensor, Any]:
        return super().loss(model, samples)[0] * 0, 0


class Moving(Plain):
    def loss(self, model: Any, samples: Any) -> tuple[Tensor, Any]:
        with torch.no_grad():
            model[0].weight.mul_(1.01)
        return super().loss(model, samples)


class WithoutUpdate(Plain):
    def step(self, model: Any, optimizer: Any, micro_batches: list[Any]) -> tuple[float, float]:
        return 1.0, 1.0


UNOBSERVABLE: dict[str, tuple[Any, str]] = {
    "NaN": (lambda: NotFinite(math.nan), "gradient of the right step is not finite"),
    "infinite": (lambda: NotFinite(math.inf), "gradient of the right step is not finite"),
    "no terms": (WithoutTerms, "hold no term"),
    "moving weights": (Moving, "the weights change while a loss is computed"),
    "no update": (WithoutUpdate, "makes no update by the optimizer"),
}


@pytest.mark.parametrize("name", UNOBSERVABLE)
def test_where_nothing_can_be_compared_it_is_said_why_and_there_is_no_verdict(name: str) -> None:
    make, words = UNOBSERVABLE[name]
    one = found(make())
    assert (one["answer"], one["diagnosis"], one["rungs"]) == ("not_observable", None, [])
    assert words in one["remark"]
    with pytest.raises(AccumulationError, match="Nothing can be said"):
        acs.audit(make()).raise_for_fault()


# --- it can, but not as well as usual ------------------------------------------------------------------------------


class Drifting(Plain):
    """Every call of its loss is another by up to a millionth: atomics on a GPU, say."""

    def __init__(self) -> None:
        self.calls = 0

    def loss(self, model: Any, samples: Any) -> tuple[Tensor, Any]:
        self.calls += 1
        total, count = super().loss(model, samples)
        return total * (1 + 1e-6 * (self.calls * 7919 % 13) / 13), count


class DriftingUndivided(Undivided, Drifting):
    pass


@pytest.mark.parametrize(("kind", "faults"), [(Drifting, []), (DriftingUndivided, ["missing_division"])])
def test_a_rerun_that_differs_is_measured_said_and_taken_as_the_floor(kind: Any, faults: list[str]) -> None:
    one = found(kind())
    assert one["diagnosis"]["names"] == faults
    assert "the same step again differs by" in one["remark"]
    rerun = one["rungs"][0]
    assert rerun["name"] == "rerun" and 1e-9 < rerun["value"] < 1e-5
    assert one["resolution"] >= 1e-7, "what is finer than the rerun cannot be seen"


class Float32Input(Plain):
    """It writes float32 into its network, so it cannot run in float64."""

    def output(self, model: Any, x: Tensor) -> Tensor:
        return super().output(model, x.float())


class Float32InputUndivided(Undivided, Float32Input):
    pass


@pytest.mark.parametrize(("kind", "faults"), [(Float32Input, []), (Float32InputUndivided, ["missing_division"])])
def test_without_float64_the_ladder_says_so_and_stands_in_float32(kind: Any, faults: list[str]) -> None:
    one = found(kind())
    assert one["diagnosis"]["names"] == faults and not one["diagnosis"]["is_exact"]
    assert "does not run in float64" in one["remark"] and one["resolution"] > 1e-7


class Islands(Plain):
    """Norm, softmax and loss in float32, whatever the model's own: as in many language models."""

    def output(self, model: Any, x: Tensor) -> Tensor:
        hidden = nn.functional.layer_norm(model[0](x).float(), (4,)).to(x.dtype)
        weights = torch.softmax(hidden.float(), dim=-1).to(x.dtype)
        given: Tensor = model[2](hidden * weights)
        return given.float()

    def loss(self, model: Any, samples: Any) -> tuple[Tensor, Any]:
        return super().loss(model, (samples[0], samples[1].float()))


class IslandsUndivided(Undivided, Islands):
    pass


@pytest.mark.parametrize(("kind", "faults"), [(Islands, []), (IslandsUndivided, ["missing_division"])])
@pytest.mark.parametrize("accum", [2, 8])
def test_float32_islands_in_a_float64_model_are_rounding_and_hide_no_fault(kind: Any, faults: list[str], accum: int) -> None:
    one = found(kind(), accum)
    assert one["diagnosis"]["names"] == faults and one["diagnosis"]["kind"] == ""
    assert one["diagnosis"]["is_exact"]


# --- odd but right -----------------------------------------------------------------------------------------------------


class OneRow(Plain):
    rows = 1


class Unused(Plain):
    """A parameter without any gradient."""

    def build(self, config: Any, seeds: Any) -> nn.Module:
        model = super().build(config, seeds)
        model.extra = nn.Parameter(torch.ones(3))
        return model

    def output(self, model: Any, x: Tensor) -> Tensor:
        given: Tensor = model[2](model[1](model[0](x)))
        return given


class ZeroGradient(Unused):
    """A parameter whose gradient is zero whatever the samples."""

    def loss(self, model: Any, samples: Any) -> tuple[Tensor, Any]:
        total, count = super().loss(model, samples)
        return total + 0 * model.extra.sum().to(total.dtype), count


class Tied(Plain):
    def build(self, config: Any, seeds: Any) -> nn.Module:
        model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
        model[2].weight = model[0].weight
        return model


class SomeWithoutTerms(Plain):
    """The second of four micro-batches is padding alone."""

    def batch(self, step: int, seed: int) -> Any:
        x, y = super().batch(step, seed)
        y[2:4] = -100
        return x, y

    def loss(self, model: Any, samples: Any) -> tuple[Tensor, Any]:
        is_target = samples[1][:, 0] > -99
        squares = (self.output(model, samples[0]) - samples[1]).square()[is_target]
        return squares.sum(), is_target.sum()


class Sparse(Plain):
    """An embedding with sparse gradients."""

    def build(self, config: Any, seeds: Any) -> nn.Module:
        return nn.ModuleList([nn.Embedding(10, 4, sparse=True), nn.Linear(4, 1)])

    def batch(self, step: int, seed: int) -> Any:
        generator = torch.Generator().manual_seed(1000 * seed + step)
        return torch.randint(0, 10, (8, 3), generator=generator), torch.randn(8, 1, generator=generator)

    def output(self, model: Any, x: Tensor) -> Tensor:
        given: Tensor = model[1](model[0](x).mean(1))
        return given


ODD = [Unused, ZeroGradient, Tied, SomeWithoutTerms, Sparse]


@pytest.mark.parametrize("kind", ODD)
def test_odd_but_right_subjects_are_not_accused(kind: Any) -> None:
    one = found(kind())
    assert (one["answer"], one["remark"]) == ("rounding", "")
    assert one["resolution"] < 1e-9


def undivided(kind: Any) -> Any:
    return type(f"{kind.__name__}Undivided", (Undivided, kind), {})


@pytest.mark.parametrize("kind", [Unused, ZeroGradient, Tied, Sparse])
def test_nor_do_they_hide_a_fault(kind: Any) -> None:
    one = found(undivided(kind)())
    assert one["diagnosis"]["names"] == ["missing_division"]
    [finding] = one["diagnosis"]["findings"]
    assert finding["figures"]["factor"] == pytest.approx(4, rel=1e-9)


def test_a_batch_of_one_sample_is_right_at_k_1() -> None:
    assert found(OneRow(), accum=1)["answer"] == "rounding"
    with pytest.raises(UserError, match="accum=2 does not divide the 1 samples"):
        acs.audit(OneRow(), accum=2)
