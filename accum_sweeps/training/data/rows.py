"""Rows of tokens out of a long text: sampled for training, fixed for evaluation.

Shapes: R rows, T = seq_len target tokens. A row is up to T + 1 consecutive tokens: the first T are inputs, the last T targets.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

IGNORED = -100  # target of a padded position; torch's cross entropy leaves it out
MIN_ROW = 8  # tokens: shorter pieces (a lone bracket, a blank line) are no rows of their own

Tokens = NDArray[np.unsignedinteger]
Positions = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Batch:
    """``inputs`` and ``targets``: int64, (R, T); padded positions hold input 0 and target IGNORED."""

    inputs: NDArray[np.int64]
    targets: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Text:
    """``tokens``, one after the other; ``starts`` and ``ends`` of its rows, or None where a row may start anywhere."""

    tokens: Tokens
    starts: Positions | None = None
    ends: Positions | None = None


def split_documents(tokens: Tokens, seq_len: int) -> Text:
    """The text with rows that end where a document ends: a block of text, up to and with the blank line after it.

    A document longer than a row gives several, the last of them short. ``tokens`` are bytes.
    """
    newlines = np.flatnonzero(tokens == ord("\n"))
    gaps = np.diff(newlines)
    is_blank = (gaps == 1) | ((gaps == 2) & (tokens[newlines[1:] - 1] == ord("\r")))
    cuts = newlines[1:][is_blank] + 1
    starts, ends = np.concatenate([[0], cuts]), np.concatenate([cuts, [tokens.size]])
    rows = np.maximum(0, -(-(ends - starts - 1) // seq_len))
    number = np.arange(rows.sum()) - np.repeat(np.cumsum(rows) - rows, rows)  # of a row within its document
    starts, ends = np.repeat(starts, rows) + number * seq_len, np.repeat(ends, rows)
    ends = np.minimum(ends, starts + seq_len + 1)
    is_long = ends - starts >= min(MIN_ROW, seq_len + 1)
    return Text(tokens, starts[is_long], ends[is_long])


def available_rows(text: Text, seq_len: int) -> int:
    """How many rows the text holds that share no token."""
    return text.tokens.size // (seq_len + 1) if text.starts is None else len(text.starts)


def sampled(text: Text, seq_len: int, rows: int, rng: np.random.Generator) -> Batch:
    """``rows`` rows drawn with replacement, all windows or rows alike."""
    if text.starts is None:
        return _gather(text, rng.integers(0, text.tokens.size - seq_len, size=rows), None, seq_len)
    assert text.ends is not None
    chosen = rng.integers(0, len(text.starts), size=rows)
    return _gather(text, text.starts[chosen], text.ends[chosen], seq_len)


def spread(text: Text, seq_len: int, rows: int) -> Batch:
    """``rows`` rows at equal distances over the whole text, always the same."""
    if text.starts is None:
        return _gather(text, np.arange(rows) * (text.tokens.size - seq_len) // rows, None, seq_len)
    assert text.ends is not None
    chosen = np.arange(rows) * len(text.starts) // rows
    return _gather(text, text.starts[chosen], text.ends[chosen], seq_len)


def _gather(text: Text, starts: Positions, ends: Positions | None, seq_len: int) -> Batch:
    places = starts[:, None] + np.arange(seq_len + 1)
    if ends is None:
        tokens = text.tokens[places].astype(np.int64)
        return Batch(tokens[:, :-1], tokens[:, 1:])
    tokens = text.tokens[np.minimum(places, text.tokens.size - 1)].astype(np.int64)
    is_target = places[:, 1:] < ends[:, None]
    return Batch(np.where(is_target, tokens[:, :-1], 0), np.where(is_target, tokens[:, 1:], IGNORED))
