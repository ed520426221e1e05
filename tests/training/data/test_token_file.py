"""Token files: memory-mapped, hashed once."""

import os
from pathlib import Path

import numpy as np
import pytest

from accum_sweeps.plan.errors import ConfigError
from accum_sweeps.training.data.token_file import content, open_tokens


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def written(path: Path, ids: list[int], integer: str = "uint16") -> Path:
    np.array(ids, dtype=integer).tofile(path)
    return path


@pytest.mark.parametrize("integer", ["uint16", "uint32"])
def test_ids_are_mapped_and_not_read(tmp_path: Path, integer: str) -> None:
    tokens = open_tokens(written(tmp_path / "t.bin", [1, 2, 300, 65535], integer), integer)
    assert isinstance(tokens, np.memmap) and tokens.tolist() == [1, 2, 300, 65535]
    with pytest.raises(ValueError, match="read-only"):
        tokens[0] = 5


def test_a_file_that_holds_no_whole_number_of_ids_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.bin").write_bytes(b"12345")
    with pytest.raises(ConfigError, match="holds 5 bytes, no whole number of uint16 ids"):
        open_tokens(tmp_path / "t.bin", "uint16")
    (tmp_path / "t.bin").write_bytes(b"")
    with pytest.raises(ConfigError, match="holds 0 bytes"):
        open_tokens(tmp_path / "t.bin", "uint16")
    with pytest.raises(ConfigError, match=r"data\.path=.*No such file"):
        open_tokens(tmp_path / "missing.bin", "uint16")


def test_the_hash_is_of_the_content_and_the_largest_id_is_found(tmp_path: Path) -> None:
    paths = [written(tmp_path / name, ids) for name, ids in (("a", [1, 9, 3]), ("b", [1, 9, 3]), ("c", [1, 9, 4]))]
    known = [content(path, open_tokens(path, "uint16")) for path in paths]
    assert known[0] == known[1] and known[0][1] == 9
    assert known[2][0] != known[0][0]


def test_an_unchanged_file_is_hashed_once(tmp_path: Path) -> None:
    path = written(tmp_path / "t.bin", [1, 2, 3])
    known = content(path, open_tokens(path, "uint16"))
    # Other content under the same size and time: only a memory can still give the old answer.
    state = path.stat()
    written(path, [7, 8, 9])
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert content(path, open_tokens(path, "uint16")) == known
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns + 1_000_000))
    assert content(path, open_tokens(path, "uint16"))[1] == 9


def test_a_damaged_memory_is_replaced(tmp_path: Path, cache: Path) -> None:
    path = written(tmp_path / "t.bin", [1, 2, 3])
    known = content(path, open_tokens(path, "uint16"))
    (memory,) = (cache / "accum_sweeps" / "token_files").iterdir()
    memory.write_text('{"hash": 1')
    assert content(path, open_tokens(path, "uint16")) == known
    assert '"largest": 3' in memory.read_text()


def test_a_home_that_cannot_be_written_costs_nothing_but_time(tmp_path: Path, cache: Path) -> None:
    cache.write_text("a file where a folder should be")
    path = written(tmp_path / "t.bin", [1, 2, 3])
    assert content(path, open_tokens(path, "uint16"))[1] == 3
