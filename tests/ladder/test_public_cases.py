"""Public reports of accumulation gone wrong, and of accumulation suspected wrongly: each loop as somebody would write it."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import accum_sweeps as acs
from accum_sweeps.ladder.geometry import geometry
from accum_sweeps.ladder.shares import norm

IGNORED = -100
ADAM = {"kind": "adam", "name": "adam", "lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0}
ADAM |= {"max_norm": None, "schedule": "cosine", "warmup_steps": 2}
SGD = {"kind": "sgd", "name": "sgd", "lr": 1e-3, "momentum": 0.0, "nesterov": False, "weight_decay": 0.0}
SGD |= {"max_norm": None, "schedule": "cosine", "warmup_steps": 2}


class Language:
    """A language model of one layer on eight rows of random tokens, of the lengths of Soup#932 (4 against 60 targets)."""

    lengths: tuple[int, ...] = (2, 2, 2, 2, 16, 16, 16, 16)

    def build(self, config: Any, seeds: Any) -> nn.Module:
        return nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 11))

    def batch(self, step: int, seed: int) -> Any:
        tokens = torch.randint(0, 11, (len(self.lengths), 17), generator=torch.Generator().manual_seed(1000 * seed + step))
        targets = tokens[:, 1:].clone()
        for row, length in enumerate(self.lengths):
            targets[row, length:] = IGNORED
        return tokens[:, :-1], targets

    def loss(self, model: Any, samples: Any) -> tuple[Tensor, Any]:
        return self.summed(model, samples), (samples[1] != IGNORED).sum()

    def summed(self, model: Any, samples: Any) -> Tensor:
        return cross_entropy(model(samples[0]).transpose(1, 2), samples[1], ignore_index=IGNORED, reduction="sum")

    def mean(self, model: Any, samples: Any) -> Tensor:
        """What a model's own loss gives: the mean over the micro-batch's targets."""
        return cross_entropy(model(samples[0]).transpose(1, 2), samples[1], ignore_index=IGNORED)


def logged(losses: list[Tensor], micro_batches: list[Any]) -> tuple[float, int]:
    """(sum, count) of micro-batches' mean losses."""
    counts = [int((targets != IGNORED).sum()) for _, targets in micro_batches]
    return sum(float(loss.detach()) * count for loss, count in zip(losses, counts, strict=True)), sum(counts)


class MeanOfMeans(Language):
    """Each micro-batch's mean loss over k: wrong on these rows, right on equal ones."""

    def step(self, model: Any, optimizer: Any, micro_batches: list[Any]) -> tuple[float, int]:
        optimizer.zero_grad()
        losses = []
        for micro_batch in micro_batches:
            losses.append(self.mean(model, micro_batch))
            (losses[-1] / len(micro_batches)).backward()
        self.before_update(model)
        optimizer.step()
        return logged(losses, micro_batches)

    def before_update(self, model: Any) -> None:
        """What a loop does between the last micro-batch and the update."""


class Equal(MeanOfMeans):
    lengths = (16,) * 8


class Undivided(Language):
    lengths = (16,) * 8

    def step(self, model: Any, optimizer: Any, micro_batches: list[Any]) -> tuple[float, int]:
        optimizer.zero_grad(set_to_none=True)
        losses = []
        for micro_batch in micro_batches:
            losses.append(self.mean(model, micro_batch))
            losses[-1].backward()
        optimizer.step()
        return logged(losses, micro_batches)


def audited(hook: Any, accum: int = 4, **settings: Any) -> Any:
    [one] = acs.audit(hook, accum=accum, **settings).found
    return one


def names(hook: Any, accum: int = 4, **settings: Any) -> list[str]:
    found: list[str] = audited(hook, accum, **settings)["diagnosis"]["names"]
    return found


