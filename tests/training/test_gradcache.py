"""Cached gradients are those of one batch, in which every sample is contrasted with all others."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from accum_sweeps.training.gradcache import accumulate_cached

Embeddings = tuple[Tensor, Tensor]
ROWS, INPUTS = 11, 5
CUTS = [[11], [4, 4, 3], [1] * 11, [8, 3]]
# Sums of up to 11 x 8 terms in another order differ by a few units of float64's roundoff, 1.1e-16; 1e-12 leaves room, and no fault does.
EXACT = 1e-12


class Encoders(torch.nn.Module):
    """Two small encoders with dropout from torch's own stream, and a temperature that only the loss uses."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.left, self.right = (
            torch.nn.Sequential(torch.nn.Linear(INPUTS, 8), torch.nn.Tanh(), torch.nn.Dropout(dropout), torch.nn.Linear(8, 4)) for _ in "ab"
        )
        self.log_scale = torch.nn.Parameter(torch.tensor(0.5))
        self.double()
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))

    def encode(self, samples: Embeddings) -> Embeddings:
        device = self.log_scale.device
        return self.left(samples[0].to(device)), self.right(samples[1].to(device))

    def contrast(self, left: Tensor, right: Tensor) -> tuple[Tensor, int]:
        logits = self.log_scale.exp() * left @ right.T
        own = torch.arange(len(logits), device=logits.device)
        # Both directions: in one of them alone the last bias of the right encoder cancels, and its gradient is nothing but rounding.
        return cross_entropy(logits, own, reduction="sum") + cross_entropy(logits.T, own, reduction="sum"), len(logits)

    def gradients(self) -> dict[str, Tensor]:
        return {name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in self.named_parameters()}


def cut(sizes: Sequence[int]) -> list[Embeddings]:
    generator = torch.Generator().manual_seed(1)
    left, right = (torch.randn(ROWS, INPUTS, generator=generator, dtype=torch.float64) for _ in "ab")
    return list(zip(left.split(list(sizes)), right.split(list(sizes)), strict=True))


def cached(model: Encoders, sizes: Sequence[int], **options: Any) -> dict[str, Tensor]:
    accumulate_cached(list(model.parameters()), cut(sizes), model.encode, model.contrast, **options)
    return model.gradients()


def in_one_graph(model: Encoders, sizes: Sequence[int]) -> dict[str, Tensor]:
    """The gradient by autograd alone: the micro-batches are embedded one after the other, all of them in one graph."""
    model.zero_grad()
    left, right = (torch.cat(column) for column in zip(*map(model.encode, cut(sizes)), strict=True))
    summed, terms = model.contrast(left, right)
    (summed / terms).backward()
    return model.gradients()


