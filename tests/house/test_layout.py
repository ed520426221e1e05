"""The folders at the top are the ones that the package reaches through its links."""

from pathlib import Path

import pytest

import accum_sweeps.plan

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["jobs", "analysis", "conf"])
def test_the_package_reaches_the_top_level_folder_through_a_relative_link(name: str) -> None:
    link = ROOT / "accum_sweeps" / name
    assert link.is_symlink()
    assert link.readlink() == Path("..") / name
    assert link.resolve() == ROOT / name


def test_the_tests_import_this_checkout() -> None:
    assert Path(accum_sweeps.plan.__file__).resolve() == ROOT / "accum_sweeps/plan/__init__.py"