def gradients(hook: Any, accum: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Of one step by the hook's own code, and of the mean over all targets in one pass; by autograd alone."""
    made = []
    for is_own in (True, False):
        torch.manual_seed(0)
        model = hook.build(None, None).double()
        samples = hook.batch(1, 0)
        parts = list(zip(*(torch.chunk(part, accum) for part in samples), strict=True))
        if is_own:
            hook.step(model, torch.optim.SGD(model.parameters(), lr=0.0), parts)
        else:
            total, count = hook.loss(model, samples)
            (total / count).backward()
        made.append({name: p.grad.clone() for name, p in model.named_parameters()})
    return made[0], made[1]


# 1. Soup#932


@pytest.mark.parametrize("accum", [2, 4, 8])
def test_means_of_ragged_micro_batches_are_found_named_and_proven(accum: int) -> None:
    one = audited(MeanOfMeans, accum)
    assert one["diagnosis"]["names"] == ["mean_of_means"]
    assert all(finding["experiments"] for finding in one["diagnosis"]["findings"])
    own, right = gradients(MeanOfMeans(), accum)
    found = geometry(own, right)
    assert found.relative > 0.1 and found.rho > 1.05 and found.cosine < 0.99
    assert found.rho**2 + 1 - 2 * found.rho * found.cosine == pytest.approx(found.relative**2, rel=1e-10)


@pytest.mark.parametrize("accum", [1, 2, 4, 8])
def test_the_same_loop_on_equal_rows_is_right(accum: int) -> None:
    assert audited(Equal, accum)["answer"] == "rounding"
    own, right = gradients(Equal(), accum)
    assert geometry(own, right).relative < 1e-14  # sums of 128 targets in float64


# 2. nanoGPT#168


def test_without_the_division_by_eight_rho_is_eight() -> None:
    own, right = gradients(Undivided(), 8)
    found = geometry(own, right)
    assert found.rho == pytest.approx(8, rel=1e-13) and found.eta < 1e-14
    one = audited(Undivided, 8)
    assert one["diagnosis"]["names"] == ["missing_division"]
    assert one["diagnosis"]["findings"][0]["figures"] == pytest.approx({"factor": 8.0, "power_of_k": 1.0}, rel=1e-10)


def moved(factor: float, eps: float, max_norm: float | None, steps: int = 20) -> Tensor:
    """What Adam does to the weights in ``steps`` steps by ``factor`` times the right gradient."""
    hook = Equal()
    torch.manual_seed(0)
    model = hook.build(None, None).double()
    before = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, eps=eps)
    for step in range(steps):
        optimizer.zero_grad()
        (factor * hook.mean(model, hook.batch(step, 0))).backward()
        if max_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
    return nn.utils.parameters_to_vector(model.parameters()).detach() - before


def test_adam_hides_the_missing_division_but_for_a_large_eps_or_a_limit() -> None:
    def apart(eps: float, max_norm: float | None) -> float:
        return float((moved(8, eps, max_norm) - moved(1, eps, max_norm)).norm() / moved(1, eps, max_norm).norm())

    assert apart(1e-8, None) < 1e-4 < 0.02 < apart(1e-3, None)
    assert apart(1e-8, 1.0) > 0.02


@pytest.mark.parametrize("change", [{"eps": 1e-8}, {"eps": 1e-3}, {"max_norm": 1.0}], ids=str)
def test_the_ladder_finds_it_whatever_adam_hides(change: dict[str, Any]) -> None:
    assert names(Undivided, 8, optimizer=ADAM | change) == ["missing_division"]


# 3. transformers#986


def toy(clips_each: bool, is_reversed: bool) -> list[float]:
    """Gradients [2, 0] then [0, 2], summed without a division, with the running buffer clipped at 1, or the whole once."""
    weights = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    directions = [torch.tensor([2.0, 0.0]).double(), torch.tensor([0.0, 2.0]).double()]
    for direction in reversed(directions) if is_reversed else directions:
        (weights @ direction).backward()
        if clips_each:
            nn.utils.clip_grad_norm_([weights], 1.0)
    nn.utils.clip_grad_norm_([weights], 1.0)
    assert weights.grad is not None
    return weights.grad.tolist()


