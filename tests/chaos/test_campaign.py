"""The fault campaign in short: each event once. ``make chaos`` is the long form."""

import tempfile
from pathlib import Path

import pytest

from accum_sweeps.plan.errors import UserError
from accum_sweeps.record.server import programs
from tests.chaos.campaign import campaign
from tests.chaos.events import EVENTS
from tests.slurm.cluster import PACKAGES, missing


@pytest.mark.slurm
@pytest.mark.timeout(1800)
def test_after_each_event_the_same_command_ends_the_sweep_and_nothing_is_lost() -> None:
    if lacking := missing():
        pytest.skip(f"{', '.join(lacking)} not found. As root: apt-get install --no-install-recommends {PACKAGES}")
    try:
        programs()
    except UserError as error:
        pytest.skip(str(error))
    # Not below pytest's folders, which let nobody through: PostgreSQL is not run by root.
    with tempfile.TemporaryDirectory(prefix="accum_sweeps_chaos_") as folder:
        Path(folder).chmod(0o711)
        result = campaign(Path(folder), len(EVENTS), seed=2)
    assert result.losses == []
    assert sum(result.rounds.values()) == len(EVENTS) == len(result.rounds)
