"""Captions as token ids: a word is a token, the vocabulary is made from the captions alone.

Shapes: N captions, T = tokens of the longest one, its start and end included.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from accum_sweeps.plan.errors import ConfigError

PADDING_ID = 0
_OTHER_IDS = 3  # padding, start, end
_WORD = re.compile(r"\w+|[^\w\s]")

Ids = NDArray[np.int64]


def start_id(vocabulary: int) -> int:
    """The id that every caption starts with."""
    return vocabulary - 2


def end_id(vocabulary: int) -> int:
    """The id that every caption ends with, the highest one; the text encoder's output is taken there."""
    return vocabulary - 1


@dataclass(frozen=True, eq=False)
class Captions:
    """``ids``: int64, (N, T), padded with PADDING_ID; ``lengths``: int64, (N,), tokens of each, start and end included."""

    ids: Ids
    lengths: Ids


def tokenized(captions: Sequence[str], *, vocabulary: int, longest: int) -> Captions:
    """The captions as ids: words, in alphabetical order, are 1, 2, ...; letter case does not count, punctuation marks are words.

    Raises ConfigError where ``vocabulary`` is too small for their words, or a caption has more than ``longest`` tokens.
    """
    texts = [_WORD.findall(caption.casefold()) for caption in captions]
    words = sorted(set().union(*texts))
    if len(words) + _OTHER_IDS > vocabulary:
        raise ConfigError(
            "model.vocabulary", vocabulary, f"the captions have {len(words)} words: {len(words) + _OTHER_IDS} or more is needed"
        )
    lengths = np.array([len(text) + 2 for text in texts], np.int64)
    if lengths.max() > longest:
        worst = captions[int(lengths.argmax())]
        needed = f"the longest caption needs {lengths.max()} tokens with start and end: {worst[:60]!r}"
        raise ConfigError("model.text_length", longest, needed, "Raise it, or shorten the captions.")
    number = {word: index for index, word in enumerate(words, start=1)}
    ids = np.full((len(texts), lengths.max()), PADDING_ID, np.int64)
    for row, text in zip(ids, texts, strict=True):
        row[: len(text) + 2] = [start_id(vocabulary), *(number[word] for word in text), end_id(vocabulary)]
    return Captions(ids, lengths)
