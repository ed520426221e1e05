"""Replays into MLflow on PostgreSQL: every point once, whoever else replays, and whatever breaks meanwhile."""

import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from accum_sweeps.record.mlflow_points import run_samples
from accum_sweeps.record.mlflow_sync import SyncReport, sync
from tests.record.replays import Sweep, forked, make_sweep
from tests.specs import make_spec
from tests.tracking.conftest import TrackingServer

Row = tuple[Any, ...]


@pytest.fixture
def experiment(request: pytest.FixtureRequest) -> str:
    """A test has an experiment of its own."""
    return str(request.node.name)[:200]


def replay(sweep: Sweep, server: TrackingServer, experiment: str, **options: Any) -> SyncReport:
    return sync(sweep.root.path, sweep.dir.name, server.uri, experiment, **options)


def logged(tmp_path: Path, name: str, seeds: range, steps: int = 60) -> Sweep:
    """A finished sweep with a run for each seed; each step has two points."""
    sweep = make_sweep(tmp_path, [make_spec(seed=seed, steps=steps) for seed in seeds], name)
    for spec in sweep.specs:
        sweep.log(spec, steps=range(1, steps + 1))
    return sweep


def arrived(server: TrackingServer, experiment: str) -> list[Row]:
    """run_id, key, step and time of every point in the experiment."""
    return sorted(
        server.query(
            "SELECT t.value, m.key, m.step, m.timestamp FROM metrics m JOIN runs r USING (run_uuid) JOIN tags t USING (run_uuid) "
            f"JOIN experiments e USING (experiment_id) WHERE e.name = '{experiment}' AND t.key = 'run_id' AND r.lifecycle_stage = 'active'"
        )
    )


def on_disk(*sweeps: Sweep) -> list[Row]:
    """The same of the run directories, by the rule that says which points MLflow gets."""
    found: list[Row] = []
    for sweep in sweeps:
        for spec in sweep.specs:
            kept = run_samples(sweep.run_dir(spec).history(), spec.setup.steps).samples
            found += [(spec.run_id, sample.key, sample.step, sample.time_ms) for sample in kept]
    return sorted(found)


def statuses(server: TrackingServer, experiment: str) -> dict[str, int]:
    return dict(
        server.query(
            "SELECT status, count(*) FROM runs r JOIN experiments e USING (experiment_id) "
            f"WHERE e.name = '{experiment}' AND r.lifecycle_stage = 'active' GROUP BY status"
        )
    )


def wait(*pids: int) -> None:
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * len(pids)


def test_every_point_arrives_once_and_again_changes_nothing(server: TrackingServer, tmp_path: Path, experiment: str) -> None:
    sweep = logged(tmp_path, "one", range(3))
    first = replay(sweep, server, experiment)
    assert first.is_complete and first.created == 3
    assert arrived(server, experiment) == on_disk(sweep) and statuses(server, experiment) == {"FINISHED": 4}
    assert replay(sweep, server, experiment).samples == 0


def test_four_at_a_time_of_different_sweeps_and_of_the_same_one_double_nothing(
    server: TrackingServer, tmp_path: Path, experiment: str
) -> None:
    sweeps = [logged(tmp_path / name, name, seeds) for name, seeds in (("a", range(0, 4)), ("b", range(4, 8)))]
    wait(*(forked(lambda sweep=sweep: replay(sweep, server, experiment)) for sweep in (*sweeps, *sweeps)))  # type: ignore[misc]
    assert arrived(server, experiment) == on_disk(*sweeps) and statuses(server, experiment) == {"FINISHED": 10}


def test_two_roots_that_share_a_run_id_have_a_run_each(server: TrackingServer, tmp_path: Path, experiment: str) -> None:
    sweeps = [logged(tmp_path / name, "same", range(2)) for name in ("here", "there")]
    for sweep in sweeps:
        assert replay(sweep, server, experiment).is_complete
    assert arrived(server, experiment) == on_disk(*sweeps)


def test_a_database_that_crashes_again_and_again_loses_and_doubles_nothing(server: TrackingServer, tmp_path: Path, experiment: str) -> None:
    sweep = logged(tmp_path, "crashing", range(40), steps=400)
    pid = forked(lambda: _until_complete(sweep, server, experiment))
    status = crashes = 0
    while not status and crashes < 5:
        time.sleep(0.5)
        server.crash_database()
        crashes += 1
        status, code = os.waitpid(pid, os.WNOHANG)
    assert crashes >= 3, "it was over before much broke"
    assert (os.waitpid(pid, 0)[1] if not status else code) == 0
    assert arrived(server, experiment) == on_disk(sweep) and statuses(server, experiment) == {"FINISHED": 41}


def _until_complete(sweep: Sweep, server: TrackingServer, experiment: str) -> None:
    until = time.monotonic() + 120
    while not replay(sweep, server, experiment).is_complete:
        assert time.monotonic() < until
        time.sleep(0.3)


@pytest.fixture
def stopped(server: TrackingServer) -> Iterator[TrackingServer]:
    """The server, away; it is back after the test."""
    server.stop()
    yield server
    if server.process is None:
        server.start()


def test_a_server_that_is_away_costs_seconds_and_gets_everything_later(stopped: TrackingServer, tmp_path: Path, experiment: str) -> None:
    sweep = logged(tmp_path, "later", range(2))
    began = time.monotonic()
    report = replay(sweep, stopped, experiment)
    assert time.monotonic() - began < 15 and not report.is_complete
    assert report.warning == "MLflow cannot be reached: connection refused"
    stopped.start()
    assert replay(sweep, stopped, experiment).is_complete
    assert arrived(stopped, experiment) == on_disk(sweep)


UGLY: dict[str, float] = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf, "loss[delta=1.3]": 1.5, "k" * 300: 2.0, "größe": 3.0}


def test_ugly_values_and_names_cost_none_of_the_others(server: TrackingServer, tmp_path: Path, experiment: str) -> None:
    sweep = make_sweep(tmp_path, [make_spec(seed=0, steps=20)], "ugly")
    sweep.log(sweep.specs[0], steps=range(1, 21), values={f"good{number}": float(number) for number in range(40)} | UGLY)
    report = replay(sweep, server, experiment)
    assert report.is_complete and report.altered
    assert len(arrived(server, experiment)) == len(on_disk(sweep)) == 20 * (40 + len(UGLY)) + 1
    assert arrived(server, experiment) == on_disk(sweep)
