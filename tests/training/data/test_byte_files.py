"""Which files make up a corpus, and on which side of it."""

import sysconfig
from pathlib import Path

import pytest

from accum_sweeps.plan.errors import ConfigError
from accum_sweeps.training.data.byte_files import LIBRARY_BYTES, standard_library, text_files


def folder(path: Path, count: int = 20) -> Path:
    for i in range(count):
        file = path / f"{i % 3}" / f"{i}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"file %02d\n" % i)
    return path


def names(content: bytes) -> list[int]:
    return [int(line[5:]) for line in content.splitlines() if line]


def test_the_standard_library_fills_its_limit_and_is_python(monkeypatch: pytest.MonkeyPatch) -> None:
    train, evaluation = standard_library()
    assert LIBRARY_BYTES * 0.95 < train.size + evaluation.size <= LIBRARY_BYTES
    assert 0.09 < evaluation.size / (train.size + evaluation.size) < 0.11
    assert all(part.tobytes().count(b"def ") > 300 for part in (train, evaluation))


def test_installed_packages_tests_and_build_records_are_no_standard_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.py", "b.py", "deep/c.py", "site-packages/x.py", "test/x.py", "json/tests/x.py", "_sysconfigdata_linux.py", "x.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{name}\n")
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    train, evaluation = standard_library()
    assert sorted((train.tobytes() + evaluation.tobytes()).split()) == [b"a.py", b"b.py", b"deep/c.py"]


def test_a_python_without_sources_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(ConfigError, match="no source files in"):
        standard_library()


def test_a_tenth_of_a_folders_files_is_for_evaluation(tmp_path: Path) -> None:
    train, evaluation = (names(part.tobytes()) for part in text_files(folder(tmp_path), "**/*.txt"))
    assert (len(train), len(evaluation)) == (18, 2)
    assert sorted(train + evaluation) == list(range(20))


def test_the_split_depends_on_names_alone(tmp_path: Path) -> None:
    first = text_files(folder(tmp_path / "a"), "**/*.txt")
    second = text_files(folder(tmp_path / "elsewhere" / "b"), "**/*.txt")
    assert [part.tobytes() for part in first] == [part.tobytes() for part in second]


def test_a_pattern_chooses_among_the_files(tmp_path: Path) -> None:
    train, evaluation = text_files(folder(tmp_path), "0/*.txt")
    assert sorted(names(train.tobytes()) + names(evaluation.tobytes())) == [0, 3, 6, 9, 12, 15, 18]


def test_the_last_tenth_of_a_single_file_is_for_evaluation(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(bytes(range(100)))
    for path in (tmp_path / "a.txt", tmp_path):
        train, evaluation = text_files(path, "*.txt")
        assert (train.tobytes(), evaluation.tobytes()) == (bytes(range(90)), bytes(range(90, 100)))


def test_missing_and_unmatched_and_unreadable_files_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"data\.path=.*nowhere.*no such file or folder"):
        text_files(tmp_path / "nowhere", "*")
    with pytest.raises(ConfigError, match=r"data\.pattern='\*\.rst': no file in"):
        text_files(folder(tmp_path), "*.rst")
    with pytest.raises(ConfigError, match=r"data\.pattern='/\*': is no pattern"):
        text_files(tmp_path, "/*")

    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(ConfigError, match=r"data\.path=.*cannot be read: Permission denied"):
        text_files(tmp_path, "**/*.txt")
