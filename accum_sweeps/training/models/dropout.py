"""Dropout in two modes: masks keyed by sample, or drawn from torch's global stream.

Shapes: R rows, T tokens, D width.

Masks from the global stream come one after the other as micro-batches are computed, so that another cut of the batch gives
its samples other masks. Masks keyed by sample are functions of (dropout seed, optimizer step, row number within the global
batch, place in the model): the same for every cut and order of the batch, and in a second pass over the same samples.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

from accum_sweeps.training import seeding


@dataclass(frozen=True, kw_only=True)
class SampleMasks:
    """The masks of a micro-batch that holds ``rows`` (numbers within the global batch) of optimizer step ``step``."""

    seed: int
    step: int
    rows: Sequence[int]

    def kept(self, probability: float, place: str, like: Tensor) -> Tensor:
        """What ``like`` (R, T, D) is multiplied by: 1 / ``probability`` where an entry is kept, else 0.

        Drawn in float32 whatever the dtype of ``like``, so that all precisions have the same masks.
        """
        generator = torch.Generator(like.device)
        draws = torch.empty(like.shape, dtype=torch.float32, device=like.device)
        for draw, row in zip(draws, self.rows, strict=True):
            generator.manual_seed(seeding.torch_seed_of("dropout", self.seed, self.step, row, place))
            draw.uniform_(generator=generator)
        return (draws < probability).to(like.dtype).div_(probability)


class Dropout(nn.Module):
    """(R, T, D) -> (R, T, D): while training every entry is 0 with ``probability``, else divided by 1 - ``probability``."""

    def __init__(self, probability: float, place: str) -> None:
        super().__init__()
        self.probability, self.place = probability, place

    def forward(self, x: Tensor, masks: SampleMasks | None) -> Tensor:
        """Without ``masks`` the global stream of torch is drawn from."""
        if not self.training or self.probability == 0:
            return x
        if masks is None:
            return dropout(x, self.probability)
        return x * masks.kept(1 - self.probability, self.place, x)
