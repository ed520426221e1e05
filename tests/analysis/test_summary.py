"""The closing text: aligned, at most 100 columns, the numbers of the verdict, nothing more precise than they are."""

import re

import numpy as np
import pandas as pd

from accum_sweeps.analysis import summary
from accum_sweeps.analysis.judged import judge_table
from accum_sweeps.plan.judging import Judging
from tests.analysis.roots import table

BASE = 2.0 + np.array([0.00, 0.03, -0.02, 0.01, 0.05])
NOISE = 1e-3 * np.array([0.3, -0.5, 0.1, 0.4, -0.3])


def render(frame: pd.DataFrame, reference: int | None = None) -> str:
    newest = summary.of_newest_plan(frame)
    older = frame["setup_id"].nunique() - newest["setup_id"].nunique()
    return summary.render(judge_table(newest, Judging(reference=reference)), older)


def two_setups() -> pd.DataFrame:
    y = {1: BASE.tolist(), 2: (BASE + NOISE).tolist(), 16: BASE.tolist()}
    diverged = {1: BASE.tolist(), 16: [*(BASE[:4] + 0.1 + NOISE[:4]).tolist(), "diverged"]}
    return pd.concat([table(y, setup="lm-tiny adamw fp32"), table(diverged, setup="lm-tiny adamw amp_bf16 " + "norm " * 30)])


def test_the_whole_text_of_a_small_sweep() -> None:
    text = render(two_setups().query("setup_id == 'lm-tiny adamw fp32'"))
    assert text.splitlines()[3:] == [
        "Margin: 0.5 x the lower 95 % limit of the SD of the reference arm (5 seeds).",
        "",
        "lm-tiny adamw fp32",
        "   k  runs   mean  difference         95 % interval  in sigma_tot     95 % interval",
        "   1     5  2.014   reference  sigma_tot 0.027 nats",
        "   2     5  2.014     0.00000  [-0.00048, +0.00048]         0.000  [-0.018, +0.018]",
        "  16     5  2.014           0                [0, 0]             0            [0, 0]",
        "  -> equivalent within margin",
        "     exactly the value of k=1 at k=16 in all 5 pairs of runs; no shift detected at k=2; the 95 %",
        "     intervals, each by itself, exclude shifts beyond 0.018 sigma_tot as estimated (0.00049 nats);",
        "     every shift within the margin of 0.0088 nats; rounding not assessed (no controls)",
        "     variance (closed forms): seed 100 %, seed:k 0.0069 %",
    ]


def test_no_line_is_wider_than_100_columns_and_columns_are_aligned() -> None:
    text = render(two_setups())
    assert max(map(len, text.splitlines())) <= 100
    for block in text.split("\n\n")[1:]:
        head, *rows = [line for line in block.splitlines() if re.match(r"  +(k|\d+)  ", line)]
        place = head.index("difference") + len("difference")
        assert all(row[place : place + 2] in ("  ", "") and row[place - 1] != " " for row in rows)


def test_each_setup_has_its_sentence_and_diverged_runs_are_counted() -> None:
    text = render(two_setups())
    assert text.count("  -> ") == 2
    assert "4 + 1 diverged" in text and "+0.1000" in text


def test_an_unfinished_sweep_shows_what_there_is() -> None:
    text = render(table({1: [2.0, "running"], 2: ["planned", "planned"]}))
    assert "k=2 has no finished run (2 planned)" in text
    assert re.search(r"^  2 +0 +\? +\? +\?$", text, re.MULTILINE)


def test_setups_of_one_label_are_told_apart() -> None:
    frame = pd.concat([table({1: [2.0]}, setup="lm").assign(setup_id=identity) for identity in ("0a", "0b")])
    assert "lm (0a)" in render(frame) and "lm (0b)" in render(frame)


def test_setups_of_earlier_plans_are_counted_and_not_shown() -> None:
    old = table({1: [9.0]}, setup="old", sweep="s", revision=1)
    kept = table({1: [2.0]}, setup="kept", sweep="s", revision=1)
    new = table({2: [2.0]}, setup="kept", sweep="s", revision=2)
    text = render(pd.concat([new, kept, old]))
    assert "1 setup of earlier plans is in the results table" in text and "old\n" not in text
    assert re.search(r"^  1 +1 ", text, re.MULTILINE) and re.search(r"^  2 +1 ", text, re.MULTILINE)
    assert "earlier plans" not in render(pd.concat([new, kept]))


def test_the_reference_can_be_chosen() -> None:
    assert re.search(r"^ +16 .* reference ", render(two_setups(), reference=16), re.MULTILINE)


def test_an_empty_table_is_no_error() -> None:
    assert render(two_setups().iloc[:0]) == "No run to tell of yet."
