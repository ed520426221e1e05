"""``+grid=audit`` and ``+grid=faults`` as a person types them: the page, the exit code, and what MLflow is told."""

import json
from pathlib import Path

import pytest

from tests.product.commands import Place, mlflow_rows

SMALL = ("model.layers=1", "model.width=16", "model.heads=2", "model.ffn_width=32", "data.seq_len=16", "data.eval_rows=4", "global_batch=8")
AUDIT = ("+grid=audit", *SMALL)


def told(place: Place) -> list[dict[str, object]]:
    """What the ladders left in their run directories."""
    return [json.loads(path.read_text()) for path in sorted(place.root.path.rglob("ladder.*.json"))]


def test_right_code_is_called_right_on_a_page_and_in_mlflow(tmp_path: Path) -> None:
    place = Place(tmp_path)
    output = place.type(*AUDIT)
    assert "answer  rounding" in output and "Right. What differs from one batch is rounding." in output
    [one] = told(place)
    assert one["answer"] == "rounding" and one["accum"] == 4
    page = min(place.root.path.rglob("audit.html"), key=lambda path: len(path.parts))  # the other copy is the artifact in MLflow
    assert "Right. What differs from one batch is rounding." in page.read_text()
    assert mlflow_rows(place.root, "SELECT value FROM tags WHERE key = 'diagnosis'") == [("rounding",)]
    [(gradient,)] = mlflow_rows(place.root, "SELECT value FROM metrics WHERE key = 'final/ladder_gradient_final'")
    [(floor,)] = mlflow_rows(place.root, "SELECT value FROM metrics WHERE key = 'final/ladder_gradient_floor_final'")
    assert 0 < gradient <= floor < 1e-4
    place.wait_until_alone()


@pytest.mark.parametrize(
    ("change", "code", "answer", "words"),
    [
        ("fault=missing_division", 4, "missing_division", "Wrong: missing_division."),
        ("model.norm=batchnorm", 0, "real_dependence", "none gives what one batch gives"),
    ],
)
def test_a_fault_ends_with_exit_code_4_and_a_real_dependence_does_not(
    tmp_path: Path, change: str, code: int, answer: str, words: str
) -> None:
    place = Place(tmp_path)
    output = place.type(*AUDIT, change, "tracking=none", code=code)
    assert f"answer  {answer}" in output and words in " ".join(output.split()) and "Traceback" not in output
    assert [one["answer"] for one in told(place)] == [answer]
    # What was found once stays found: typing it again tells the same without climbing again.
    assert place.type(*AUDIT, change, "tracking=none", code=code).count("answer  ") == 1
    assert len(told(place)) == 1


def test_faults_that_are_an_axis_are_meant_and_end_with_exit_code_0(tmp_path: Path) -> None:
    place = Place(tmp_path)
    axes = "axes={dtype:[fp32],fault:[none,missing_division,lost_micro_batches],accum:[4]}"
    output = place.type("+grid=faults", *SMALL, "~grids", axes, "tracking=none")
    assert "Traceback" not in output
    found = {str(one["label"]).partition("fault=")[2]: one["answer"] for one in told(place)}
    assert {name: found[name] for name in ("", "missing_division", "lost_micro_batches")} == {
        "": "rounding",
        "missing_division": "missing_division",
        "lost_micro_batches": "lost_micro_batches",
    }