def test_clipping_the_running_sum_turns_the_gradient_towards_the_last_micro_batch() -> None:
    assert toy(True, False) == pytest.approx([0.447, 0.894], abs=5e-4)
    assert toy(True, True) == pytest.approx([0.894, 0.447], abs=5e-4)
    assert toy(False, False) == pytest.approx([math.sqrt(0.5)] * 2, rel=1e-5)  # torch adds 1e-6 to the norm


class ClippedTooOften(Equal):
    """At half the norm that gradients of this model have, after each micro-batch."""

    max_norm = 0.16

    def step(self, model: Any, optimizer: Any, micro_batches: list[Any]) -> tuple[float, int]:
        optimizer.zero_grad()
        losses = []
        for micro_batch in micro_batches:
            losses.append(self.mean(model, micro_batch))
            (losses[-1] / len(micro_batches)).backward()
            nn.utils.clip_grad_norm_(model.parameters(), self.max_norm)
        optimizer.step()
        return logged(losses, micro_batches)


class ClippedOnce(Equal):
    max_norm = 0.16

    def before_update(self, model: Any) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), self.max_norm)


@pytest.mark.parametrize(("hook", "faults"), [(ClippedTooOften, ["clip_per_micro_batch"]), (ClippedOnce, [])])
def test_a_loop_that_clips_too_often_is_found_and_one_that_clips_once_is_right(hook: Any, faults: list[str]) -> None:
    assert names(hook, 4) == faults


def test_a_running_clip_depends_on_the_order_of_micro_batches() -> None:
    hook = ClippedTooOften()
    turned = ClippedTooOften()
    turned.batch = lambda step, seed: tuple(part.flip(0) for part in hook.batch(step, seed))  # type: ignore[method-assign]
    (own, right), (other, _) = gradients(hook, 4), gradients(turned, 4)
    assert norm(right) == pytest.approx(2 * hook.max_norm, rel=0.05)
    assert geometry(other, own).relative > 0.05


# 4. transformers#38837


class FiveBatches(Language):
    """A trainer over 5 equal batches an epoch, k=2: its last window has a single micro-batch and is still divided by two."""

    lengths = (16,) * 8
    divides_by_what_it_has = False

    def train(self, model: Any, optimizer: Any, scheduler: Any, micro_batches: list[Any], accum: int) -> list[float]:
        told, window = [], []
        for number, micro_batch in enumerate(micro_batches, start=1):
            window.append(micro_batch)
            if number % accum and number < len(micro_batches):
                continue
            count, loss = len(window) if self.divides_by_what_it_has else accum, torch.zeros(())
            for each in window:
                part = self.mean(model, each) / count
                part.backward()
                loss = loss + part.detach()
            optimizer.step(), scheduler.step(), optimizer.zero_grad()
            told.append(float(loss))
            window = []
        return told


def test_the_third_update_of_five_equal_batches_is_exactly_half() -> None:
    hook = FiveBatches()
    torch.manual_seed(0)
    model = hook.build(None, None).double()
    optimizer, seen = torch.optim.SGD(model.parameters(), lr=0.0), []
    optimizer.register_step_pre_hook(
        lambda *_: seen.append(nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]))
    )
    told = hook.train(model, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0), [hook.batch(1, 0)] * 5, 2)
    assert told[2] == told[0] / 2 == told[1] / 2
    assert seen[2] == seen[0] / 2 == seen[1] / 2


@pytest.mark.parametrize(("is_right", "faults"), [(False, ["short_window"]), (True, [])])
def test_a_trainer_with_that_last_window_is_found_and_one_that_counts_is_right(is_right: bool, faults: list[str]) -> None:
    hook = FiveBatches()
    hook.divides_by_what_it_has = is_right
    assert names(hook, 4) == faults


# 5. keras#19990