def largest_difference(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """The largest relative L2 difference of a parameter's gradient."""
    return max(float((found[name] - expected[name]).norm() / expected[name].norm()) for name in expected)


@pytest.mark.parametrize("sizes", CUTS, ids=str)
def test_every_gradient_is_that_of_one_batch_with_ragged_micro_batches_and_the_temperature(sizes: list[int]) -> None:
    model = Encoders()
    assert largest_difference(cached(model, sizes), in_one_graph(model, [ROWS])) < EXACT


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("sizes", CUTS, ids=str)
def test_dropout_from_torchs_stream_has_the_same_masks_in_both_passes(sizes: list[int], device: str) -> None:
    model = Encoders(dropout=0.5).to(device)
    torch.manual_seed(3)
    expected = in_one_graph(model, sizes)
    torch.manual_seed(3)
    assert largest_difference(cached(model, sizes), expected) < EXACT
    torch.manual_seed(4)
    assert largest_difference(cached(model, sizes), expected) > 0.1  # the masks matter


def test_afterwards_the_stream_goes_on_as_after_one_pass() -> None:
    model = Encoders(dropout=0.5)
    torch.manual_seed(3)
    in_one_graph(model, [4, 4, 3])
    expected = torch.rand(3)
    torch.manual_seed(3)
    cached(model, [4, 4, 3])
    assert torch.equal(torch.rand(3), expected)


def test_contrasting_each_micro_batch_by_itself_is_another_gradient() -> None:
    model = Encoders()
    model.zero_grad()
    for samples in cut([4, 4, 3]):
        model.contrast(*model.encode(samples))[0].backward()
    own = {name: gradient / ROWS for name, gradient in model.gradients().items()}
    assert largest_difference(own, in_one_graph(model, [ROWS])) > 0.1


def test_the_sum_of_losses_and_the_number_of_samples_are_returned() -> None:
    model = Encoders()
    total, terms = accumulate_cached(list(model.parameters()), cut([4, 4, 3]), model.encode, model.contrast)
    expected, _ = model.contrast(*model.encode(cut([ROWS])[0]))
    assert float(total) == pytest.approx(float(expected.detach()), rel=1e-14) and terms == ROWS
    assert total.dtype == torch.float64 and not total.requires_grad


def linear(slopes: Sequence[float], **options: Any) -> tuple[float, float]:
    """(gradient of the encoder's weight, of the loss's own) where embedding and loss are linear: each slope is a micro-batch of one."""
    weight, own = (torch.nn.Parameter(torch.ones(())) for _ in "ab")

    def loss(embeddings: Tensor) -> tuple[Tensor, int]:
        return own * embeddings.sum(), len(embeddings)

    accumulate_cached([weight, own], list(slopes), lambda slope: ((weight * slope).reshape(1),), loss, **options)
    assert weight.grad is not None and own.grad is not None
    return float(weight.grad), float(own.grad)


@pytest.mark.parametrize("buffer", [None, torch.bfloat16, torch.float32, torch.float64])
def test_gradients_1_2_3_4_give_exactly_2_5_and_the_losss_own_parameter_gets_its_gradient_once(buffer: torch.dtype | None) -> None:
    assert linear([1, 2, 3, 4], dtype=buffer) == (2.5, 2.5)


@pytest.mark.parametrize(("buffer", "expected"), [(None, 128.5), (torch.bfloat16, 128), (torch.float64, 128.5)])
def test_a_bf16_buffer_loses_256_plus_1(buffer: torch.dtype | None, expected: float) -> None:
    assert linear([256, 1], dtype=buffer)[0] == expected


def test_a_loss_scale_goes_into_the_backward_pass_of_the_loss_alone() -> None:
    assert linear([1, 2, 3, 4], backward=lambda summed: (1024 * summed).backward()) == (2560, 2560)


def test_gradients_from_before_are_dropped_and_what_nothing_depends_on_keeps_none() -> None:
    used, unused = (torch.nn.Parameter(torch.ones(())) for _ in "ab")
    used.grad = torch.tensor(100.0)
    accumulate_cached([used, unused], [1.0, 3.0], lambda slope: ((used * slope).reshape(1),), lambda embeddings: (embeddings.sum(), 2))
    assert (float(used.grad), unused.grad) == (2.0, None)


def test_a_frozen_encoder_leaves_the_other_ones_and_the_temperatures_gradient() -> None:
    model = Encoders()
    expected = in_one_graph(model, [ROWS])
    model.left.requires_grad_(False)
    found = cached(model, [4, 4, 3])
    assert (
        largest_difference({n: g for n, g in found.items() if "left" not in n}, {n: g for n, g in expected.items() if "left" not in n})
        < EXACT
    )
    model.right.requires_grad_(False)
    assert largest_difference({"log_scale": cached(model, [4, 4, 3])["log_scale"]}, {"log_scale": expected["log_scale"]}) < EXACT


def test_encoders_may_give_different_numbers_of_embeddings() -> None:
    model = Encoders()

    def encode(samples: Embeddings) -> Embeddings:
        return model.left(samples[0]), model.right(torch.cat([samples[1], -samples[1]]))

    def contrast(left: Tensor, right: Tensor) -> tuple[Tensor, int]:
        return (left.sum() * right).sin().sum(), len(left)

    def found(sizes: list[int], make: Callable[..., object]) -> dict[str, Tensor]:
        make(list(model.parameters()), cut(sizes), encode, contrast)
        return {name: gradient for name, gradient in model.gradients().items() if "log_scale" not in name}

    assert largest_difference(found([4, 4, 3], accumulate_cached), found([ROWS], accumulate_cached)) < EXACT


def test_each_micro_batch_is_encoded_twice_and_the_loss_computed_once() -> None:
    model, calls = Encoders(), {"encode": 0, "loss": 0}

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            calls[name] += 1
            return function(*arguments)

        return call

    accumulate_cached(list(model.parameters()), cut([4, 4, 3]), counted("encode", model.encode), counted("loss", model.contrast))
    assert calls == {"encode": 6, "loss": 1}
