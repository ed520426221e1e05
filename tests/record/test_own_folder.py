"""Code is read only from where nobody else can put any."""

import os
from pathlib import Path

import pytest

from accum_sweeps.plan.errors import UserError
from accum_sweeps.record.files import own_folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root/sweeps/mine").mkdir(parents=True)
    return tmp_path / "root"


def test_it_is_made_for_its_owner_alone(root: Path) -> None:
    before = os.umask(0)
    try:
        made = own_folder(root / "sweeps/mine/submitit", root)
    finally:
        os.umask(before)
    assert made.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("place", ["", "sweeps", "sweeps/mine", "sweeps/mine/submitit"])
@pytest.mark.parametrize("mode", [0o775, 0o757, 0o777])
def test_a_folder_on_the_way_that_others_may_write_is_refused_by_name(root: Path, place: str, mode: int) -> None:
    for folder in ("", "sweeps", "sweeps/mine"):
        (root / folder).chmod(0o755)
    own_folder(root / "sweeps/mine/submitit", root)
    (root / place).chmod(mode)
    with pytest.raises(UserError) as error:
        own_folder(root / "sweeps/mine/submitit", root)
    assert str(error.value) == (
        f"root={root}: others may write {root / place}, and code is read from below it.\n  Take that away: chmod go-w {root / place}"
    )


def test_behind_a_door_that_is_shut_nothing_else_matters(root: Path) -> None:
    (root / "sweeps").chmod(0o777)
    root.chmod(0o700)
    own_folder(root / "sweeps/mine/submitit", root)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a folder to somebody else")
@pytest.mark.parametrize("place", ["", "sweeps/mine"])
def test_a_folder_of_somebody_else_is_refused(root: Path, place: str) -> None:
    for folder in ("", "sweeps", "sweeps/mine"):
        (root / folder).chmod(0o755)
    os.chown(root / place, 65534, 65534)
    with pytest.raises(UserError, match="is another user's, and code is read from below it"):
        own_folder(root / "sweeps/mine/submitit", root)
