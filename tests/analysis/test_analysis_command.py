"""The command on tables and experiments: what it prints, where the notes go, which files it writes, and its exit codes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from accum_sweeps.analysis.command import HELP, main
from accum_sweeps.analysis.export import write_tables
from accum_sweeps.analysis.load import load
from accum_sweeps.analysis.verdict import verdict
from tests.analysis.roots import finish, plan
from tests.specs import make_spec

FOUR = "accum,eval_perplexity\n1,13.26832732791897\n2,13.302758042158114\n4,13.271497238202906\n4,13.414325512942533\n"
CALL = ["runs.csv", "--accum", "k", "--seed", "s", "--response", "loss"]


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write_runs(name: str = "runs.csv", seeds: range = range(6), shift: float = 0.0) -> pd.DataFrame:
    drawn = np.random.default_rng(seeds.start)
    rows = [{"k": k, "s": s, "loss": 2 + 0.03 * s + drawn.normal(0, 1e-3) + shift * (k > 1), "acc": s / k} for s in seeds for k in (1, 4)]
    pd.DataFrame(rows).to_csv(name, index=False)
    return pd.DataFrame(rows)


def lines(text: str) -> str:
    return " ".join(text.split())


def test_four_perplexities_cannot_be_judged_and_the_command_says_why(tmp_path: Path) -> None:
    Path("table.csv").write_text(FOUR)
    call = [sys.executable, "-m", "accum_sweeps.analysis", "table.csv", "--accum", "accum", "--response", "eval_perplexity"]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert re.search(r"-> not assessable\W+complete seeds: 1 of 1, at least 3 are needed$", done.stdout.strip())
    notes = done.stderr.splitlines()
    assert all(note.startswith("note: ") for note in notes) and len(notes) == len(set(notes)) == 3
    assert notes[0] == "note: table.csv: no column of seeds was named, so that all rows count as one seed"
    assert notes[1].startswith("note: table.csv: 1 row has the setup, accumulation factor and seed of an earlier row, taken as a rerun")


def test_the_threads_own_file_with_its_comment_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    import accum_sweeps.analysis.studies

    file = Path(str(accum_sweeps.analysis.studies.__file__)).with_name("open_lm_perplexity.csv")
    assert main([str(file), "--accum", "accum", "--response", "eval_perplexity", "--setup", "model", "--replicate", "run"]) == 0
    out, err = capsys.readouterr()
    assert "\nmodel=open_lm_160m\n" in out and "not assessable" in out and "taken as" not in err


def test_the_command_prints_the_verdict_that_the_library_gives(capsys: pytest.CaptureFixture[str]) -> None:
    write_runs(shift=0.03)
    assert main([*CALL, "--csv", "verdicts.csv"]) == 0
    out, err = capsys.readouterr()
    found = verdict(load("runs.csv", accum="k", seed="s", response="loss"), response="loss")
    assert all(part in lines(out) for part in re.split("[;:] ", found[0].sentence)) and found[0].code == "effect" and err == ""
    written = pd.read_csv("verdicts.csv")
    assert written["code"].tolist() == ["effect"] and written["shift"].tolist() == pytest.approx(
        found.to_frame()["shift"].tolist(), rel=1e-14
    )


def test_margins_references_and_further_responses(capsys: pytest.CaptureFixture[str]) -> None:
    write_runs(seeds=range(8))
    assert main([*CALL, "acc", "--reference", "4", "--margin", "0.5", "--sign-flip", "--csv", "verdicts.csv"]) == 0
    assert re.search(r"^ +4 +8 .* reference ", capsys.readouterr().out, re.MULTILINE)
    written = pd.read_csv("verdicts.csv")
    assert written["response"].tolist() == ["loss", "acc"] and written["accum"].tolist() == [1, 1]
    assert written["margin"].iloc[0] == 0.5 and written["margin_source"].str.contains("given with the command").tolist() == [True, False]


def test_the_margin_may_come_from_earlier_runs_with_other_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    write_runs()
    write_runs("before.csv", range(10, 18))
    assert main([*CALL, "--earlier", "before.csv"]) == 0
    assert "Margin: 0.5 x the lower 95 % limit of the SD of an earlier sweep's reference arm (8 seeds)" in lines(capsys.readouterr().out)
    assert main([*CALL, "--earlier", "runs.csv"]) == 2
    assert "are in both; the earlier sweep must have other seeds" in capsys.readouterr().err


def test_a_root_and_its_exported_file_are_judged_alike(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    specs = [make_spec(seed=seed, accum=k) for seed in range(5) for k in (1, 4)]
    sweep = plan(tmp_path / "root", [*specs, make_spec(seed=9)])
    for spec in specs:
        finish(sweep.root, spec, 2.0 + spec.seed / 10 + (spec.accum + spec.seed % 2) / 1000)
    write_tables(sweep)
    texts = []
    for source in ("root", "root/sweeps/demo", "root/sweeps/demo/results.csv"):
        assert main([source, "--csv", "verdicts.csv"]) == 0
        out, err = capsys.readouterr()
        texts.append((out, err, Path("verdicts.csv").read_text()))
    assert texts[0] == texts[1] == texts[2] and "note: planned runs: 1" in texts[0][1]


def test_a_plan_that_fixes_its_judging_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = plan(tmp_path / "root", [make_spec(seed=0)])
    labels = {make_spec(seed=0).setup.setup_id: "lm"}
    sweep.write_plan({"command": "test", "judging": {"margin": {"eval_loss_final": 0.25}}}, [make_spec(seed=1)], labels)
    assert main(["root"]) == 0
    assert "note: the plan of sweep demo fixes margin={'eval_loss_final': 0.25}; this command judges by its own" in capsys.readouterr().err


def test_the_page_holds_verdict_and_notes(capsys: pytest.CaptureFixture[str]) -> None:
    write_runs().assign(acc="<b>bold</b>").to_csv("runs.csv", index=False)
    with Path("runs.csv").open("a") as file:
        file.write("1,,2.0,x\n")
    assert main([*CALL, "--setup", "acc", "--html", "page.html"]) == 0
    page = Path("page.html").read_text()
    assert "equivalent within margin" in page and "left out, without a value of s (row 13)" in page
    assert "<b>bold" not in page and "&lt;b&gt;bold" in page


BAD = {
    "": "SOURCE is missing; write it first, before the options",
    "nowhere.csv": "nowhere.csv: no such file or folder",
    "runs.csv": "runs.csv: is no results table, it lacks the columns run_id, setup_id, accum, seed, status",
    "runs.csv --accum k --respons loss": "unrecognized arguments: --respons",
    "runs.csv --accum k --response los": "did you mean loss?",
    "runs.csv --accum k --response loss --margin -1": "'-1' must be above 0 and finite",
    "runs.csv --accum k --response loss --margin wide": "'wide' must be above 0 and finite",
    "runs.csv --accum k --response loss --reference 1.5": "'1.5' must be an accumulation factor",
    "runs.csv --accum k --response loss --experiment x": "only the tracking URI of an MLflow database or server has experiments",
    "runs.csv --accum k --response loss --csv nowhere/x.csv": "nowhere/x.csv: cannot be written",
    "runs.csv --accum k --response loss --html nowhere/x.html": "nowhere/x.html: cannot be written",
    "runs.csv --accum k --response loss --control c": "there is no run to judge",
    "text.csv --accum k": "text.csv: there is no column accum='k'",
    "binary.csv --accum k": "binary.csv: cannot be read as a table",
    "broken.parquet --accum k": "broken.parquet: cannot be read as a table",
    "notes.txt": "notes.txt: must be one of .csv, .parquet, .pq, .tsv",
}


@pytest.mark.parametrize("call", BAD)
def test_a_mistake_is_told_in_a_sentence_with_exit_code_2(call: str, capsys: pytest.CaptureFixture[str]) -> None:
    write_runs().assign(c="ulp_weights").to_csv("runs.csv", index=False)
    for name, content in {"text.csv": b"hello\n1", "binary.csv": bytes(range(256)), "broken.parquet": b"PAR1", "notes.txt": b""}.items():
        Path(name).write_bytes(content)
    assert main(call.split()) == 2
    out, err = capsys.readouterr()
    assert out == "" and BAD[call] in err and err.splitlines()[-1].startswith(("error: ", "  ")) and "Traceback" not in err


def test_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    from accum_sweeps.analysis.command import _parser

    for action in _parser()._actions:
        assert all(option in text for option in action.option_strings if option.startswith("--"))
    assert "RESPONSE" in HELP and "RESPONSE" not in text and max(map(len, text.splitlines())) <= 120


def test_what_is_read_by_a_reader_that_goes_away_is_no_error() -> None:
    write_runs()
    call = f"{sys.executable} -m accum_sweeps.analysis {' '.join(CALL)} --csv verdicts.csv | true"
    done = subprocess.run(["bash", "-c", call], capture_output=True, text=True, check=False)
    assert done.stderr == "" and Path("verdicts.csv").exists()


def test_one_file_for_two_outputs_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "t.csv"
    table.write_text("accum,loss\n1,2.0\n2,2.1\n")
    assert main([str(table), "--response", "loss", "--csv", "out", "--html", "out"]) == 2
    assert "both name out" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--csv", "--html"])
def test_what_is_no_file_is_not_replaced_by_one(tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str) -> None:
    table, pipe = tmp_path / "t.csv", tmp_path / "pipe"
    table.write_text("accum,loss\n1,2.0\n2,2.1\n")
    os.mkfifo(pipe)
    assert main([str(table), "--response", "loss", option, str(pipe)]) == 2
    assert "is no file that could be written" in capsys.readouterr().err and pipe.is_fifo()