class TwelveRows(MeanOfMeans):
    """4 x 3 rows; what the optimizer does beside the gradient's step, it does at every micro-batch."""

    lengths = (16,) * 12
    decay, counts = 0.0, False

    def step(self, model: Any, optimizer: Any, micro_batches: list[Any]) -> tuple[float, int]:
        self.k = len(micro_batches)
        told = super().step(model, optimizer, micro_batches)
        if self.counts:
            for state in optimizer.state.values():
                state["step"] += self.k - 1
        return told

    def before_update(self, model: Any) -> None:
        with torch.no_grad():
            for _ in range(self.k):
                for p in model.parameters():
                    p.mul_(1 - self.decay)


class DecayedTooOften(TwelveRows):
    decay = 1e-3


class CountedTooOften(TwelveRows):
    counts = True


@pytest.mark.parametrize(
    ("hook", "optimizer", "faults"),
    [
        (TwelveRows, SGD, []),
        (TwelveRows, ADAM, []),
        (DecayedTooOften, SGD, ["state_per_micro_batch"]),
        (CountedTooOften, SGD, []),  # it has no count
        (CountedTooOften, ADAM, ["state_per_micro_batch"]),
    ],
)
def test_state_that_moves_at_every_micro_batch_is_found_though_the_gradient_is_right(hook: Any, optimizer: Any, faults: list[str]) -> None:
    one = audited(hook, 4, optimizer=optimizer)
    assert one["diagnosis"]["names"] == faults
    gradient = next(rung for rung in one["rungs"] if rung["name"] == "gradient")
    assert gradient["value"] <= gradient["floor"]


# 6. Megatron-LM, bf16 buffer


class Buffered(Equal):
    """Gradients summed in a buffer of one's own, k of them."""

    rows, dtype = 64, torch.bfloat16

    def batch(self, step: int, seed: int) -> Any:
        tokens = torch.randint(0, 11, (self.rows, 9), generator=torch.Generator().manual_seed(1000 * seed + step))
        return tokens[:, :-1], tokens[:, 1:]

    def step(self, model: Any, optimizer: Any, micro_batches: list[Any]) -> tuple[float, int]:
        parameters, losses = list(model.parameters()), []
        buffers = [torch.zeros_like(p, dtype=self.dtype) for p in parameters]
        for micro_batch in micro_batches:
            losses.append(self.mean(model, micro_batch))
            made = torch.autograd.grad(losses[-1] / len(micro_batches), parameters)
            for buffer, gradient in zip(buffers, made, strict=True):
                buffer.add_(gradient)
        for p, buffer in zip(parameters, buffers, strict=True):
            p.grad = buffer.to(p.dtype)
        optimizer.step()
        return logged(losses, micro_batches)


class Float32Buffer(Buffered):
    dtype = torch.float32


def test_the_error_of_a_bfloat16_buffer_grows_with_k_and_that_of_a_float32_one_is_rounding() -> None:
    def error(hook: Any, accum: int) -> float:
        return geometry(*gradients(hook, accum)).relative

    low = [error(Buffered(), accum) for accum in (2, 8, 64)]
    assert 1e-3 < low[0] < low[1] < low[2] < 0.1
    assert error(Float32Buffer(), 64) < 1e-6


@pytest.mark.parametrize("accum", [2, 8, 64])
def test_a_bfloat16_buffer_is_named_at_every_k_and_a_float32_one_is_right(accum: int) -> None:
    assert names(Buffered, accum) == ["accumulator_dtype"]
    assert audited(Float32Buffer, accum)["answer"] == "rounding"


# 7. mmcv#1869


