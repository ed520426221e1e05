"""A user's program as a run, through execution: what it reports is recorded, whatever ends it."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from accum_sweeps.execute import Limits, execute
from accum_sweeps.plan.errors import UserError
from accum_sweeps.plan.spec import RunSpec
from accum_sweeps.record.metrics import StepRecord
from accum_sweeps.record.store import History, RunDir
from accum_sweeps.subjects import session
from tests.specs import make_spec

NONE = {"kind": "none", "name": "none"}
# A program that starts in milliseconds: the loss of step i is 10/i; it continues where its checkpoint says.
PROGRAM = """
import json, os, sys, time
from pathlib import Path
spec = json.load(open(sys.argv[1]))
behaviour = spec["subject"]["args"]
saved = Path(spec["checkpoint_dir"]) / "step"
done = int(saved.read_text()) if spec["resume"] else 0
with open(spec["metrics_path"], "a") as metrics:
    def log(step, key, value):
        print(json.dumps({"step": step, "key": key, "value": value}), file=metrics, flush=True)
    for step in range(done + 1, spec["steps"] + 1):
        log(step, "train_loss", 10 / step)
        log(step, "lr", spec["optimizer"]["lr"])
        exec(behaviour.get("attempt_%d" % spec["attempt"], "").replace("AT ", "if step == "))
        if step % 4 == 0 and step < spec["steps"]:
            saved.write_text(str(step))
            log(step, "checkpoint", 1)
    log(spec["steps"], "eval_loss", 2.5)
