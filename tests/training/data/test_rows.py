"""Rows out of texts: where documents end, what is padded, what is fixed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accum_sweeps.training import seeding
from accum_sweeps.training.data.rows import IGNORED, MIN_ROW, Text, available_rows, drawn_lengths, sampled, split_documents, spread


def as_tokens(text: bytes) -> np.ndarray:
    return np.frombuffer(text, np.uint8)


def documents(text: bytes, seq_len: int) -> list[bytes]:
    made = split_documents(as_tokens(text), seq_len)
    assert made.starts is not None and made.ends is not None
    return [text[start:end] for start, end in zip(made.starts, made.ends, strict=True)]


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_documents_end_after_a_blank_line(newline: bytes) -> None:
    text = b"first line$second line$$third line$".replace(b"$", newline)
    cut = text.index(b"third")
    assert documents(text, 100) == [text[:cut], text[cut:]]


def test_a_long_document_gives_rows_that_share_one_token() -> None:
    assert documents(b"abcdefghijklmnopqrstuvwxyz", 10) == [b"abcdefghijk", b"klmnopqrstu"]  # u...z is shorter than MIN_ROW
    assert documents(b"abcdefghijklmnopqrstuvwxyz", 9) == [b"abcdefghij", b"jklmnopqrs", b"stuvwxyz"]


@settings(max_examples=50, deadline=None)
@given(text=st.text("ab\n", min_size=0, max_size=300), seq_len=st.integers(1, 40))
def test_no_token_is_a_target_twice_and_rows_have_the_stated_lengths(text: str, seq_len: int) -> None:
    made = split_documents(as_tokens(text.encode()), seq_len)
    assert made.starts is not None and made.ends is not None
    targets = [place for start, end in zip(made.starts, made.ends, strict=True) for place in range(start + 1, end)]
    assert len(targets) == len(set(targets))
    lengths = made.ends - made.starts
    assert ((lengths >= min(MIN_ROW, seq_len + 1)) & (lengths <= seq_len + 1)).all()
    assert not any("\n\n" in text[start : end - 1] for start, end in zip(made.starts, made.ends, strict=True))


def test_targets_are_the_next_tokens() -> None:
    batch = sampled(Text(np.arange(1000, dtype=np.uint16)), 8, 16, seeding.generator("data", 0, 1))
    assert (batch.inputs.shape, batch.inputs.dtype, batch.targets.dtype) == ((16, 8), np.int64, np.int64)
    assert (batch.targets == batch.inputs + 1).all()
    assert (np.diff(batch.inputs) == 1).all()


def test_windows_reach_both_ends_of_the_text() -> None:
    batch = sampled(Text(np.arange(11, dtype=np.uint16)), 8, 200, seeding.generator("data", 0, 1))
    assert set(batch.inputs[:, 0].tolist()) == {0, 1, 2}


def test_short_rows_are_padded_at_the_end() -> None:
    text = split_documents(as_tokens(b"0123456\n\nabcdefghij"), 12)
    batch = spread(text, 12, 2)
    assert batch.inputs[0].tolist() == [*b"0123456\n", 0, 0, 0, 0]
    assert batch.targets[0].tolist() == [*b"123456\n\n", *[IGNORED] * 4]
    assert batch.targets[1].tolist() == [*b"bcdefghij", *[IGNORED] * 3]


def test_the_fixed_rows_are_spread_over_the_whole_text() -> None:
    batch = spread(Text(np.arange(1000, dtype=np.uint16)), 9, 10)
    assert batch.inputs[:, 0].tolist() == [99 * i + i // 10 for i in range(10)]
    assert available_rows(Text(np.arange(1000, dtype=np.uint16)), 9) == 100


LONG = np.arange(100_000, dtype=np.uint32)


@pytest.mark.parametrize(("lengths", "mean"), [("uniform", 32.5), ("geometric", 16 * (1 - (1 - 1 / 16) ** 64))])
def test_drawn_lengths_have_the_stated_mean_and_stay_within_a_row(lengths: str, mean: float) -> None:
    # The mean of a geometric length cut at T is m (1 - (1 - 1/m)^T) with m = T / 4.
    found = drawn_lengths(lengths, 64, 40_000, seeding.generator("data", 0, 1))
    assert (found.min(), found.max()) == (1, 64)
    assert found.mean() == pytest.approx(mean, abs=4 * found.std() / 200)  # four standard errors


@pytest.mark.parametrize("seq_len", [1, 2, 4])
def test_short_rows_can_have_drawn_lengths(seq_len: int) -> None:
    for lengths in ("uniform", "geometric"):
        found = drawn_lengths(lengths, seq_len, 1000, seeding.generator("data", 0, 1))
        assert 1 <= found.min() <= found.max() <= seq_len


@pytest.mark.parametrize("lengths", ["uniform", "geometric"])
def test_rows_of_drawn_lengths_are_padded_at_the_end_and_differ_from_step_to_step(lengths: str) -> None:
    text = Text(LONG, lengths=lengths)
    first, second = (sampled(text, 16, 40, seeding.generator("data", 0, step)) for step in (1, 2))
    counts = [(batch.targets != IGNORED).sum(1) for batch in (first, second)]
    assert len(set(counts[0])) > 3 and list(counts[0]) != list(counts[1])
    for row, count in enumerate(counts[0]):
        assert (first.targets[row, :count] == first.inputs[row, :count] + 1).all()
        assert (first.targets[row, count:] == IGNORED).all() and (first.inputs[row, count:] == 0).all()


def test_drawing_lengths_leaves_the_rows_where_they_start() -> None:
    fixed, drawn = (sampled(Text(LONG, lengths=lengths), 16, 40, seeding.generator("data", 0, 1)) for lengths in ("fixed", "uniform"))
    assert (fixed.inputs[:, 0] == drawn.inputs[:, 0]).all()


@pytest.mark.parametrize("text", [Text(LONG), Text(LONG, lengths="uniform"), split_documents(as_tokens(b"0123456789abcdef\n\n" * 99), 16)])
def test_chosen_rows_are_those_of_the_whole_set(text: Text) -> None:
    whole, chosen = spread(text, 16, 50), spread(text, 16, 50, np.array([7, 3, 49]))
    assert (chosen.inputs == whole.inputs[[7, 3, 49]]).all() and (chosen.targets == whole.targets[[7, 3, 49]]).all()
