"""Sweeps run through submitit's local executor, with real processes and a scripted training."""

import itertools
import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from accum_sweeps.jobs.board import Board
from accum_sweeps.jobs.dispatch import DispatchResult, dispatch
from accum_sweeps.jobs.slots import Slot, SlotPool, usable_cores
from accum_sweeps.plan.errors import ConfigError, UserError
from tests.jobs.sweeps import ENGINE, fast, make_sweep, seeds
from tests.specs import make_spec

Fake = Callable[..., None]


def run(folder: Path, specs: list[Any], *, reuse: str = "strict", on_progress: Any = lambda board: None, **launcher: Any) -> DispatchResult:
    root, sweep, plan = make_sweep(folder, specs)
    return dispatch(root, sweep, plan, fast(**launcher), reuse=reuse, on_progress=on_progress, engine=ENGINE)


def journal(folder: Path) -> list[dict[str, Any]]:
    """All lines of all workers."""
    return [json.loads(line) for path in sorted(folder.glob("sweeps/*/workers/*.jsonl")) for line in path.read_text().splitlines()]


def trace(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("kind", ["local", "inline"])
def test_all_runs_are_done_once_and_not_again(tmp_path: Path, fake: Fake, kind: str) -> None:
    fake(trace=tmp_path / "trace")
    assert run(tmp_path / "root", seeds(6), kind=kind).counts == {"finished": 6}
    assert len(trace(tmp_path / "trace")) == 6
    assert run(tmp_path / "root", seeds(6), kind=kind).counts == {"finished": 6}
    assert len(trace(tmp_path / "trace")) == 6, "typed again, nothing is trained"
    assert run(tmp_path / "root", seeds(8), kind=kind).counts == {"finished": 8}
    assert len(trace(tmp_path / "trace")) == 8, "two seeds more are two trainings"
    assert {line["threads"] for line in trace(tmp_path / "trace")} == {"1"}


@pytest.mark.parametrize("kind", ["local", "inline"])
def test_an_attempt_names_the_command_that_started_it_not_the_one_that_planned_it(tmp_path: Path, fake: Fake, kind: str) -> None:
    fake()
    root, sweep, plan = make_sweep(tmp_path / "root", seeds(1))
    assert plan.header["command"] == "test"
    facts = {"command": "the second", "git_commit": "abc"}
    dispatch(root, sweep, plan, fast(kind=kind), engine=ENGINE, facts=facts)
    events = root.run_dir(plan.runs[0].run_id, "e" * 12).events_path(1)
    first = json.loads(events.read_text().splitlines()[0])
    assert first["event"] == "start" and {key: first[key] for key in facts} == facts


def test_no_gpu_is_ever_shared(tmp_path: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    fake(trace=tmp_path / "trace", step_s=0.02)
    assert run(tmp_path / "root", seeds(20, device="cuda"), slots=[0, 1]).counts == {"finished": 20}
    spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for line in trace(tmp_path / "trace"):
        spans[line["gpu"]].append((line["from"], line["to"]))
    assert sorted(spans) == ["0", "1"] and min(map(len, spans.values())) >= 2, "both were used"
    for of_one in spans.values():
        of_one.sort()
        assert all(former[1] <= later[0] for former, later in itertools.pairwise(of_one))


def test_one_failure_stops_nothing_and_is_told(tmp_path: Path, fake: Fake) -> None:
    fake(by_seed={"1": "raise", "2": "exit", "3": "once-segfault", "4": "diverge", "5": "once-raise"})
    notes: list[str] = []
    result = run(tmp_path / "root", seeds(10), on_progress=lambda board: notes.extend(board.notes[len(notes) :]))
    assert result.counts == {"finished": 7, "diverged": 1, "failed": 1, "lost": 1}
    failed = {run.name: run for run in result.failed}
    assert failed["fp32 k=1 s=1"].reason == "ValueError: scripted trouble"
    assert 'raise ValueError("scripted trouble")' in failed["fp32 k=1 s=1"].log.read_text()
    assert failed["fp32 k=1 s=2"].reason == "its worker ended with exit code 7"
    assert any("s=3: its worker was killed by SIGSEGV" in note for note in notes), "said while the sweep runs"
    assert any("s=1: failed: ValueError: scripted trouble" in note for note in notes)
    assert sum(event["event"] == "claimed" for event in journal(tmp_path / "root")) == 14, "two attempts for each of four runs"
    ended = [path.read_text() for path in (tmp_path / "root").glob("sweeps/s/submitit/*/*_log.out")]
    assert any("RunsFailedError" in text for text in ended), "the job ends as failed"
    again = run(tmp_path / "root", seeds(10))
    assert again.counts == result.counts, "typed again, failed runs have new attempts"
    assert sum(event["event"] == "claimed" for event in journal(tmp_path / "root")) == 18


def test_a_run_that_hangs_is_stopped_at_its_limit(tmp_path: Path, fake: Fake) -> None:
    fake(by_seed={"0": "hang"})
    result = run(tmp_path / "root", seeds(3), run_limit_min=0.01, stop_grace_s=0.5, max_attempts=1)
    assert result.counts == {"finished": 2, "lost": 1}
    assert "time limit of 0.01 min is over and it did not stop" in result.failed[0].reason
    assert "in misbehave" in result.failed[0].log.read_text(), "its log says where it hung"


def test_a_run_over_its_limit_that_still_steps_fails(tmp_path: Path, fake: Fake) -> None:
    fake(step_s=0.1)
    result = run(tmp_path / "root", seeds(1), run_limit_min=0.005, max_attempts=1)
    assert result.counts == {"failed": 1} and "time limit" in result.failed[0].reason


def test_runs_per_job_bounds_a_worker_and_nothing_is_left(tmp_path: Path, fake: Fake) -> None:
    fake()
    assert run(tmp_path / "root", seeds(5), runs_per_job=2, slots=1).counts == {"finished": 5}
    taken: dict[str, int] = defaultdict(int)
    for path in (tmp_path / "root").glob("sweeps/*/workers/*.jsonl"):
        taken[path.name] = path.read_text().count('"claimed"')
    assert sorted(taken.values()) == [1, 2, 2]


def test_a_full_disk_ends_the_sweep_and_says_how_to_go_on(tmp_path: Path, fake: Fake) -> None:
    fake(by_seed={"0": "full"})
    result = run(tmp_path / "root", seeds(4), slots=1)
    assert "no space left" in result.error and "type the same command" in result.error
    fake()
    assert run(tmp_path / "root", seeds(4)).counts == {"finished": 4}


def test_another_environment_does_the_runs_again_unless_told_otherwise(tmp_path: Path, fake: Fake) -> None:
    fake(env_id="a" * 12)
    run(tmp_path / "root", seeds(3))
    fake(env_id="b" * 12, trace=tmp_path / "trace")
    for reuse in ("any", "warn"):
        result = run(tmp_path / "root", seeds(4), reuse=reuse)
        assert result.counts == {"finished": 4}
    assert len(trace(tmp_path / "trace")) == 1, "only the new seed"
    assert any("3 runs are taken from another environment" in note for note in result.notes) == (reuse == "warn")
    result = run(tmp_path / "root", seeds(4))
    assert result.counts == {"finished": 4} and len(trace(tmp_path / "trace")) == 4
    assert any("3 runs were done in another environment" in note for note in result.notes)
    assert result.env_ids == ("b" * 12,)


def test_runs_that_need_other_threads_get_other_workers(tmp_path: Path, fake: Fake) -> None:
    fake(trace=tmp_path / "trace")
    specs = [*seeds(2), *seeds(2, threads=2), *seeds(1, deterministic=False)]
    assert run(tmp_path / "root", specs).counts == {"finished": 5}
    lines = trace(tmp_path / "trace")
    assert sorted(line["threads"] for line in lines) == ["1", "1", "1", "2", "2"]
    threads_of_worker = {line["pid"]: line["threads"] for line in lines}
    assert all(threads_of_worker[line["pid"]] == line["threads"] for line in lines)
    assert all(len(line["cores"]) <= int(line["threads"]) for line in lines), "each is confined to its cores"


def test_a_damaged_run_is_named_and_done_again(tmp_path: Path, fake: Fake) -> None:
    fake()
    folder = tmp_path / "root"
    run(folder, seeds(3))
    root, _, plan = make_sweep(folder, seeds(3))
    spoiled, removed = plan.runs[0].run_id, plan.runs[1].run_id
    (root.run_dir(spoiled, "e" * 12).path / "spec.json").write_text("{")
    root.run_folder(removed).rename(folder / "elsewhere")
    root.run_folder(removed).write_text("not a folder")
    result = run(folder, seeds(3))
    assert result.counts == {"finished": 3}
    assert any(spoiled in note and ".damaged-1" in note for note in result.notes)
    assert any(f"{removed}: is not a folder" in note for note in result.notes)
    assert root.run_dir(spoiled, "e" * 12).read_spec() == seeds(3)[0]


def test_deleted_claims_cost_a_new_attempt_and_mix_nothing(tmp_path: Path, fake: Fake) -> None:
    fake()
    run(tmp_path / "root", seeds(1), kind="inline")
    root, _, plan = make_sweep(tmp_path / "root", seeds(1))
    run_id = plan.runs[0].run_id
    (root.run_folder(run_id) / "claim.1").unlink()
    run_dir = root.run_dir(run_id, "e" * 12)
    before = run_dir.events_path(1).read_bytes()
    assert run(tmp_path / "root", seeds(1), kind="inline").counts == {"finished": 1}
    assert run_dir.attempts() == [1, 2] and run_dir.events_path(1).read_bytes() == before


def test_workers_that_cannot_start_end_the_sweep(tmp_path: Path, fake: Fake) -> None:
    root, sweep, plan = make_sweep(tmp_path / "root", seeds(3))
    result = dispatch(root, sweep, plan, fast(), engine="tests.jobs.no_such_engine")
    assert result.counts == {"planned": 3} and "workers die before they take a run" in result.error
    assert "no_such_engine" in result.error


def test_what_cannot_work_is_refused_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"did you mean strict\?"):
        run(tmp_path / "root", seeds(1), reuse="strikt")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(UserError, match="no GPU found"):
        run(tmp_path / "root", seeds(1, device="cuda"))
    assert not list((tmp_path / "root").glob("sweeps/s/submitit/*"))


def test_arms_of_a_seed_run_near_in_time(tmp_path: Path, fake: Fake) -> None:
    fake()
    specs = [make_spec(accum=accum, dtype=dtype, seed=seed) for accum in (1, 4) for dtype in ("fp32", "fp64") for seed in (5, 3)]
    run(tmp_path / "root", specs, slots=1)
    by_id = {spec.run_id: spec for spec in specs}
    order = [by_id[event["run"]] for event in journal(tmp_path / "root") if event["event"] == "claimed"]
    assert [(s.seed, s.setup.dtype, s.accum) for s in order] == [(s, d, k) for s in (5, 3) for d in ("fp32", "fp64") for k in (1, 4)]


def test_the_board_knows_what_runs_where(tmp_path: Path, fake: Fake) -> None:
    fake(step_s=0.15)
    seen: list[tuple[str, int, str]] = []

    def look(board: Board) -> None:
        seen.extend((board.name_of(r.run_id), r.step, r.slot) for r in board.running.values())

    run(tmp_path / "root", seeds(1), on_progress=look)
    assert {name for name, _, _ in seen} == {"fp32 k=1 s=0"}
    assert max(step for _, step, _ in seen) >= 3
    assert all(slot.startswith("core ") for _, _, slot in seen)


def test_a_worker_that_waits_for_a_slot_says_so_and_does_not_hold_up_the_end(tmp_path: Path, fake: Fake) -> None:
    fake(step_s=0.02)
    cores = usable_cores()[:2]
    taken = Slot(SlotPool("core", cores[1:], 1, 1))
    assert taken.try_acquire(), "as if another command used this core"
    said: set[str] = set()
    result = run(tmp_path / "root", seeds(4), on_progress=lambda board: said.update(board.waiting.values()), slots=[int(c) for c in cores])
    assert result.counts == {"finished": 4}
    assert any("no free core" in reason for reason in said)
    taken.release()