"""


def command_spec(*argv: str, steps: int = 10, accum: int = 1, **args: Any) -> RunSpec:
    subject = {"kind": "command", "name": "command", "argv": list(argv or (sys.executable, "program.py", "{spec}")), "args": args}
    return make_spec(subject=subject, model=NONE, data=NONE, steps=steps, accum=accum)


@pytest.fixture
def run_dir(project: Path, tmp_path: Path) -> RunDir:
    (project / "program.py").write_text(PROGRAM)
    return RunDir(tmp_path / "root" / "runs" / "environment")


def run(spec: RunSpec, run_dir: RunDir, attempt: int = 1, **limits: Any) -> str:
    return execute(spec, run_dir, attempt, {}, Limits(**limits))


def losses(history: History) -> dict[int, float]:
    points = [point for point in history.points() if "train_loss" in point.values]
    assert len(points) == len({point.step for point in points})
    return {point.step: point.values["train_loss"] for point in points}


def stop_at(step: int) -> dict[str, Any]:
    reached: list[StepRecord] = []
    return {
        "on_step": lambda record: reached.append(record) if record.step >= step else None,
        "stop": lambda: "asked to stop" if reached else None,
    }


def end_of(history: History) -> tuple[str | None, str]:
    newest = history.attempts[max(history.attempts)]
    return newest.outcome, newest.message


def test_what_a_program_reports_is_recorded_like_any_run(run_dir: RunDir) -> None:
    assert run(command_spec(accum=4), run_dir) == "finished"
    history = run_dir.history()
    assert losses(history) == {step: 10 / step for step in range(1, 11)}
    assert history.newest is not None
    final = history.newest.final
    assert (final["eval_loss_final"], final["train_loss_final"], final["steps"]) == (2.5, 1.0, 10)
    assert history.points()[0].values == {"train_loss": 10.0, "lr": 1e-3}


def test_the_program_finds_its_settings_in_the_json_file(run_dir: RunDir) -> None:
    spec = command_spec(accum=4, attempt_1="AT 1: print('SEEN', json.dumps({**spec, 'threads_seen': os.environ['OMP_NUM_THREADS']}))")
    assert run(spec, run_dir) == "finished"
    found = re.search("SEEN (.*)", run_dir.log_path(1).read_text())
    assert found is not None
    seen = json.loads(found[1])
    assert spec.to_dict().items() <= seen.items()
    assert (seen["micro_batch"], seen["attempt"], seen["resume"], seen["run_id"]) == (4, 1, False, spec.run_id)
    assert seen["threads_seen"] == "1"
    assert set(seen) - set(spec.to_dict()) == {
        "micro_batch", "metrics_path", "checkpoint_dir", "attempt", "resume", "run_id", "threads_seen",
    }  # fmt: skip


def test_a_stopped_program_continues_from_its_own_checkpoint(run_dir: RunDir) -> None:
    spec = command_spec(attempt_1="AT 7: time.sleep(60)")
    assert run(spec, run_dir, **stop_at(6)) == "released"
    assert run_dir.history().covered_step == 4
    assert run(spec, run_dir, 2) == "finished"
    history = run_dir.history()
    assert losses(history) == {step: 10 / step for step in range(1, 11)}
    assert [(attempt.number, until) for attempt, until in history.chain(2)] == [(1, 4), (2, None)]


def unseen(run_dir: RunDir, spec: RunSpec, reported: dict[int, dict[str, float]], recorded: int) -> None:
    """Leave attempt 1 as a worker that died when its program had reported more than it had recorded."""
    run_dir.create(spec, {})
    lines = [{"step": step, "key": key, "value": value} for step, values in reported.items() for key, value in values.items()]
    (run_dir.path / "metrics.1.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with run_dir.writer(1) as writer:
        writer.start(None, 0)
        for step in range(1, recorded + 1):
            writer.metrics(step, reported[step])


def test_steps_that_a_dead_worker_did_not_record_are_recorded_by_the_next(run_dir: RunDir) -> None:
    spec = command_spec()
    unseen(run_dir, spec, {step: {"train_loss": 100.0 + step} for step in range(1, 10)}, recorded=6)
    (run_dir.path / "checkpoints").mkdir()
    (run_dir.path / "checkpoints" / "step").write_text("8")
    assert run(spec, run_dir, 2) == "finished"
    history = run_dir.history()
    assert losses(history) == {step: 100.0 + step if step <= 8 else 10 / step for step in range(1, 11)}
    assert [(attempt.number, until) for attempt, until in history.chain(2)] == [(1, 6), (2, None)]


def test_a_program_without_checkpoints_starts_again(run_dir: RunDir) -> None:
    spec = command_spec(attempt_1="AT 3: sys.exit(3)", steps=3)
    assert run(spec, run_dir) == "failed"
    assert run(spec, run_dir, 2) == "finished"
    assert losses(run_dir.history()) == {1: 10.0, 2: 5.0, 3: 10 / 3}


def test_a_run_that_ended_unseen_is_finished_by_the_next_attempt(run_dir: RunDir) -> None:
    """The program had done it all when its worker died; now it finds nothing to do and says nothing."""
    spec = command_spec("sh", "-c", "true {spec}")
    reported = {step: {"train_loss": 10 / step} for step in range(1, 11)}
    reported[10]["eval_loss"] = 2.5
    unseen(run_dir, spec, reported, recorded=7)
    assert run(spec, run_dir, 2) == "finished"
    history = run_dir.history()
    assert losses(history) == {step: 10 / step for step in range(1, 11)}
    assert history.newest is not None and history.newest.final["eval_loss_final"] == 2.5


def test_an_exit_code_fails_the_run_and_quotes_the_last_lines(run_dir: RunDir) -> None:
    assert run(command_spec(attempt_1="AT 2: print('out of luck', file=sys.stderr); sys.exit(3)"), run_dir) == "failed"
    outcome, text = end_of(run_dir.history())
    assert outcome == "failed"
    assert text.startswith(f"{sys.executable} program.py {{spec}} ended with exit code 3; its last lines:") and "out of luck" in text
    assert "command.py" not in run_dir.log_path(1).read_text()  # no traceback of ours
    assert losses(run_dir.history()) == {1: 10.0, 2: 5.0}


def test_a_signal_is_named(run_dir: RunDir) -> None:
    assert run(command_spec(attempt_1="AT 2: os.kill(os.getpid(), 9)"), run_dir) == "failed"
    assert "program.py {spec} was ended by SIGKILL" in end_of(run_dir.history())[1]


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        ("AT 5: sys.exit()", "ended without eval_loss at its last step 5: it gave none"),
        ("AT 1: log(1, 'eval_loss', 3)\nAT 5: sys.exit()", "at its last step 5: its last one is of step 1"),
    ],
)
def test_a_program_must_report_eval_loss_at_its_end(run_dir: RunDir, behaviour: str, words: str) -> None:
    assert run(command_spec(attempt_1=behaviour), run_dir) == "failed"
    text = end_of(run_dir.history())[1]
    assert words in text and 'it must append {"step": 5, "key": "eval_loss", "value": ...} to metrics_path' in text


@pytest.mark.parametrize("key", ["train_loss", "eval_loss"])
def test_a_loss_that_is_not_finite_is_divergence_and_ends_the_program(run_dir: RunDir, key: str) -> None:
    behaviour = f"AT 3: log(4, '{key}', float('nan')); log(5, 'end', 0); time.sleep(60)"
    assert run(command_spec(attempt_1=behaviour), run_dir) == "diverged"
    newest = run_dir.history().newest
    assert newest is not None and newest.final["diverged_step"] == 4


def test_a_bad_line_is_reported_in_the_log_and_skipped(run_dir: RunDir) -> None:
    assert run(command_spec(attempt_1="AT 2: metrics.write('loss is 3\\n')"), run_dir) == "finished"
    assert "metrics.1.jsonl: line 5 skipped (Expecting value" in run_dir.log_path(1).read_text()
    assert len(losses(run_dir.history())) == 10


def test_a_request_to_stop_that_reached_the_program_first_is_no_failure(run_dir: RunDir) -> None:
    """SLURM signals every process of a job: the program may be gone before its worker looks."""

    seen: list[StepRecord] = []

    def stop() -> str | None:
        # Step 6 is complete only when the program has ended; the sign of life after it is the last chance to ask.
        return "preempted" if seen[-1].step == 6 and not seen[-1].values else None

    spec = command_spec(attempt_1="AT 6: os.kill(os.getpid(), 15)")
    assert run(spec, run_dir, stop=stop, on_step=seen.append) == "released"
    assert run(spec, run_dir, 2) == "finished"
    assert losses(run_dir.history()) == {step: 10 / step for step in range(1, 11)}


def test_a_program_that_is_not_there_fails_with_its_name(run_dir: RunDir) -> None:
    assert run(command_spec("./gone", "{spec}"), run_dir) == "failed"
    assert end_of(run_dir.history())[1] == "./gone {spec} ended with exit code 127; its last lines:\n  ./gone: No such file or directory"


def test_a_script_edited_after_planning_is_not_run(project: Path, run_dir: RunDir) -> None:
    subject = {"kind": "command", "name": "command", "argv": ["python", "program.py", "{spec}"], "code_hash": "0" * 20}
    with pytest.raises(UserError, match=r"python program.py \{spec\} changed since the sweep was planned"):
        session(make_spec(subject=subject, model=NONE, data=NONE), run_dir.path, 1)


def test_a_killed_worker_leaves_no_program(run_dir: RunDir) -> None:
    spec = command_spec(attempt_1="AT 3: print('PID', os.getpid(), flush=True); time.sleep(60)")
    run_dir.create(spec, {})
    worker = (
        "import json; from pathlib import Path; from accum_sweeps.plan.spec import from_dict; from accum_sweeps.subjects import session\n"
        f"folder = Path({str(run_dir.path)!r})\n"
        "for record in session(from_dict(json.loads((folder / 'spec.json').read_text())), folder, 1).steps(): pass"
    )
    with subprocess.Popen([sys.executable, "-c", worker], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        program = psutil.Process(int(process.stdout.readline().split()[1]))
        os.kill(process.pid, signal.SIGKILL)
    psutil.wait_procs([program], timeout=20)
    assert not program.is_running()


def test_the_example_trains_and_continues_with_the_same_numbers(examples: Path, tmp_path: Path) -> None:
    subject = {"kind": "command", "name": "command", "argv": ["python", "train.py", "{spec}"]}
    spec = make_spec(subject=subject, model=NONE, data=NONE, steps=25, accum=4, **{"optimizer.lr": 5e-3})
    first, second = ({r.step: r.values for r in session(spec, tmp_path, attempt).steps() if r.values} for attempt in (1, 2))
    assert list(first) == list(range(1, 26))
    assert first[1]["train_loss"] > 5.3 and first[25]["eval_loss"] < 4.6  # ln 256 = 5.55
    trained_twice = {json.loads(line)["step"] for line in (tmp_path / "metrics.2.jsonl").read_text().splitlines()}
    assert trained_twice == {21, 22, 23, 24, 25}
    assert second == first
