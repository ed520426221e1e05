"""Corpora: what a specification's data part stands for, checked and hashed.

Public: :func:`identify` while planning (no torch is imported), :func:`load` in a worker.
"""

import dataclasses
import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path

from accum_sweeps.plan.errors import ConfigError, UserError
from accum_sweeps.plan.parts import Data, StandardLibrary, TextFiles, TokenFile
from accum_sweeps.plan.parts import Text as TextData
from accum_sweeps.training.data import byte_files, token_file
from accum_sweeps.training.data.rows import Text, Tokens, available_rows, split_documents


@dataclass(frozen=True, eq=False, kw_only=True)
class Corpus:
    """Training and evaluation text; ``hash`` over the tokens of both, 32 hex digits; ``largest`` is the largest token id."""

    train: Text
    evaluation: Text
    hash: str
    largest: int


def identify(data: Data, vocabulary: int | None = None) -> Data:
    """``data`` with the hash of the corpus filled in and its path made absolute; checks that it can be trained on.

    Raises ConfigError: a corpus that cannot be read, that is too small for ``seq_len``, ``eval_rows`` or ``epoch_rows``, or that holds
    token ids of ``vocabulary`` (if given) or above.
    """
    if not isinstance(data, TextData):
        return data
    if not isinstance(data, StandardLibrary):
        data = dataclasses.replace(data, path=str(Path(data.path).expanduser().absolute()))
    corpus = _read(data)
    if vocabulary is not None and corpus.largest >= vocabulary:
        raise ConfigError(
            "model.vocabulary", vocabulary, f"the data holds token id {corpus.largest}: {corpus.largest + 1} or more is needed"
        )
    return dataclasses.replace(data, hash=corpus.hash)


@functools.lru_cache(maxsize=4)
def load(data: TextData) -> Corpus:
    """The corpus that ``data`` stands for, kept in memory between runs (``data.hash`` says which content).

    Raises UserError where the corpus found is not the one with ``data.hash`` that was planned, and what :func:`identify` raises.
    """
    corpus = _read(data)
    if corpus.hash != data.hash:
        where = getattr(data, "path", "the standard library of this Python")
        raise UserError(
            f"data.hash={data.hash!r}: {where} now has the content hash {corpus.hash!r}; the sweep was planned with another content"
            "\n  Start the sweep again with this Python and these files: it plans new runs for them."
        )
    return corpus


def _read(data: TextData) -> Corpus:
    if isinstance(data, TokenFile):
        corpus = _read_tokens(data)
    elif isinstance(data, TextFiles):
        corpus = _read_bytes(*byte_files.text_files(Path(data.path), data.pattern), data)
    else:
        corpus = _read_bytes(*byte_files.standard_library(), data)
    _check_size(corpus.train, data.seq_len, 1, "training")
    _check_size(corpus.evaluation, data.seq_len, data.eval_rows, "evaluation")
    _check_epoch(corpus.train, data)
    return corpus


def _read_bytes(train: byte_files.Bytes, evaluation: byte_files.Bytes, data: StandardLibrary | TextFiles) -> Corpus:
    digest = hashlib.blake2b(f"{train.size} {evaluation.size}\n".encode(), digest_size=16)
    digest.update(train.data)
    digest.update(evaluation.data)
    largest = max(int(part.max(initial=0)) for part in (train, evaluation))
    train_text, evaluation_text = (_text(part, data) for part in (train, evaluation))
    return Corpus(train=train_text, evaluation=evaluation_text, hash=digest.hexdigest(), largest=largest)


def _read_tokens(data: TokenFile) -> Corpus:
    path = Path(data.path)
    tokens: Tokens = token_file.open_tokens(path, data.integer)
    found, largest = token_file.content(path, tokens)
    cut = tokens.size - int(tokens.size * data.eval_share)
    return Corpus(train=_text(tokens[:cut], data), evaluation=_text(tokens[cut:], data), hash=found, largest=largest)


def _text(tokens: Tokens, data: TextData) -> Text:
    """The tokens with the rows that ``data.lengths`` asks for."""
    if data.lengths == "documents":
        return split_documents(tokens, data.seq_len)
    return Text(tokens, lengths=data.lengths)


def _check_size(text: Text, seq_len: int, rows: int, side: str) -> None:
    available = available_rows(text, seq_len)
    held = f"the {side} text holds {text.tokens.size} tokens, enough for {available} rows"
    if available == 0 or text.tokens.size <= seq_len:
        raise ConfigError("data.seq_len", seq_len, f"{held}; a row needs {seq_len + 1} tokens", "Use a shorter row or a larger corpus.")
    if available < rows:
        raise ConfigError(
            "data.eval_rows", rows, f"{held}; at most {available} is possible", "Use fewer or shorter rows, or a larger corpus."
        )


def _check_epoch(text: Text, data: TextData) -> None:
    available = available_rows(text, data.seq_len)
    if data.epoch_rows is not None and data.epoch_rows > available:
        held = f"the training text holds {available} rows that share no token; at most {available} is possible"
        raise ConfigError("data.epoch_rows", data.epoch_rows, held, "Use fewer or shorter rows, or a larger corpus.")
