"""Two small trainings of one's own with ragged samples, as classes of ``subject=python``.

A sample has up to LENGTH places; those that hold a target are the terms of the loss. B samples, T = LENGTH places, F features, C classes.
"""

from typing import Any

import torch
from torch import Tensor, nn

LENGTH, FEATURES, CLASSES, WORDS = 12, 6, 5, 40


def places(samples: int, generator: torch.Generator, *, least: int) -> Tensor:
    """Which places of each sample hold a target, bool (B, T): the first ones, ``least`` to T of them."""
    counts = torch.randint(least, LENGTH + 1, (samples,), generator=generator)
    return torch.arange(LENGTH)[None] < counts[:, None]


class Mlp:
    """Regression of one number per place with a multilayer perceptron.

    ``empty``: samples without a target are among them. ``unused``: a parameter that no loss depends on. ``island``: the last layer
    computes in float32 whatever the dtype is. ``zero``: a bias that the loss does not see, so that its gradient is zero but for rounding.
    """

    def __init__(self, empty: bool = False, unused: bool = False, island: bool = False, zero: bool = False) -> None:
        self._least, self._unused, self._island, self._zero = 0 if empty else 1, unused, island, zero

    def build(self, config: Any, seeds: Any) -> nn.Module:
        """Three layers of width 16."""
        self._rows = config["global_batch"]
        model = nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))
        if self._unused:
            model.register_parameter("unused", nn.Parameter(torch.ones(3)))
        return model

    def batch(self, step: int, seed: int) -> dict[str, Tensor]:
        """``inputs`` (B, T, F), ``targets`` (B, T) and ``is_target`` (B, T); the first sample always has a target."""
        generator = torch.Generator().manual_seed(1000 * seed + step)
        inputs = torch.randn(self._rows, LENGTH, FEATURES, generator=generator, dtype=torch.float64)
        is_target = places(self._rows, generator, least=self._least)
        is_target[0, 0] = True
        return {"inputs": inputs, "targets": inputs.sin().sum(-1), "is_target": is_target}

    def loss(self, model: nn.Module, samples: dict[str, Tensor]) -> tuple[Tensor, int]:
        """Squared errors of the places with a target, and their number."""
        found = self._outputs(model, samples["inputs"])
        if self._zero:
            found = found - found.mean(dim=1, keepdim=True)  # the last bias cancels out
        errors = (found - samples["targets"]).square() * samples["is_target"]
        return errors.sum(), int(samples["is_target"].sum())

    def _outputs(self, model: nn.Module, inputs: Tensor) -> Tensor:
        if not self._island:
            outputs: Tensor = model(inputs)[..., 0]
            return outputs
        assert isinstance(model, nn.Sequential)
        hidden, last = model[:-1](inputs), model[-1]
        assert isinstance(last, nn.Linear)
        return nn.functional.linear(hidden.float(), last.weight.float(), last.bias.float())[..., 0].to(inputs.dtype)


class Tagger:
    """A class for each word of a ragged sentence, by its own embedding and the sentence's mean.

    ``sparse``: the embedding's gradient is a sparse tensor. ``tied``: the head's weight is a part of the embedding. ``few``: only a few of
    the words occur, so that most of the embedding has no gradient. ``empty`` as in Mlp.
    """

    def __init__(self, sparse: bool = False, tied: bool = False, few: bool = False, empty: bool = False) -> None:
        self._sparse, self._tied, self._words, self._least = sparse, tied, 4 if few else WORDS, 0 if empty else 1

    def build(self, config: Any, seeds: Any) -> nn.Module:
        """Embedding of width 12, two hidden layers, a head."""
        self._rows = config["global_batch"]
        return TaggerNetwork(self._sparse, self._tied)

    def batch(self, step: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
        """Words (B, T), their classes (B, T), and which of them count (B, T)."""
        generator = torch.Generator().manual_seed(1000 * seed + step)
        words = torch.randint(0, self._words, (self._rows, LENGTH), generator=generator)
        is_target = places(self._rows, generator, least=self._least)
        is_target[0, 0] = True
        return words, (words * 7 + words.roll(1, 1)) % CLASSES, is_target

    def loss(self, model: nn.Module, samples: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, int]:
        """Cross entropy of the words that count, and their number."""
        words, classes, is_target = samples
        entropies = nn.functional.cross_entropy(model(words).transpose(1, 2), classes, reduction="none")
        return (entropies * is_target).sum(), int(is_target.sum())


class TaggerNetwork(nn.Module):
    """Logits (B, T, C) of words (B, T)."""

    def __init__(self, sparse: bool, tied: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 12, sparse=sparse)
        self.first, self.second, self.head = nn.Linear(24, 12), nn.Linear(12, 12), nn.Linear(12, CLASSES)
        self._tied = tied

    def forward(self, words: Tensor) -> Tensor:
        """Logits of each word."""
        own = self.embedding(words)
        sentence = own.mean(dim=1, keepdim=True).expand_as(own)
        hidden = self.second(torch.tanh(self.first(torch.cat([own, sentence], dim=-1)))).tanh()
        return nn.functional.linear(hidden, self.embedding.weight[:CLASSES]) if self._tied else self.head(hidden)
