"""Corpora are checked and hashed while planning, and checked again where they are used."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from accum_sweeps.plan.errors import ConfigError, UserError
from accum_sweeps.plan.parts import NoData, StandardLibrary, TextFiles, TokenFile
from accum_sweeps.training.data import corpus

LIBRARY = StandardLibrary(name="stdlib", seq_len=64, lengths="documents", eval_rows=32)


def text(path: Path, content: bytes = b"0123456789abcdef\n\n" * 100, **changes: object) -> TextFiles:
    (path / "a.txt").write_bytes(content)
    part = TextFiles(name="text", path=str(path / "a.txt"), seq_len=8, lengths="fixed", eval_rows=4)
    return dataclasses.replace(part, **changes)  # type: ignore[arg-type]


def tokens(path: Path, ids: np.ndarray) -> TokenFile:
    ids.tofile(path / "t.bin")
    return TokenFile(name="tokens", path=str(path / "t.bin"), integer=ids.dtype.name, eval_share=0.25, seq_len=8, eval_rows=4)


def test_the_standard_librarys_hash_is_the_same_in_a_process_without_torch() -> None:
    program = f"""
import sys
from accum_sweeps.plan.parts import StandardLibrary
from accum_sweeps.training.data import corpus
print(corpus.identify({LIBRARY!r}, 256).hash, "torch" in sys.modules)
"""
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3])
    assert answer.stdout.split() == [corpus.identify(LIBRARY).hash, "False"]  # type: ignore[union-attr]


def test_the_hash_is_of_the_content_and_of_nothing_else(tmp_path: Path) -> None:
    part = text(tmp_path)
    known = corpus.identify(part)
    assert isinstance(known, TextFiles) and known == dataclasses.replace(part, hash=known.hash)
    assert corpus.identify(dataclasses.replace(part, seq_len=4, lengths="documents", name="x")).hash == known.hash  # type: ignore[union-attr]
    assert corpus.identify(text(tmp_path, b"0123456789abcdeF\n\n" * 100)).hash != known.hash  # type: ignore[union-attr]


def test_paths_become_absolute_from_the_current_folder_or_from_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = text(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for path in ("a.txt", "~/a.txt"):
        assert corpus.identify(dataclasses.replace(part, path=path)) == corpus.identify(part)


def test_no_data_is_left_as_it_is() -> None:
    assert corpus.identify(NoData(name="none")) == NoData(name="none")


def test_a_corpus_too_small_is_refused_with_the_numbers(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.seq_len=500: the evaluation text holds 180 tokens.*needs 501 tokens"):
        corpus.identify(text(tmp_path, seq_len=500))
    with pytest.raises(ConfigError, match=r"data\.eval_rows=21: the evaluation text holds 180 tokens, enough for 20 rows; at most 20"):
        corpus.identify(text(tmp_path, eval_rows=21))
    with pytest.raises(ConfigError, match=r"data\.seq_len=8: the training text holds 0 tokens"):
        corpus.identify(text(tmp_path, b""))
    with pytest.raises(ConfigError, match=r"data\.eval_rows=11: .*enough for 10 rows"):
        corpus.identify(text(tmp_path, lengths="documents", seq_len=20, eval_rows=11))


def test_token_ids_beyond_the_vocabulary_are_refused(tmp_path: Path) -> None:
    part = tokens(tmp_path, np.arange(1000, dtype=np.uint32))
    with pytest.raises(ConfigError, match=r"model\.vocabulary=999: the data holds token id 999: 1000 or more"):
        corpus.identify(part, 999)
    assert corpus.identify(part, 1000).hash  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match=r"model\.vocabulary=100: the data holds token id"):
        corpus.identify(LIBRARY, 100)


def test_the_end_of_a_token_file_is_the_evaluation_text(tmp_path: Path) -> None:
    part = corpus.identify(tokens(tmp_path, np.arange(1000, dtype=np.uint16)))
    loaded = corpus.load(part)
    assert (loaded.train.tokens[-1], loaded.evaluation.tokens[0], loaded.evaluation.tokens[-1]) == (749, 750, 999)


def test_a_worker_refuses_another_content_than_was_planned(tmp_path: Path) -> None:
    planned = corpus.identify(text(tmp_path))
    assert isinstance(planned, TextFiles)
    assert corpus.load(planned) is corpus.load(planned)
    changed = dataclasses.replace(planned, hash="0" * 32)
    with pytest.raises(UserError, match="planned with another content"):
        corpus.load(changed)


def test_a_text_edited_between_two_plans_in_one_process_is_read_again(tmp_path: Path) -> None:
    first = corpus.identify(text(tmp_path))
    second = corpus.identify(text(tmp_path, b"another text, a long one\n" * 50))
    assert corpus.load(second).hash != first.hash  # type: ignore[union-attr]


def test_more_rows_of_an_epoch_than_the_training_text_holds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.epoch_rows=181: the training text holds 180 rows that share no token; at most 180"):
        corpus.identify(text(tmp_path, epoch_rows=181))
    assert corpus.identify(text(tmp_path, epoch_rows=180)).hash  # type: ignore[union-attr]


def test_drawn_lengths_are_for_every_kind_of_text(tmp_path: Path) -> None:
    parts = [
        text(tmp_path, lengths="uniform"),
        dataclasses.replace(tokens(tmp_path, np.arange(1000, dtype=np.uint16)), lengths="geometric"),
    ]
    for part, lengths in zip(parts, ("uniform", "geometric"), strict=True):
        loaded = corpus.load(corpus.identify(part))  # type: ignore[arg-type]
        assert loaded.train.lengths == loaded.evaluation.lengths == lengths and loaded.train.starts is None
