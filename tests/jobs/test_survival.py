"""Commands and workers that are stopped, killed or put to sleep: nothing is lost, nothing is left behind."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from accum_sweeps.jobs.status import cancel, sweep_status
from accum_sweeps.record.state import run_state
from accum_sweeps.record.store import RootDir
from accum_sweeps.record.sweep import Plan
from tests.jobs.sweeps import make_sweep, seeds, start_command
from tests.pace import slowness

SLOW = {"step_s": 0.1}
LONG = 60  # steps: SLOW runs of so many are still running when a command is stopped, however busy the machine is


def wait_until(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    until = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.05)
    return value


def processes(folder: Path) -> list[int]:
    """Everything that was started for a root: submitit names its folder in the command line."""
    found = []
    for process in psutil.process_iter():
        try:
            if any(str(folder / "sweeps") in part for part in process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for path in folder.glob("sweeps/*/workers/*.jsonl") for line in path.read_text().splitlines()]
    return [line for line in lines if line["event"] == kind]


def running_steps(root: RootDir, plan: Plan) -> list[int]:
    states = [run_state(root, run.run_id) for run in plan.runs]
    return [state.step for state in states if state.status == "running"]


def finish(command: "subprocess.Popen[str]") -> dict[str, Any]:
    output, errors = command.communicate(timeout=60)
    assert command.returncode == 0, errors
    return dict(json.loads(output.splitlines()[-1]))


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "root"
    yield folder
    for pid in processes(folder):  # of a test that failed
        os.kill(pid, signal.SIGKILL)


def assert_all_continue(folder: Path, root: RootDir, plan: Plan) -> None:
    """The same command again finishes everything, from where it stopped."""
    continued = [run.run_id for run in plan.runs if run_state(root, run.run_id).step >= 2]
    assert continued
    result = finish(start_command(folder))
    assert result["counts"] == {"finished": len(plan.runs)}
    for run_id in continued:
        state = run_state(root, run_id)
        history = root.run_dir(run_id, state.env_id).history()
        assert [point.step for point in history.points()] == list(range(1, plan.setups[0].steps + 1)), "each step once"
        assert len([a for a in history.attempts.values() if a.from_step >= 2]) == 1, "it went on from its checkpoint"


def test_a_killed_command_leaves_no_process_and_its_runs_continue(folder: Path) -> None:
    root, _, plan = make_sweep(folder, seeds(4, steps=LONG))
    command = start_command(folder, fake=SLOW)
    wait_until(lambda: len(running_steps(root, plan)) == 2 and min(running_steps(root, plan)) >= 2)
    command.kill()
    command.communicate()
    wait_until(lambda: not processes(folder), 8.0)
    states = [run_state(root, run.run_id) for run in plan.runs]
    assert [s.status for s in states] == ["planned"] * 4
    assert {s.reason for s in states if s.step} == {"stopped by SIGTERM"}
    assert_all_continue(folder, root, plan)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_stopped_command_saves_what_runs_and_goes(folder: Path, number: signal.Signals) -> None:
    root, _, plan = make_sweep(folder, seeds(4, steps=LONG))
    command = start_command(folder, fake=SLOW)
    wait_until(lambda: len(running_steps(root, plan)) == 2 and min(running_steps(root, plan)) >= 2)
    began = time.monotonic()
    command.send_signal(number)
    result = finish(command)
    assert time.monotonic() - began < 8 * slowness()
    assert result["interrupted"] and result["counts"] == {"planned": 4}
    assert not processes(folder)
    assert_all_continue(folder, root, plan)


def test_ctrl_c_reaches_a_whole_terminal_and_no_worker_is_cut_off(folder: Path) -> None:
    root, _, plan = make_sweep(folder, seeds(2, steps=LONG))
    command = start_command(folder, fake=SLOW)
    wait_until(lambda: len(running_steps(root, plan)) == 2 and min(running_steps(root, plan)) >= 2)
    os.killpg(command.pid, signal.SIGINT)
    assert finish(command)["counts"] == {"planned": 2}
    assert not processes(folder)
    assert all(run_state(root, run.run_id).outcome == "released" for run in plan.runs)


def test_under_nohup_a_closed_terminal_stops_nothing(folder: Path) -> None:
    root, _, plan = make_sweep(folder, seeds(2))
    command = start_command(folder, fake=SLOW, before=("nohup",))
    wait_until(lambda: running_steps(root, plan))
    os.killpg(command.pid, signal.SIGHUP)
    assert finish(command)["counts"] == {"finished": 2}
    assert all(run_state(root, run.run_id).attempt == 1 for run in plan.runs)


def test_a_worker_that_does_not_stop_is_killed_after_its_grace(folder: Path) -> None:
    root, _, plan = make_sweep(folder, seeds(1))
    command = start_command(folder, fake={"by_seed": {"0": "hang"}}, stop_grace_s=1.0)
    wait_until(lambda: running_steps(root, plan))
    time.sleep(0.3)
    command.send_signal(signal.SIGINT)
    assert finish(command)["counts"] == {"lost": 1}
    assert "did not stop within 1 s" in run_state(root, plan.runs[0].run_id).reason
    assert not processes(folder)


@pytest.mark.parametrize("victim", ["worker", "supervisor", "controller"])
def test_a_killed_process_costs_one_attempt_at_most(folder: Path, victim: str) -> None:
    root, _, _ = make_sweep(folder, seeds(4))
    command = start_command(folder, fake=SLOW)
    claimed = wait_until(lambda: events(folder, "claimed"))[0]
    job = next(event for event in events(folder, "job") if event["job"] == run_state(root, claimed["run"]).claim["job"])
    pid = {"worker": run_state(root, claimed["run"]).claim["pid"], "supervisor": job["pid"], "controller": int(job["job"])}[victim]
    wait_until(lambda: run_state(root, claimed["run"]).step >= 2)
    os.kill(pid, signal.SIGKILL)
    assert finish(command)["counts"] == {"finished": 4}
    assert run_state(root, claimed["run"]).attempt == (1 if victim == "controller" else 2)
    assert not processes(folder)


def test_a_sleeping_worker_loses_its_run_and_notices(folder: Path) -> None:
    root, _, plan = make_sweep(folder, seeds(1))
    first = start_command(folder, fake={"step_s": 0.3}, slots=1, expiry_s=1.0)
    wait_until(lambda: running_steps(root, plan) and running_steps(root, plan)[0] >= 2)
    run_id = plan.runs[0].run_id
    sleeper = run_state(root, run_id).claim["pid"]
    os.kill(sleeper, signal.SIGSTOP)
    second = start_command(folder, slots=1)
    wait_until(lambda: run_state(root, run_id).attempt == 2)
    os.kill(sleeper, signal.SIGCONT)
    assert finish(second)["counts"] == {"finished": 1}
    assert finish(first)["counts"] == {"finished": 1}
    history = root.run_dir(run_id, "e" * 12).history()
    assert history.attempts[1].outcome == "released" and history.attempts[1].message == "attempt 2 has taken the run over"
    assert history.attempts[1].step < 10, "it did not go on to the end"
    assert sorted(history.attempts) == [1, 2]


def test_a_second_command_joins_and_both_wait_for_the_end(folder: Path, tmp_path: Path) -> None:
    root, _, plan = make_sweep(folder, seeds(6))
    script = {"step_s": 0.05, "trace": str(tmp_path / "trace")}
    commands = [start_command(folder, fake=script, slots=1) for _ in range(2)]
    assert [finish(command)["counts"] for command in commands] == [{"finished": 6}] * 2
    lines = [json.loads(line) for line in (tmp_path / "trace").read_text().splitlines()]
    assert sorted(line["run"] for line in lines) == sorted(run.run_id for run in plan.runs), "each run once"
    for core in {tuple(line["cores"]) for line in lines}:
        assert len({line["pid"] for line in lines if tuple(line["cores"]) == core}) == 1, "nobody shares a core"
    assert all(run_state(root, run.run_id).attempt == 1 for run in plan.runs)


def test_cancel_stops_one_sweep_and_no_other(folder: Path) -> None:
    root, sweep, plan = make_sweep(folder, seeds(4), name="one")
    _, other, _ = make_sweep(folder, seeds(2, first=100), name="two")
    commands = [start_command(folder, name=name, fake=SLOW, slots=1) for name in ("one", "two")]
    wait_until(lambda: running_steps(root, plan))
    assert cancel(sweep, wait_s=10) == 0
    finish(commands[0])
    assert set(sweep_status(sweep).counts) <= {"cancelled", "finished"} and sweep_status(sweep).counts["cancelled"] >= 3
    assert finish(commands[1])["counts"] == {"finished": 2}
    assert sweep_status(other).counts == {"finished": 2}
    sweep.set_cancelled(False)
    assert finish(start_command(folder, name="one"))["counts"] == {"finished": 4}
