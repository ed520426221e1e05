"""Random numbers depend on stream, seed and place, and on nothing else."""

import pytest
import torch

from accum_sweeps.training import seeding


def test_a_place_gives_the_same_numbers_whatever_was_drawn_before() -> None:
    first = seeding.generator("data", 3, 7).integers(0, 2**32, 8).tolist()
    seeding.generator("data", 3, 6).random(1000)
    assert seeding.generator("data", 3, 7).integers(0, 2**32, 8).tolist() == first


def test_streams_seeds_and_counters_give_different_numbers() -> None:
    places: list[tuple[str, int, tuple[int | str, ...]]] = [("data", 0, (1,)), ("init", 0, (1,)), ("data", 1, (0,)), ("data", 1, (1,))]
    places += [("data", 0, (11,)), ("data", 0, (1, 1)), ("data", 0, ("1",))]
    assert len({seeding.key(stream, seed, *counters) for stream, seed, counters in places}) == len(places)
    assert len({float(seeding.generator(stream, seed, *counters).random()) for stream, seed, counters in places}) == len(places)


def test_the_numbers_are_the_same_for_ever() -> None:
    assert seeding.key("data", 0, 1) == 310637975337329663990826526263924868105
    assert seeding.generator("data", 0, 1).integers(0, 1000, 4).tolist() == [1, 660, 765, 995]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_dropout_masks_depend_on_the_seed_and_the_step_alone(device: str) -> None:
    def mask(seed: int, step: int) -> list[bool]:
        seeding.seed_dropout(seed, step, device)
        return (torch.nn.functional.dropout(torch.ones(64, device=device), 0.5) > 0).tolist()

    expected = mask(0, 5)
    mask(0, 4)
    torch.rand(10, device=device)
    assert mask(0, 5) == expected
    assert mask(0, 6) != expected
    assert mask(1, 5) != expected


def test_seeds_for_torch_fit_into_its_generators() -> None:
    torch.Generator().manual_seed(seeding.torch_seed_of("control", 2**40, "x"))
