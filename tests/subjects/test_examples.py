"""The worked examples as sweeps, from the command line to the results table."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest

COMMON = ["root=sweeps", "launcher=inline", "global_batch=8", "steps=4", "optimizer.warmup_steps=0"]
PYTHON = ["subject=python", "subject.target=my_training:Setup", "axes={accum:[1,2]}"]
COMMAND = ["subject=command", 'subject.argv=[python,train.py,"{spec}"]', "axes={accum:[2]}"]


def sweep(project: Path, *words: str) -> str:
    command = [sys.executable, "-m", "accum_sweeps", *words, *COMMON]
    ended = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def results(project: Path) -> list[dict[str, str]]:
    with (project / "sweeps/sweeps/default/results.csv").open() as table:
        return list(csv.DictReader(table))


@pytest.mark.parametrize(("words", "factors"), [(PYTHON, ["1", "2"]), (COMMAND, ["2"])])
def test_an_example_ends_in_the_results_table(examples: Path, words: list[str], factors: list[str]) -> None:
    sweep(examples, *words)
    rows = [row for row in results(examples) if row["measure"] == "training"]
    assert [(row["accum"], row["status"], row["steps"]) for row in rows] == [(factor, "finished", "4") for factor in factors]
    for column in ("eval_loss_final", "train_loss_final", "train_loss_area"):
        assert all(4.5 < float(row[column]) < 6 for row in rows), column