class Normed:
    """A small net on 128 rows with the norm layer under test."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind

    def build(self, config: Any, seeds: Any) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), self.kind(8), nn.ReLU(), nn.Linear(8, 1))

    def batch(self, step: int, seed: int) -> Any:
        drawn = torch.randn(128, 7, generator=torch.Generator().manual_seed(1000 * seed + step))
        return drawn[:, :6], drawn[:, 6:]

    def loss(self, model: Any, samples: Any) -> tuple[Tensor, Any]:
        return (model(samples[0]) - samples[1]).square().sum(), len(samples[0])


@pytest.mark.parametrize("rows", [4, 16, 64])
def test_batch_norm_depends_on_the_micro_batch_the_more_the_smaller_it_is_and_layer_norm_does_not(rows: int) -> None:
    one = audited(Normed(nn.BatchNorm1d), 128 // rows)
    assert (one["answer"], one["diagnosis"]["kind"]) == ("real_dependence", "batch_statistics")
    assert audited(Normed(nn.LayerNorm), 128 // rows)["answer"] == "rounding"


def test_the_dependence_on_batch_statistics_grows_as_micro_batches_shrink() -> None:
    def apart(accum: int) -> float:
        torch.manual_seed(0)
        hook, made = Normed(nn.BatchNorm1d), []
        model = hook.build(None, None).double()
        x, y = (part.double() for part in hook.batch(1, 0))
        for k in (accum, 1):
            model.zero_grad()
            for part in zip(torch.chunk(x, k), torch.chunk(y, k), strict=True):
                (hook.loss(model, part)[0] / 128).backward()
            made.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
        return geometry(made[0], made[1]).relative

    found = [apart(k) for k in (1, 2, 8, 32)]
    assert found[0] == 0 and 0.01 < found[1] < found[2] < found[3]


# 8. Suspected, and right


class DividedBefore(Language):
    """nanoGPT#605: loss / k at each micro-batch, the gradient cleared after the update and not before the first loss."""

    lengths = (16,) * 8

    def step(self, model: Any, optimizer: Any, micro_batches: list[Any]) -> tuple[float, int]:
        losses = []
        for micro_step, micro_batch in enumerate(micro_batches):
            is_last = micro_step == len(micro_batches) - 1
            losses.append(self.mean(model, micro_batch))
            (losses[-1] / len(micro_batches)).backward()
            if is_last:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
        return logged(losses, micro_batches)


class TwoLoaders(DividedBefore):
    """Swin-Transformer#107: the update inside the loop, where (number + 1) % k is 0, clipped there; its log is the sum of all losses."""

    def step(self, model: Any, optimizer: Any, micro_batches: list[Any]) -> tuple[float, int]:
        losses, k = [], len(micro_batches)
        optimizer.zero_grad()
        for number, micro_batch in enumerate(micro_batches):
            losses.append(self.mean(model, micro_batch))
            (losses[-1] / k).backward()
            if (number + 1) % k == 0:
                nn.utils.clip_grad_norm_(model.parameters(), 5.0)
                optimizer.step()
                optimizer.zero_grad()
        return logged(losses, micro_batches)


class Synchronized(Language):
    """Two ranks' worth of rows as under DDP: each half's own sum, added up once after the last micro-batch, over all targets."""

    def step(self, model: Any, optimizer: Any, micro_batches: list[Any]) -> tuple[float, int]:
        parameters = list(model.parameters())
        count = sum(int((targets != IGNORED).sum()) for _, targets in micro_batches)
        halves, total = [], 0.0
        for rank in range(2):
            optimizer.zero_grad()
            for micro_batch in micro_batches[rank::2]:
                summed = self.summed(model, micro_batch)
                (summed * 2 / count).backward()
                total += float(summed.detach())
            halves.append([None if p.grad is None else p.grad.clone() for p in parameters])
        for p, first, second in zip(parameters, *halves, strict=True):
            parts = [part for part in (first, second) if part is not None]
            p.grad = sum(parts[1:], parts[0]) / 2  # DDP's mean over ranks
        optimizer.step()
        return total, count


@pytest.mark.parametrize("hook", [DividedBefore, TwoLoaders, Synchronized])
@pytest.mark.parametrize("accum", [2, 4, 8])
def test_loops_that_were_suspected_are_called_right(hook: Any, accum: int) -> None:
    for optimizer in (SGD, ADAM):
        one = audited(hook, accum, optimizer=optimizer)
        assert one["diagnosis"]["names"] == [] and one["answer"] in ("rounding", "amplified_rounding")
