"""Dropout: how much is dropped, and what the masks depend on."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from accum_sweeps.training.models.decoder import build
from accum_sweeps.training.models.dropout import Dropout, SampleMasks
from tests.training.models.test_decoder import ids, part


def masks(rows: Sequence[int] = (0, 1), seed: int = 0, step: int = 1) -> SampleMasks:
    return SampleMasks(seed=seed, step=step, rows=rows)


def dropped(rows: Sequence[int] = (0, 1), place: str = "here", probability: float = 0.25, **keys: int) -> Tensor:
    """Ones through dropout."""
    result: Tensor = Dropout(probability, place)(torch.ones(len(rows), 64, 32, dtype=torch.float64), masks(rows, **keys))
    return result


def test_a_share_is_dropped_and_the_rest_is_scaled_up() -> None:
    found = dropped(range(8))
    assert set(found.flatten().tolist()) == {0.0, 1 / 0.75}
    share = float((found == 0).double().mean())
    assert share == pytest.approx(0.25, abs=4 * (0.25 * 0.75 / found.numel()) ** 0.5)  # four standard errors


def test_a_rows_mask_depends_on_its_number_and_not_on_its_neighbours() -> None:
    together = dropped([3, 5, 9])
    assert torch.equal(dropped([9, 3]), together[[2, 0]])
    assert not torch.equal(together[0], together[1])


@pytest.mark.parametrize("change", [{"seed": 1}, {"step": 2}, {"place": "there"}])
def test_seed_step_and_place_give_other_masks(change: dict[str, int]) -> None:
    found, other = dropped(), dropped(**change)  # type: ignore[arg-type]
    # Independent masks agree at 0.75^2 + 0.25^2 of all entries.
    assert float((found == other).double().mean()) == pytest.approx(0.625, abs=0.03)


def test_the_masks_are_the_same_in_every_precision_and_again() -> None:
    expected = masks().kept(0.75, "here", torch.ones(2, 64, 32, dtype=torch.float64)) != 0
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        assert torch.equal(masks().kept(0.75, "here", torch.ones(2, 64, 32, dtype=dtype)) != 0, expected)


def test_sample_masks_leave_the_global_stream_alone_and_the_stream_mode_draws_from_it() -> None:
    layer, x = Dropout(0.25, "here"), torch.ones(2, 64, 32)
    state = torch.get_rng_state()
    layer(x, masks())
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(7)
    found = layer(x, None)
    torch.manual_seed(7)
    assert torch.equal(found, torch.nn.functional.dropout(x, 0.25))


def test_nothing_is_computed_in_evaluation_or_without_dropout() -> None:
    x = torch.ones(2, 4, 3)
    assert Dropout(0.5, "here").eval()(x, masks()) is x
    assert Dropout(0.0, "here")(x, masks()) is x


def test_the_decoder_drops_after_the_embedding_each_attention_and_each_feed_forward_layer() -> None:
    model = build(part(dropout=0.5), 0)
    places = [module.place for module in model.modules() if isinstance(module, Dropout)]
    blocks = [f"blocks.{number}.{place}" for number in range(2) for place in ("attention", "feed_forward")]
    assert places == ["embedding", *blocks]
    first, again, other = (model(ids(), masks(step=step)) for step in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.equal(model.eval()(ids(), masks()), build(part(), 0)(ids()))
