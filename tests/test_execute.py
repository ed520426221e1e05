"""Execution drives any session and leaves a run directory that tells the truth, whatever happens."""

import errno
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accum_sweeps import execute as execute_module
from accum_sweeps.execute import Limits, execute
from accum_sweeps.plan.errors import UserError
from accum_sweeps.record.events import read_tail
from accum_sweeps.record.metrics import StepRecord
from accum_sweeps.record.sketches import load_sketches
from accum_sweeps.record.store import RunDir, open_root
from tests.specs import make_spec

SPEC = make_spec(steps=10)


@dataclass
class Scripted:
    """A session whose loss at a step is 1/step; ``at`` holds what else happens at a step."""

    at: dict[int, Any] = field(default_factory=dict)
    keeps_own_checkpoints: bool = False
    position: int = 0

    def steps(self) -> Iterator[StepRecord]:
        for step in range(self.position + 1, SPEC.setup.steps + 1):
            event = self.at.get(step)
            if isinstance(event, Exception):
                raise event
            self.position = step
            values = {"train_loss": math.nan if event == "diverge" else 1 / step, "tokens": 100.0 * step}
            values |= {"accuracy": step / 100} if step < 10 else {}
            values |= {"eval_loss": 2 / step, "eval_loss_ema": 3 / step} if step % 5 == 0 else {}
            sketch = np.full(4096, float(step)) if step in (1, 10) else None
            yield StepRecord(step=step, values=values, sketch=sketch, weights_hash=f"h{step}", is_diverged=event == "diverge")

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(self.position))

    def load(self, path: Path) -> int:
        self.position = json.loads(path.read_text())
        return self.position


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    return open_root(tmp_path / "root", create=True).run_dir(SPEC.run_id, "e" * 12)


def run(run_dir: RunDir, attempt: int, monkeypatch: pytest.MonkeyPatch, at: dict[int, Any] | None = None, **limits: Any) -> str:
    monkeypatch.setattr(execute_module, "make_session", lambda *_: Scripted(at or {}))
    return execute(SPEC, run_dir, attempt, {"torch": "x"}, Limits(**limits))


