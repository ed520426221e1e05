"""SLURM for the tests of this folder: real daemons on loopback, started when they are first asked for and stopped afterwards."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.cluster import PACKAGES, Cluster, Settings, missing

Make = Callable[..., Cluster]
FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if FOLDER in item.path.parents:
            item.add_marker(pytest.mark.slurm)


def _needs_slurm() -> None:
    if lacking := missing():
        pytest.skip(f"no SLURM to test with: {', '.join(lacking)} not found. As root: apt-get install --no-install-recommends {PACKAGES}")


@pytest.fixture(scope="module")
def make_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Make]:
    """Makes clusters by the settings of ``tests.slurm.cluster.Settings``; they end with the module."""
    _needs_slurm()
    made: list[Cluster] = []

    def make(**settings: Any) -> Cluster:
        folder = tmp_path_factory.mktemp("slurm")
        folder.parent.chmod(0o711)  # munge's socket is refused where others could not reach it
        made.append(Cluster(folder / "cluster", Settings(**settings)).start())
        return made[-1]

    yield make
    for cluster in made:
        cluster.close()


@pytest.fixture(scope="module")
def cluster(make_cluster: Make) -> Cluster:
    """Two nodes, no accounting, no jobs of others."""
    return make_cluster()


@pytest.fixture(scope="module")
def accounted_cluster(make_cluster: Make) -> Cluster:
    """Two nodes with slurmdbd on MariaDB."""
    return make_cluster(accounting=True)
