"""Distances estimated from sketches against exact distances."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from accum_sweeps.analysis.distances import between
from accum_sweeps.plan.parts import Decoder
from accum_sweeps.record.sketches import TENSOR_BUCKETS, Sketches
from accum_sweeps.training.models import decoder
from accum_sweeps.training.sketch import BUCKETS, Sketch, sketch, tensor_sketches, weights_hash
from tests.specs import make_spec

FOUR_SIGMA = 4 / np.sqrt(2 * BUCKETS)  # of a distance's relative error


def tiny(seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.nn.Module:
    model = make_spec().setup.model
    assert isinstance(model, Decoder)
    return decoder.build(model, seed).to(dtype)


def flat(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten().double() for p in model.parameters()])


def apart(a: Sketch, b: Sketch) -> tuple[float, float]:
    """(distance, relative distance) as the analysis tells them."""
    [(distance, relative, _)] = between(Sketches({1: (a, "")}), Sketches({1: (b, "")})).values()
    return distance, relative


def displaced(direction: int, relative: float) -> torch.nn.Module:
    """The tiny model in float64, moved by ``relative`` times its norm in a random direction."""
    model, generator = tiny(), torch.Generator().manual_seed(direction)
    step = torch.randn(flat(model).shape, generator=generator, dtype=torch.float64)
    step *= relative * flat(model).norm() / step.norm()
    with torch.no_grad():
        for p, piece in zip(model.parameters(), step.split([p.numel() for p in model.parameters()]), strict=True):
            p.add_(piece.view_as(p))
    return model


def test_a_sketch_is_4096_float64_numbers() -> None:
    made = sketch(tiny())
    assert (made.shape, made.dtype) == ((4096,), np.float64)


def test_equal_weights_have_distance_exactly_zero() -> None:
    assert apart(sketch(tiny()), sketch(tiny())) == (0.0, 0.0)
    assert weights_hash(tiny()) == weights_hash(tiny())


@pytest.mark.parametrize("relative", [1.0, 1e-2, 1e-4, 1e-6, 1e-7, 1e-8, 1e-9])
@pytest.mark.parametrize("direction", [1, 2, 3])
def test_distances_are_estimated_within_four_standard_deviations(relative: float, direction: int) -> None:
    moved = displaced(direction, relative)
    exact = float((flat(moved) - flat(tiny())).norm())
    distance, ratio = apart(sketch(moved), sketch(tiny()))
    assert distance == pytest.approx(exact, rel=FOUR_SIGMA)
    assert ratio == pytest.approx(exact / float(flat(tiny()).norm()), rel=2 * FOUR_SIGMA)


@pytest.mark.parametrize("relative", [1e-7, 1e-9])
def test_rounding_of_the_sums_is_negligible_at_small_distances(relative: float) -> None:
    # The same direction at distance 1: the estimate's random error is the same, only rounding differs.
    origin = sketch(tiny())
    small, large = (apart(sketch(displaced(1, r)), origin)[0] / r for r in (relative, 1.0))
    assert small == pytest.approx(large, rel=1e-5)


def test_the_estimate_is_unbiased_with_the_stated_spread() -> None:
    origin = sketch(tiny())
    squares = []
    for direction in range(40):
        moved = displaced(direction, 1e-3)
        squares.append((apart(sketch(moved), origin)[0] / float((flat(moved) - flat(tiny())).norm())) ** 2)
    deviation = np.sqrt(2 / BUCKETS)
    assert np.mean(squares) == pytest.approx(1.0, abs=4 * deviation / np.sqrt(40))
    assert 0.6 * deviation < np.std(squares) < 1.5 * deviation


def test_one_weight_by_one_ulp_is_seen_exactly() -> None:
    model = tiny(dtype=torch.float32)
    before, digest = sketch(model), weights_hash(model)
    with torch.no_grad():
        weight = next(model.parameters())
        old = float(weight[3, 5])
        weight[3, 5] = torch.nextafter(weight[3, 5], torch.tensor(torch.inf))
        moved = float(weight[3, 5]) - old
    assert apart(sketch(model), before)[0] == pytest.approx(moved, rel=1e-6)
    assert weights_hash(model) != digest


def test_the_sketch_depends_on_the_values_and_not_on_their_dtype() -> None:
    rounded = tiny(dtype=torch.bfloat16)
    assert apart(sketch(rounded), sketch(rounded.to(torch.float64)))[0] == 0.0


def test_the_hash_depends_on_dtype_shape_and_name() -> None:
    models = [torch.nn.Linear(2, 8, bias=False), torch.nn.Linear(8, 2, bias=False), torch.nn.Embedding(8, 2)]
    models += [torch.nn.Sequential(torch.nn.Embedding(8, 2)), torch.nn.Embedding(8, 2).bfloat16()]
    for model in models:
        torch.nn.init.zeros_(next(model.parameters()))
    assert len({weights_hash(model) for model in models}) == 4  # an Embedding holds what a Linear(2, 8) holds


def test_the_definition_stays_so_that_sketches_of_other_releases_can_be_compared() -> None:
    model = torch.nn.Linear(2, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        model.bias.copy_(torch.tensor([5.0, 6.0]))
    made = sketch(model)
    assert {int(place): float(made[place]) for place in np.flatnonzero(made)} == {
        1110: 6.0,
        1528: 3.0,
        1687: 4.0,
        2444: 1.0,
        2686: -5.0,
        3490: -2.0,
    }


def test_a_tensor_longer_than_what_is_hashed_at_a_time() -> None:
    model = torch.nn.Embedding(600, 1000)
    exact = float(model.weight.detach().double().norm())
    assert float(np.linalg.norm(sketch(model))) == pytest.approx(exact, rel=FOUR_SIGMA)


def tensor_distances(a: torch.nn.Module, b: torch.nn.Module) -> NDArray[np.float64]:
    (_, left), (_, right) = tensor_sketches(a), tensor_sketches(b)
    return np.asarray(np.linalg.norm(left.sketches - right.sketches, axis=1))


def exact_distances(a: torch.nn.Module, b: torch.nn.Module) -> NDArray[np.float64]:
    pairs = zip(a.parameters(), b.parameters(), strict=True)
    return np.array([float((p.detach().double() - q.detach().double()).norm()) for p, q in pairs])


@pytest.mark.parametrize("relative", [1.0, 1e-4, 1e-7, 1e-9])
def test_each_tensors_distance_is_estimated_within_four_standard_deviations(relative: float) -> None:
    moved, origin = displaced(1, relative), tiny()
    estimated, exact = tensor_distances(moved, origin), exact_distances(moved, origin)
    assert len(exact) == 15 and estimated == pytest.approx(exact, rel=4 / np.sqrt(2 * TENSOR_BUCKETS))
    # The tensors' errors are independent: their sum has a smaller one.
    spread = np.sqrt((exact**2).sum() / (2 * TENSOR_BUCKETS)) / exact.sum()
    assert estimated.sum() == pytest.approx(exact.sum(), rel=4 * spread)
    assert spread < 0.012


def test_tensors_of_at_most_512_weights_are_kept_as_they_are() -> None:
    model = torch.nn.Linear(512, 3)
    kept = tensor_sketches(model)[1]
    assert kept.sizes.tolist() == [1536, 3]
    assert kept.sketches[1, :3].tolist() == model.bias.detach().double().tolist() and not kept.sketches[1, 3:].any()
    assert np.linalg.norm(kept.sketches[0]) != float(model.weight.detach().double().norm())


def test_the_estimate_of_one_tensor_has_the_stated_spread() -> None:
    squares = []
    for direction in range(40):
        model = torch.nn.Linear(100, 100, bias=False)
        torch.nn.init.normal_(model.weight, generator=torch.Generator().manual_seed(direction))
        [estimated] = np.linalg.norm(tensor_sketches(model)[1].sketches, axis=1)
        squares.append((estimated / float(model.weight.detach().double().norm())) ** 2)
    deviation = np.sqrt(2 / TENSOR_BUCKETS)  # 6.3 % of the square, half of that for the distance
    assert np.mean(squares) == pytest.approx(1.0, abs=4 * deviation / np.sqrt(40))
    assert 0.6 * deviation < np.std(squares) < 1.5 * deviation


def test_only_the_tensor_that_moved_is_different() -> None:
    model = tiny(dtype=torch.float32)
    before, whole = tensor_sketches(model)[1], sketch(model)
    with torch.no_grad():
        weight = dict(model.named_parameters())[before.names[5]]
        weight.view(-1)[0] = torch.nextafter(weight.view(-1)[0], torch.tensor(torch.inf))
    after = tensor_sketches(model)[1]
    assert [place for place in range(15) if before.hashes[place] != after.hashes[place]] == [5]
    assert np.flatnonzero((before.sketches != after.sketches).any(axis=1)).tolist() == [5]
    assert (sketch(model) != whole).any()


def test_the_whole_sketch_is_the_same_to_the_last_bit_whether_tensors_are_sketched_or_not() -> None:
    long = torch.nn.Embedding(600, 1000)
    assert (tensor_sketches(long)[0] == sketch(long)).all()
    assert (tensor_sketches(tiny())[0] == sketch(tiny())).all()
