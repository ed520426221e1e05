"""Rows of tokens out of a long text: sampled for training, fixed for evaluation and for epochs.

Shapes: R rows, T = seq_len target tokens. A row is up to T + 1 consecutive tokens: the first T are inputs, the last T targets.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from accum_sweeps.training import seeding

IGNORED = -100  # target of a padded position; torch's cross entropy leaves it out
MIN_ROW = 8  # tokens: shorter pieces (a lone bracket, a blank line) are no rows of their own

_ALL = slice(None)
_FIXED_SEED = 0  # of the lengths of rows that are the same for every run

Tokens = NDArray[np.unsignedinteger]
Positions = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Batch:
    """``inputs`` and ``targets``: int64, (R, T); padded positions hold input 0 and target IGNORED.

    ``step`` is the optimizer step that the rows belong to; 0 = none.
    """

    inputs: NDArray[np.int64]
    targets: NDArray[np.int64]
    step: int = 0


@dataclass(frozen=True, eq=False)
class Text:
    """``tokens``, one after the other; ``starts`` and ``ends`` of its rows, or None where a row may start anywhere.

    Rows that may start anywhere are full (``lengths`` fixed) or have drawn lengths, see :func:`drawn_lengths`.
    """

    tokens: Tokens
    starts: Positions | None = None
    ends: Positions | None = None
    lengths: str = "fixed"


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
        starts = rng.integers(0, text.tokens.size - seq_len, size=rows)
        return _gather(text, starts, _ends(text, starts, seq_len, rng), seq_len)
    assert text.ends is not None
    chosen = rng.integers(0, len(text.starts), size=rows)
    return _gather(text, text.starts[chosen], text.ends[chosen], seq_len)


def spread(text: Text, seq_len: int, rows: int, chosen: NDArray[np.intp] | slice = _ALL) -> Batch:
    """``rows`` rows at equal distances over the whole text, always the same, drawn lengths too; of these the ``chosen`` row numbers."""
    if text.starts is None:
        starts = np.arange(rows) * (text.tokens.size - seq_len) // rows
        ends = _ends(text, starts, seq_len, seeding.generator("data", _FIXED_SEED, "lengths", text.lengths))
        return _gather(text, starts[chosen], None if ends is None else ends[chosen], seq_len)
    assert text.ends is not None
    places = (np.arange(rows) * len(text.starts) // rows)[chosen]
    return _gather(text, text.starts[places], text.ends[places], seq_len)


def drawn_lengths(lengths: str, seq_len: int, rows: int, rng: np.random.Generator) -> Positions:
    """Target tokens of ``rows`` rows, each 1 to ``seq_len``.

    ``uniform``: all alike. ``geometric``: with mean seq_len / 4 before lengths above ``seq_len`` (2 % of them) are cut to it.
    """
    if lengths == "uniform":
        return rng.integers(1, seq_len + 1, size=rows)
    return np.minimum(rng.geometric(min(1.0, 4 / seq_len), size=rows), seq_len)


def _ends(text: Text, starts: Positions, seq_len: int, rng: np.random.Generator) -> Positions | None:
    return None if text.lengths == "fixed" else starts + drawn_lengths(text.lengths, seq_len, len(starts), rng) + 1


def _gather(text: Text, starts: Positions, ends: Positions | None, seq_len: int) -> Batch:
    places = starts[:, None] + np.arange(seq_len + 1)
    if ends is None:
        tokens = text.tokens[places].astype(np.int64)
        return Batch(tokens[:, :-1], tokens[:, 1:])
    tokens = text.tokens[np.minimum(places, text.tokens.size - 1)].astype(np.int64)
    is_target = places[:, 1:] < ends[:, None]
    return Batch(np.where(is_target, tokens[:, :-1], 0), np.where(is_target, tokens[:, 1:], IGNORED))
