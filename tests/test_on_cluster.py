"""What the command says of a sweep's jobs on a cluster."""

from pathlib import Path

from accum_sweeps.jobs.dispatch import DispatchResult
from accum_sweeps.jobs.slurm_ask import JobRow
from accum_sweeps.jobs.slurm_queue import Answer, SlurmQueue
from accum_sweeps.on_cluster import jobs_of, jobs_text, submitted_text
from tests.jobs.sweeps import make_sweep, seeds


def test_jobs_are_told_by_state_with_slurms_reason_in_words(tmp_path: Path) -> None:
    _, sweep, _ = make_sweep(tmp_path / "root", seeds(1))
    rows = (
        JobRow("7", (0, 1), "RUNNING", "", "n1"),
        JobRow("7", (2,), "RUNNING", "", "n2"),
        JobRow("7", tuple(range(3, 20)), "PENDING", "Priority"),
        JobRow("8", (0,), "PENDING", "ReqNodeNotAvail, UnavailableNodes:n3"),
        JobRow("6", tuple(range(50)), "COMPLETED"),
    )
    assert jobs_text(SlurmQueue(sweep), Answer(rows, 1.0)).splitlines() == [
        "17 jobs pending (Priority: others come first): 7_3, 7_4, 7_5, 7_6, 7_7, 7_8, 7_9, 7_10, 7_11, 7_12 and 7 more",
        "1 job pending (ReqNodeNotAvail, UnavailableNodes:n3): 8_0",
        "3 jobs running on n1, n2: 7_0, 7_1, 7_2",
    ]
    assert jobs_text(SlurmQueue(sweep), Answer(rows[-1:], 1.0)) == ""
    assert jobs_text(SlurmQueue(sweep), Answer((), 1.0, "squeue: no answer")) == "SLURM does not answer: squeue: no answer"


def test_a_job_that_failed_is_told_with_its_log_or_why_there_is_none(tmp_path: Path) -> None:
    _, sweep, _ = make_sweep(tmp_path / "root", seeds(1))
    queue = SlurmQueue(sweep)
    queue.token()
    queue.note("7", 2, dispatch="d", folder=str(tmp_path))
    log = tmp_path / "7_0_0_log.out"
    log.write_text("what happened\n")
    said = jobs_text(queue, Answer((JobRow("7", (0, 1), "FAILED", "NonZeroExitCode", "n1"),), 1.0)).splitlines()
    assert said[0] == "2 jobs failed (NonZeroExitCode) on n1: 7_0, 7_1"
    assert said[1] == f"  log {log}"
    assert (
        said[2] == f"  job 7_1 left no log: it ended before it began, or its node does not see {tmp_path} (the root must be on all nodes)"
    )


def test_a_sweep_that_was_never_on_a_cluster_asks_nothing(tmp_path: Path) -> None:
    _, sweep, _ = make_sweep(tmp_path / "root", seeds(1))
    assert jobs_of(sweep) is None and not SlurmQueue(sweep).folder.exists()


def test_after_submission_the_next_commands_are_named(tmp_path: Path) -> None:
    _, sweep, _ = make_sweep(tmp_path / "root", seeds(1))
    result = DispatchResult({"planned": 4, "finished": 2}, submitted=(("7", 3), ("8", 1)), active=2, logs=tmp_path, notes=("a note",))
    said = submitted_text(sweep, result).splitlines()
    assert said[:5] == [
        "a note",
        "jobs  7_[0-2], 8_0",
        f"logs  {tmp_path}",
        "2 jobs of this sweep are queued or running already",
        "sweep s: 2 finished, 4 planned",
    ]
    assert any(line.endswith(f"sweep=s root={sweep.root.path} action=cancel") for line in said)
