"""The accumulated gradient is that of the mean over all terms of the step, in the buffer's dtype."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from accum_sweeps.training.accumulate import accumulate

BUFFERS = [None, torch.bfloat16, torch.float32, torch.float64]


def weight(dtype: torch.dtype = torch.float32) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.zeros((), dtype=dtype))


def gradient_of(
    pairs: list[tuple[float, Any]], *, buffer: torch.dtype | None = None, parameter: torch.dtype = torch.float32
) -> tuple[float, float]:
    """(gradient, number of terms) for micro-batches whose summed losses have the given slopes and numbers of terms."""
    w = weight(parameter)
    _, terms = accumulate([w], pairs, lambda pair: (w * pair[0], pair[1]), dtype=buffer)
    assert w.grad is not None and w.grad.dtype == parameter
    return float(w.grad), float(terms)


@pytest.mark.parametrize("buffer", BUFFERS)
def test_gradients_1_2_3_4_give_exactly_2_5(buffer: torch.dtype | None) -> None:
    assert gradient_of([(1, 1), (2, 1), (3, 1), (4, 1)], buffer=buffer) == (2.5, 4)


def test_micro_batches_weigh_by_their_number_of_terms() -> None:
    assert gradient_of([(6, 3), (4, 1)])[0] == 2.5  # the mean of the two means would be 3


def test_losses_are_summed_in_float64() -> None:
    losses = [torch.tensor(2.0**24, requires_grad=True), torch.tensor(1.0, requires_grad=True)]
    total, _ = accumulate(losses, losses, lambda loss: (loss * 1, 1))
    assert total.dtype == torch.float64
    assert float(total) == 2.0**24 + 1


@pytest.mark.parametrize(("buffer", "expected"), [(None, 257), (torch.float32, 257), (torch.float64, 257), (torch.bfloat16, 256)])
def test_a_bf16_buffer_loses_256_plus_1(buffer: torch.dtype | None, expected: float) -> None:
    assert gradient_of([(256, 1), (1, 0)], buffer=buffer)[0] == expected


def test_param_sums_in_the_dtype_of_the_weights() -> None:
    assert gradient_of([(256, 1), (1, 0)], parameter=torch.bfloat16)[0] == 256


@pytest.mark.parametrize(("buffer", "expected"), [(None, 2.0**24), (torch.float32, 2.0**24), (torch.float64, 2.0**24 + 2)])
def test_a_float64_buffer_keeps_what_float32_loses(buffer: torch.dtype | None, expected: float) -> None:
    assert gradient_of([(2.0**24, 1), (1, 0), (1, 0)], buffer=buffer)[0] == expected


def test_counts_that_come_as_bf16_tensors_are_added_exactly() -> None:
    counts = [torch.tensor(float(n), dtype=torch.bfloat16) for n in (512, 1)]
    assert gradient_of([(513, counts[0]), (0, counts[1])]) == (1.0, 513)


@pytest.mark.parametrize("buffer", BUFFERS)
def test_gradients_from_before_are_dropped(buffer: torch.dtype | None) -> None:
    w = weight()
    w.grad = torch.tensor(100.0)
    accumulate([w], [1.0], lambda slope: (w * slope, 1), dtype=buffer)
    assert float(w.grad) == 1.0


@pytest.mark.parametrize("buffer", BUFFERS)
def test_a_weight_that_some_micro_batches_do_not_use(buffer: torch.dtype | None) -> None:
    used, rare, unused = weight(), weight(), weight()

    def loss(number: int) -> tuple[Tensor, int]:
        return (used + rare if number == 1 else used * 1), 1

    accumulate([used, rare, unused], [0, 1], loss, dtype=buffer)
    assert (float(used.grad), float(rare.grad), unused.grad) == (1.0, 0.5, None)  # type: ignore[arg-type]


@settings(max_examples=50, deadline=None)
@given(
    pairs=st.lists(st.tuples(st.integers(-1000, 1000), st.integers(1, 50)), min_size=1, max_size=8),
    buffer=st.sampled_from([None, torch.float32, torch.float64]),
)
def test_whole_numbers_give_the_correctly_rounded_quotient(pairs: list[tuple[int, int]], buffer: torch.dtype | None) -> None:
    total, terms = sum(slope for slope, _ in pairs), sum(count for _, count in pairs)
    assert gradient_of(list(pairs), buffer=buffer)[0] == float(torch.tensor(total / terms, dtype=torch.float32))


class Summing:
    """Sums over two threads, as processes would with their own tensors."""

    def __init__(self) -> None:
        self.met, self.given = threading.Barrier(2, timeout=20), dict[int, list[Tensor]]()

    def of(self, rank: int) -> Callable[[Sequence[Tensor]], None]:
        def all_reduce(tensors: Sequence[Tensor]) -> None:
            self.given[rank] = [tensor.clone() for tensor in tensors]
            self.met.wait()
            for tensor, other in zip(tensors, self.given[1 - rank], strict=True):
                tensor.add_(other)
            self.met.wait()

        return all_reduce


@pytest.mark.parametrize("buffer", [None, torch.float64])
@pytest.mark.parametrize("cut", [0, 1, 3])
def test_two_ranks_give_the_gradient_of_all_their_micro_batches(cut: int, buffer: torch.dtype | None) -> None:
    pairs, summing = [(6, 3), (4, 1), (1, 4)], Summing()

    def rank(number: int) -> tuple[float, float, list[Tensor | None]]:
        # The first two weights have gradients on one rank each, the third on both, the last on none.
        weights = [weight() for _ in range(4)]

        def loss(pair: tuple[int, int]) -> tuple[Tensor, int]:
            return weights[number] * pair[0] + weights[2] * pair[0], pair[1]

        mine = pairs[:cut] if number == 0 else pairs[cut:]
        total, terms = accumulate(weights, mine, loss, dtype=buffer, all_reduce=summing.of(number))
        return float(total), float(terms), [w.grad for w in weights]

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(rank, (0, 1))
    assert first == second
    slopes = sum(pair[0] for pair in pairs[:cut]), sum(pair[0] for pair in pairs[cut:])
    expected = [slopes[0] / 8 if cut else None, slopes[1] / 8 if cut < 3 else None, 11 / 8, None]
    assert first[1:] == (8, expected), "a weight that no rank has a gradient for keeps none: an optimizer leaves it alone"


def test_a_step_without_micro_batches_sums_to_nothing() -> None:
    total, terms = accumulate([weight()], [], lambda _: (weight(), 1))
    assert (float(total), terms) == (0, 0)


@pytest.mark.parametrize("buffer", BUFFERS)
@pytest.mark.parametrize("factor", [2.0**-20, 2.0**20])
def test_a_loss_scalers_power_of_two_changes_no_bit(buffer: torch.dtype | None, factor: float) -> None:
    pairs = [(0.1, 3), (0.7, 1), (1.3, 2)]
    plain, scaled = weight(), weight()
    accumulate([plain], pairs, lambda pair: (plain * pair[0], pair[1]), dtype=buffer)
    total, terms = accumulate(
        [scaled], pairs, lambda pair: (scaled * pair[0], pair[1]), dtype=buffer, backward=lambda summed: (summed * factor).backward()
    )
    assert plain.grad is not None and scaled.grad is not None
    assert (float(scaled.grad) / factor, float(total), terms) == (float(plain.grad), 0.0, 6)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("parameter", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("as_tensor", [False, True])
def test_a_number_of_terms_that_half_precision_cannot_hold_divides_exactly(as_tensor: bool, parameter: torch.dtype, device: str) -> None:
    # 2^17 is past float16's largest number; 257 would be 256 in bfloat16, with another quotient.
    for slope, terms in ((1024.0, 2**17), (1.0, 257)):
        w = torch.nn.Parameter(torch.zeros((), dtype=parameter, device=device))
        count = torch.tensor(terms, device=device) if as_tensor else terms
        accumulate([w], [1, 2], lambda _: (w * (slope / 2), count / 2))  # noqa: B023
        assert w.grad is not None and float(w.grad) == float(torch.tensor(slope / terms, dtype=torch.float64).to(parameter))