def test_a_finished_run_holds_its_curve_finals_and_sketches(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(run_dir, 1, monkeypatch) == "finished"
    history = run_dir.history()
    assert [p.step for p in history.points()] == list(range(1, 11))
    assert history.newest is not None
    final = history.newest.final
    assert (final["steps"], final["train_loss_final"], final["eval_loss_final"], final["tokens"]) == (10, 0.1, 0.2, 1000)
    assert (final["eval_perplexity_final"], final["eval_loss_ema_final"]) == (math.exp(0.2), 0.3)
    assert final["accuracy_final"] == 0.09  # a metric of the subject's own: its last value
    assert final["train_loss_area"] == pytest.approx(sum(1 / s for s in range(1, 11)) / 10, rel=1e-15)
    assert {step: digest for step, (_, digest) in load_sketches(run_dir.sketches_path(1)).by_step.items()} == {1: "h1", 10: "h10"}
    assert run_dir.read_spec() == SPEC


def test_a_stopped_run_continues_with_nothing_lost_or_doubled(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    stop = lambda: "asked to stop" if len(seen) == 4 else None  # noqa: E731
    assert run(run_dir, 1, monkeypatch, stop=stop, on_step=lambda record: seen.append(record.step)) == "released"
    assert run_dir.history().covered_step == 4
    assert run(run_dir, 2, monkeypatch) == "finished"
    history = run_dir.history()
    assert [p.step for p in history.points()] == list(range(1, 11))
    assert history.newest is not None and (history.newest.from_attempt, history.newest.from_step) == (1, 4)
    assert history.newest.final["train_loss_area"] == pytest.approx(sum(1 / s for s in range(1, 11)) / 10, rel=1e-15)
    assert sorted(load_sketches(run_dir.sketches_path(2)).by_step) == [1, 10]


def test_a_failure_is_told_with_its_traceback_and_costs_only_what_no_checkpoint_covers(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(run_dir, 1, monkeypatch, {8: ValueError("no such row")}, checkpoint_every=3) == "failed"
    history = run_dir.history()
    assert history.newest is not None
    assert (history.outcome, history.newest.message, history.covered_step) == ("failed", "ValueError: no such row", 6)
    assert "Traceback" in run_dir.log_path(1).read_text()
    assert run(run_dir, 2, monkeypatch) == "finished"
    assert [(a.number, until) for a, until in run_dir.history().chain(2)] == [(1, 6), (2, None)]


def test_a_users_mistake_has_no_traceback(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(run_dir, 1, monkeypatch, {1: UserError("the corpus changed")}) == "failed"
    assert run_dir.log_path(1).read_text() == "the corpus changed\n"


def test_divergence_is_an_outcome(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(run_dir, 1, monkeypatch, {6: "diverge"}) == "diverged"
    newest = run_dir.history().newest
    assert newest is not None and newest.final["diverged_step"] == 6
    assert math.isnan(newest.final["train_loss_final"]) and "eval_loss_final" not in newest.final


def test_an_unreadable_checkpoint_is_passed_over_for_an_older_one(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    run(run_dir, 1, monkeypatch, {5: ValueError("x")}, checkpoint_every=2)
    run(run_dir, 2, monkeypatch, {8: ValueError("x")}, checkpoint_every=2)
    run_dir.checkpoint_path(2).write_text("torn")
    assert run(run_dir, 3, monkeypatch) == "finished"
    newest = run_dir.history().newest
    assert newest is not None and (newest.from_attempt, newest.from_step) == (1, 4)
    assert [p.step for p in run_dir.history().points()] == list(range(1, 11))
    assert "cannot be used" in run_dir.log_path(3).read_text()


def test_the_runs_time_limit_fails_it_with_a_checkpoint(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(run_dir, 1, monkeypatch, run_limit_s=0.0) == "failed"
    history = run_dir.history()
    assert history.newest is not None and "time limit" in history.newest.message and history.covered_step == 1


def test_a_full_disk_is_nobodys_failure(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OSError, match="No space left"):
        run(run_dir, 1, monkeypatch, {3: OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))})
    assert run_dir.history().outcome is None


def test_a_subject_with_its_own_checkpoints_says_where_it_continues(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Scripted({7: ValueError("crash")}, keeps_own_checkpoints=True)
    monkeypatch.setattr(execute_module, "make_session", lambda *_: first)
    execute(SPEC, run_dir, 1, {}, Limits())
    monkeypatch.setattr(execute_module, "make_session", lambda *_: Scripted({}, keeps_own_checkpoints=True, position=4))
    assert execute(SPEC, run_dir, 2, {}, Limits()) == "finished"
    newest = run_dir.history().newest
    assert newest is not None and (newest.from_attempt, newest.from_step) == (1, 4)
    assert [p.step for p in run_dir.history().points()] == list(range(1, 11))


def test_output_of_the_process_and_its_children_goes_to_the_attempts_log(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    def speak(record: StepRecord) -> None:
        if record.step == 1:
            print("from python")
            subprocess.run([sys.executable, "-c", "import sys; print('from a child', file=sys.stderr)"], check=True)

    run(run_dir, 1, monkeypatch, on_step=speak)
    assert sorted(run_dir.log_path(1).read_text().splitlines()) == ["from a child", "from python"]


def test_a_checkpoint_covers_points_and_sketches_from_the_moment_it_is_there(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    class Dying(Scripted):
        def save(self, path: Path) -> None:
            super().save(path)
            os._exit(9)  # killed between the checkpoint and the event that tells of it

    if (pid := os.fork()) == 0:
        monkeypatch.setattr(execute_module, "make_session", lambda *_: Dying())
        execute(SPEC, run_dir, 1, {}, Limits(checkpoint_every=4))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    assert run(run_dir, 2, monkeypatch) == "finished"
    history = run_dir.history()
    assert history.newest is not None and (history.newest.from_attempt, history.newest.from_step) == (1, 4)
    assert [p.step for p in history.points()] == list(range(1, 11))
    assert sorted(load_sketches(run_dir.sketches_path(2)).by_step) == [1, 10]


def test_a_checkpoint_that_fails_half_way_leaves_nothing_behind(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    class HalfLoaded(Scripted):
        def load(self, path: Path) -> int:
            super().load(path)  # the position is taken over ...
            raise RuntimeError("the optimizer's state is of another shape")

    run(run_dir, 1, monkeypatch, {8: ValueError("x")}, checkpoint_every=3)
    monkeypatch.setattr(execute_module, "make_session", lambda *_: HalfLoaded())
    assert execute(SPEC, run_dir, 2, {}, Limits()) == "finished"
    newest = run_dir.history().newest
    assert newest is not None and newest.from_attempt is None
    assert [p.step for p in newest.points] == list(range(1, 11))


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04 torn"])
def test_damaged_sketches_cost_the_checkpoint_they_belong_to(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    run(run_dir, 1, monkeypatch, {8: ValueError("x")}, checkpoint_every=3)
    run_dir.sketches_path(1).write_bytes(content)
    assert run(run_dir, 2, monkeypatch) == "finished"
    assert sorted(load_sketches(run_dir.sketches_path(2)).by_step) == [1, 10]
    assert "cannot be used" in run_dir.log_path(2).read_text()


def test_an_owner_that_was_taken_over_leaves_the_checkpoints_alone(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    run(run_dir, 1, monkeypatch, {8: ValueError("x")}, checkpoint_every=3)
    run_dir.checkpoint_path(3).write_text("6")
    (run_dir.path.parent / "claim.3").touch()
    assert run(run_dir, 2, monkeypatch) == "finished"
    assert run_dir.checkpoint_path(1).exists() and run_dir.checkpoint_path(3).exists()


def test_the_environment_file_tells_fingerprint_release_command_and_host(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute_module, "make_session", lambda *_: Scripted())
    execute(SPEC, run_dir, 1, {"torch": "x"}, Limits(), command="c", git_commit="g", host="h", pid=1)
    found = run_dir.read_environment()
    assert {key: found[key] for key in ("torch", "command", "git_commit", "host")} == {
        "torch": "x",
        "command": "c",
        "git_commit": "g",
        "host": "h",
    }
    assert found["accum_sweeps"]


def test_a_run_with_a_thousand_metrics_of_its_own_is_known_to_be_finished(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    class Talkative(Scripted):
        def steps(self) -> Iterator[StepRecord]:
            yield StepRecord(step=10, values={"eval_loss": 1.0, **{f"accuracy_of_class_{i}": i / 3 for i in range(1000)}})

    monkeypatch.setattr(execute_module, "make_session", lambda *_: Talkative())
    assert execute(SPEC, run_dir, 1, {}, Limits()) == "finished"
    tail = read_tail(run_dir.events_path(1), 1)
    assert (tail.outcome, tail.step, len(tail.final)) == ("finished", 10, 1005)
