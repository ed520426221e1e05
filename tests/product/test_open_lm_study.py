"""+grid=open_lm in its small form: one command from the grid to the study's page."""

from pathlib import Path

import accum_sweeps as acs
from tests.product.commands import Place, mlflow_rows

SMALL = ("model=tiny", "model.layers=8", "data.seq_len=16", "dtype=fp32", "steps=2", "seed=0", "eval_every=0")


def test_one_command_makes_the_steps_the_trainings_and_the_page(tmp_path: Path) -> None:
    place = Place(tmp_path)
    output = place.type("+grid=open_lm", *SMALL)
    page = place.root.path / "sweeps" / "open_lm" / "study.md"
    assert f"study        {page}" in output
    assert "gain" in output and "gradient" in output
    results = acs.load(place.root.path)
    steps = results[results["measure"] == "one_step"]
    assert set(results["status"]) == {"finished"} and len(results) - len(steps) == 7
    reruns = steps[(steps["accum"] == 1) & (steps["control"] == "none")]
    assert (reruns["weights_moved_final"] == 0).all() and len(reruns) > 0
    adamw = steps[(steps["optimizer"] == "adamw") & (steps["accum"] > 1)]
    assert (adamw["gain_final"] > 3).all() and (adamw["update_difference_fp64_gradients_final"] == 0).all()
    micro_batch_means = steps[steps["subject.mean"] == "micro_batch"]
    drawn = micro_batch_means[micro_batch_means["data.lengths"] == "geometric"]  # documents of the library are longer than these rows
    assert (drawn["gradient_difference_final"] > 0.01).all() and len(drawn) == 3
    text = page.read_text()
    sections = ("The thread's tests", "Interventions (AdamW)", "Rows of different lengths", "Perplexities", "How far apart equal runs end")
    assert all(f"## {title}" in text for title in sections)
    assert "| accum 4, rerun against accum 4 | 0.0107 | bits equal |" in text
    # An artifact of the sweep's own run, beside the tables.
    [(address,)] = mlflow_rows(place.root, "SELECT artifact_uri FROM runs WHERE name = 'open_lm'")
    assert (Path(address.removeprefix("file://")) / "study.md").read_text() == text
