"""The report: how it opens, that its figures are those of the verdicts, that it holds anything and fetches nothing."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from markupsafe import escape

from accum_sweeps.analysis import report_methods
from accum_sweeps.analysis.judged import judge_table
from accum_sweeps.analysis.margin import MarginSource
from accum_sweeps.analysis.rates import TRUTHS, stored_rates
from accum_sweeps.analysis.report import render_report, write_report
from accum_sweeps.analysis.report_facts import environment_rows, sweep_facts
from accum_sweeps.analysis.report_opening import opening, standing
from accum_sweeps.analysis.report_setups import MOST_DETAILED, detailed
from accum_sweeps.analysis.report_tables import failures, p_text, setup_rows
from accum_sweeps.analysis.rules import LAMBDA_LIMIT
from accum_sweeps.analysis.summary import render
from accum_sweeps.judging import judge_sweep
from accum_sweeps.plan.judging import Judging
from accum_sweeps.record.sweep import SweepDir
from accum_sweeps.reporting import Report, report
from tests.analysis.judgings import ARMS, AWKWARD, Page, drawn, judged, several, with_controls
from tests.analysis.roots import finish, plan, start, table
from tests.specs import make_spec


def page(results: pd.DataFrame, **facts: Any) -> Page:
    return Page(render_report(judged(results), facts=facts, curves=None, distances=None))


@pytest.mark.parametrize("name", AWKWARD)
def test_any_table_has_a_page_that_opens_with_two_sentences(name: str) -> None:
    shown = page(AWKWARD[name])
    first, second = opening(judged(AWKWARD[name]))
    assert first.endswith(".") and second.endswith(".")
    assert re.sub(r"\s+", " ", f"{first} {second}").replace("\0", "") in shown.text.replace("\0", "")
    assert "script" not in shown.seen and shown.fetched == []
    assert len(shown.ids) == len(set(shown.ids))
    assert {link.removeprefix("#") for link in shown.links if link.startswith("#")} <= set(shown.ids)
    assert [link for link in shown.links if not link.startswith("#")] == []
    assert "nan" not in re.findall(r"[a-z]+", shown.text)


def test_a_page_needs_no_network(tmp_path: Path) -> None:
    write_report(tmp_path / "x.html", judged(with_controls(table(drawn(6)))))
    assert not re.search(r"https?:|//[a-z]|@import|url\((?!#)", (tmp_path / "x.html").read_text())


def test_names_commands_and_errors_are_escaped() -> None:
    evil = '"><script>x</script>&'
    results = table({1: [2.0, 2.1, 2.2], 2: [2.0, 2.1, "failed"]}, setup=evil, error=evil, cell=evil)
    html = render_report(
        judged(results),
        facts={"command": evil, "sweep": evil, "environments": [{"env_id": evil, "runs": "3", evil: evil}]},
        curves=None,
        distances=None,
    )
    assert "<script" not in html and html.count(str(escape(evil))) >= 8
    assert page(results, command=evil).text.count(evil) >= 5


OPENINGS: dict[str, tuple[dict[str, Any], str, str]] = {
    "equivalent": (
        {"a": drawn(8), "b": drawn(9)},
        r"Accumulation shifts eval_loss_final by less than the margin in 2 of 2 setups\.",
        r"The largest shift that the 95 % intervals, each by itself, leave possible is [\d.]+ sigma_tot as estimated \([\d.]+ nats\), "
        r"at k=\d in [ab], "
        r"against a margin of [\d.]+ nats; rounding is not assessed in 2 of 2 setups, for want of usable controls\.",
    ),
    "one effect": (
        {"a": drawn(8, shift=0.5)},
        r"An effect of accumulation on eval_loss_final is detected in a\.",
        r"The largest detected shift is \+0\.\d+ \[\+.*\] nats, \+[\d.]+ sigma_tot, at k=8; rounding is not assessed, .*",
    ),
    "an effect among others": (
        {"a": drawn(8), "b": drawn(8, shift=0.5), "c": drawn(2), "d": drawn(8)},
        r"An effect of accumulation on eval_loss_final is detected in 1 of 4 setups \(b\); of the others 2 are equivalent within "
        r"the margin and 1 is not assessable\.",
        r"The largest detected shift is .*, at k=8 in b; rounding is not assessed in 3 of 4 setups.*",
    ),
    "one other": (
        {"a": drawn(8), "b": drawn(2)},
        r"Accumulation shifts eval_loss_final by less than the margin in 1 of 2 setups; the other is not assessable\.",
        r"The largest shift .*",
    ),
    "nothing to assess": (
        {"a": drawn(2), "b": drawn(1)},
        r"What accumulation does to eval_loss_final cannot be assessed in 2 of 2 setups\.",
        r"The reason: complete seeds: 2 of 2, at least 3 are needed; complete seeds: 1 of 1, at least 3 are needed\.",
    ),
    "inconclusive": (
        {"a": drawn(5, noise=0.008)},
        r"These runs do not decide whether accumulation changes eval_loss_final in a\.",
        r"The largest shift .*; \d+ more seeds? would decide, if nothing is shifted; rounding is not assessed.*",
    ),
    "without a margin": (
        {"a": drawn(3)},
        r"These runs do not decide .*",
        r"The largest shift that .*, at k=\d; 2 more seeds would give a margin; .*",
    ),
    "chaotic": (
        {"a": drawn(8, noise=0.1)},
        r"These runs do not decide .*",
        r".*; \d+ more seeds would decide, if nothing is shifted; .*",
    ),
    "identical": (
        {"a": {1: [2.0, 2.1, 2.3, 2.2, 2.5], 2: [2.0, 2.1, 2.3, 2.2, 2.5]}},
        r"Accumulation shifts .*",
        r"Every accumulated run gave exactly the value of the reference arm's run with its seed; .*",
    ),
    "divergence": (
        {"a": {1: drawn(14)[1], 2: ["diverged"] * 12 + [2.0, 2.1], 4: drawn(14)[1]}},
        r"An effect .*",
        r"No shift of finished runs is detected; of 14 seeds, 12 at k=2 alone and 0 at k=1 alone diverged; .*",
    ),
}


@pytest.mark.parametrize("name", OPENINGS)
def test_the_opening_says_what_holds_and_how_large_it_can_be(name: str) -> None:
    setups, first, second = OPENINGS[name]
    found = opening(judged(several(setups)))
    assert re.fullmatch(first, found[0]), found
    assert re.fullmatch(second, found[1]), found


def test_with_controls_the_opening_names_rounding_and_leaves_nothing_open() -> None:
    found = opening(judged(with_controls(table(drawn(8)))))
    assert found[0] == "Accumulation is indistinguishable from rounding in lm." and "not assessed" not in found[1]


def test_runs_that_vary_more_than_their_controls_open_with_lambda() -> None:
    results = with_controls(table(drawn(8, noise=0.01)), noise=0.0)
    y = results["eval_loss_final"].to_numpy(dtype=float)
    calm = 2 + np.random.default_rng(3).normal(size=len(y)) * 1e-4 + 0.05 * results["seed"].to_numpy(dtype=float)
    results["eval_loss_final"] = np.where(results["control"] == "regroup", calm, y)
    found = opening(judged(results))
    assert re.match(r"No mean shift is detected, but accumulated runs vary more than their regroup controls do \(lambda \d", found[1]), (
        found
    )


def test_the_largest_shift_possible_is_that_of_the_intervals() -> None:
    found = judged(table(drawn(8)))
    arms = found.opening[0].compared.arms  # type: ignore[union-attr]
    widest = max(max(abs(low), abs(high)) for _, low, high in (arm.in_sigma for arm in arms))
    value = float(re.findall(r"is ([\d.]+) sigma_tot", opening(found)[1])[0])
    assert widest <= value < 1.1 * widest


def test_an_empty_table_has_a_page() -> None:
    shown = page(AWKWARD["1e9"].iloc[:0])
    assert "No run can be judged yet." in shown.text


@pytest.mark.parametrize(
    ("statuses", "words"),
    [
        (["finished", "diverged"], None),
        (["finished", "running", "planned", "planned"], "This sweep is unfinished: 1 of 4 runs is done, 2 planned, 1 running."),
        (["finished", "cancelled"], "This sweep was cancelled: 1 of 2 runs is done, 1 cancelled."),
        (["finished", "failed", "lost"], "Not every run came to an end: 1 of 3 runs is done, 1 failed, 1 lost."),
    ],
)
def test_what_is_missing_stands_at_the_very_top(statuses: list[str], words: str | None) -> None:
    results = table({1: statuses}).assign(status=statuses)
    if words is None:
        assert standing(results) == ""
    else:
        assert standing(results).startswith(words)
        text = page(results).text
        assert text.index(words) < text.index("cannot be assessed")


def test_the_figures_are_those_of_the_terminal() -> None:
    found = judged(with_controls(several({"a": drawn(8, shift=0.5), "b": drawn(8)})))
    text = page(found.results).text
    for line in render(found).splitlines():
        cells = re.match(r"^ +(\d+) +(\d+) +(\S+) +([+-]?\S+) +(\[.*?\]) +([+-]?\S+) +(\[.*?\])$", line)
        if cells:
            assert " ".join(cells.groups()) in text, line
    assert all(each.sentence.partition(": ")[2] in text for each in found.opening)


def test_the_tables_hold_p_values_lambda_components_and_the_other_responses() -> None:
    results = with_controls(table(drawn(8)))
    results["train_loss_area"] = results["eval_loss_final"] * 2
    found = judged(results)
    text = page(results).text
    [row] = found.opening.to_frame().query("accum == 4").to_dict("records")
    assert f"{p_text(row['p'])} {p_text(row['p_holm'])} {p_text(row['tost_p'])} yes" in text
    assert f"lambda {row['lambda']:.3g} [{row['lambda_low']:.3g}, {row['lambda_high']:.3g}] {row['lambda_upper']:.3g}" in text
    assert f"excess {row['excess']:.3g} [" in text and f"] {row['excess_upper']:.3g}" in text
    [raw] = found.components["eval_loss_final"].to_frame().query("component == 'seed:k'")["raw"]
    assert f"{raw:.3g}" in text
    assert f"train_loss_area {found.verdicts['train_loss_area'][0].sentence}" in text


def test_divergences_have_a_table() -> None:
    text = page(several({"a": {1: drawn(14)[1], 2: ["diverged"] * 12 + [2.0, 2.1]}})).text
    assert "diverged at this k alone" in text and "2 14 12 0 0.0015" in text


def test_effects_come_first_then_what_is_inconclusive_and_the_rest_is_counted() -> None:
    setups = {f"calm {n}": drawn(5) for n in range(9)} | {"open": drawn(4, noise=0.004), "moved": drawn(5, shift=0.5)}
    found = judged(several(setups))
    assert detailed(found) == ["moved", "open", *(f"calm {n}" for n in range(MOST_DETAILED - 2))]
    shown = page(found.results)
    assert f"{MOST_DETAILED} of 11 setups follow in full" in shown.text
    assert [row["anchor"] for row in setup_rows(found, {"moved": "setup-1"})] == [""] * 10 + ["setup-1"]
    assert sum(each.startswith("setup-") for each in shown.ids) == MOST_DETAILED
    assert shown.text.count("calm 8") == 1 + 1  # in the table and in the picture of all setups


def test_two_setups_of_one_label_are_told_apart() -> None:
    both = pd.concat([table(drawn(3)).assign(setup_id=name) for name in ("0a", "0b")])
    assert "lm (0a)" in page(both).text and "lm (0b)" in page(both).text


def test_methods_hold_the_rules_as_they_are_applied() -> None:
    text = page(table(drawn(5))).text
    assert (
        "4. indistinguishable: every arm's TOST passes (no correction), the upper limit of lambda is at most 4 and that of the excess"
        in text
    )
    assert 'The limit for "indistinguishable from rounding" is 4' in text and LAMBDA_LIMIT == 4
    assert "eval_loss_final: " in text and "0.5 x the lower 95 % limit of the SD of the reference arm (5 seeds)" in text
    # What the documentation breaks into lines is one line again; items of its list stay apart.
    assert len([line for line in report_methods.rules().splitlines() if line]) == 8


def test_the_error_rates_are_the_stored_ones_and_say_what_is_wrong() -> None:
    found = report_methods.error_rates()
    stored = stored_rates()
    assert len(found.rows) == len(stored) == len(TRUTHS) and len({row[:4] for row in found.rows}) == len(TRUTHS)
    for row, rates in zip(found.rows, stored.to_dict("records"), strict=True):
        assert row[5] == f"{100 * rates['effect']:.1f}" and row[2] == str(rates["seeds"])
    wrong = {row[0]: float(row[-1]) for row in found.rows if row[2] == "8" and row[3] == "0.02" and row[1] == "fixed"}
    assert {row[0] for row in found.rows if "dependence" in row[0]} != set()
    at = stored.query("seeds == 8 and path_share == 0.02 and margin == 'fixed' and has_controls and scale_spread == 1")
    plain, shifted, wide = (at.query(query).iloc[0] for query in ("shift == 0 and lambda_ == 1", "shift == 1", "lambda_ == 4"))
    assert wrong["only rounding"] == pytest.approx(100 * (plain["effect"] + plain["negligible"]), abs=0.05)
    calls_it_small = shifted["negligible"] + shifted["indistinguishable"] + shifted["equivalent"]
    assert wrong["one arm shifted by exactly the margin"] == pytest.approx(100 * calls_it_small, abs=0.05)
    assert wrong["accumulated runs vary 4 times as much as rounding (lambda)"] == pytest.approx(100 * wide["indistinguishable"], abs=0.05)


def test_runs_without_an_outcome_are_told_with_their_reasons() -> None:
    errors: list[Any] = ["boom", "boom", None, None, None, "bang", None, None]
    results = table({1: ["failed", "failed", "lost", 2.0], 2: [2.0, "failed", 2.0, 2.1]}).assign(error=errors)
    found = failures(results)
    assert found is not None
    assert found.rows == (("failed", "2", "lm", "boom"), ("lost", "1", "lm", "no reason recorded"), ("failed", "1", "lm", "bang"))
    assert failures(table(drawn(2))) is None and failures(table(drawn(2)).assign(error="x")) is None
    many = table({1: ["failed"] * 30}).assign(error=[f"reason {n}" for n in range(30)])
    more = failures(many)
    assert more is not None and len(more.rows) == 20 and "10 further reasons" in more.caption


def test_setups_of_earlier_plans_and_what_was_not_used_are_told() -> None:
    text = page(table({1: [2.0, float("nan"), 2.1, 2.2], 2: [2.0, 2.1, 2.2, 2.3]}), older_setups=3).text
    assert "3 setups of earlier plans are" in text and "1 finished run without a finite eval_loss_final" in text
    assert "Nothing: every run counts." in page(table(drawn(4))).text


@pytest.mark.parametrize(("p", "words"), [(float("nan"), "-"), (0.0, "< 0.0001"), (0.0001, "0.0001"), (0.04567, "0.046"), (1.0, "1")])
def test_p_values_have_two_digits(p: float, words: str) -> None:
    assert p_text(p) == words


def sweep_of(folder: Path, seeds: int = 5) -> SweepDir:
    """A finished sweep in a root of its own."""
    specs = [make_spec(seed=seed, accum=k) for seed in range(seeds) for k in (1, 4)]
    sweep = plan(folder, specs)
    for number, spec in enumerate(specs):
        finish(sweep.root, spec, 2.0 + 0.01 * spec.seed + 1e-5 * number, losses=[3.0, 2.5, 2.2])
    return sweep


def report_page(made: Report) -> Page:
    return Page(Path(made.files["report"]).read_text(encoding="utf-8"))


def test_a_sweep_has_its_page_beside_its_tables_and_first_among_its_files(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path)
    made = report(sweep, {})
    assert next(iter(made.files)) == "report" and made.paths[0] == sweep.path / "report.html"
    shown = report_page(made)
    assert "accum_sweeps: demo" in shown.text and "Training loss" in shown.text and "commit c0ffee" in shown.text
    assert "10 runs in environment 0123456789ab" in shown.text and "unfinished" not in shown.text
    before = made.paths[0].read_bytes()
    assert report(sweep, {}).paths[0].read_bytes() == before


def test_an_unfinished_sweep_has_a_page_that_says_so(tmp_path: Path) -> None:
    specs = [make_spec(seed=seed, accum=k) for seed in range(3) for k in (1, 4)]
    sweep = plan(tmp_path, specs)
    finish(sweep.root, specs[0], 2.0)
    start(sweep.root, specs[1], [3.0])
    shown = report_page(report(sweep, {}))
    assert re.match(r".*?This sweep is unfinished: 1 of 6 runs is done, 4 planned, 1 running\.", shown.text)


def test_a_damaged_environment_is_passed_over(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, seeds=3)
    for path in sweep.root.path.glob("runs/*/*/*/env.json"):
        path.write_text("{")
    [environment] = sweep_facts(sweep, judge_sweep(sweep, report_results(sweep), {}).results)["environments"]
    assert environment == {"env_id": "0123456789ab", "runs": "6"}


def report_results(sweep: SweepDir) -> pd.DataFrame:
    report(sweep, {})
    return pd.read_parquet(sweep.path / "results.parquet")


def test_the_environment_names_what_numbers_depend_on() -> None:
    results = table(drawn(3)).assign(threads=1, deterministic=True, device="cpu")
    rows = dict(environment_rows({"command": "python x", "source": "t.csv", "older_setups": 0}, results))
    assert rows == {"command": "python x", "read from": "t.csv", "device": "cpu", "threads a run": "1", "deterministic algorithms": "True"}


MANY = [2**n for n in range(12)]
LATE = MarginSource(words="given after the runs, so not fixed in advance", is_late=True)
EARLY = MarginSource(words="fixed in the plan's first revision", is_late=False)


@pytest.mark.parametrize(("source", "words"), [(LATE, LATE.words), (None, "given, not known to be fixed before the runs"), (EARLY, "")])
def test_a_margin_that_may_be_chosen_after_the_runs_is_told_where_the_report_opens(source: MarginSource | None, words: str) -> None:
    found = judge_table(table(drawn(8)), Judging(margins={"eval_loss_final": 0.01}), margin_source=source)
    html = render_report(found, facts={}, curves=None, distances=None)
    head = Page(html[: html.index("<nav>")] + "</header></body></html>").text
    assert ("the margin was" in head) == bool(words) and words in head


def test_a_command_that_gives_a_margin_after_the_runs_says_so_in_the_opening(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path)
    late = report_page(report(sweep, {"margin": 0.5})).text
    assert "; the margin was given after the runs, so not fixed in advance" in late[: late.index("All setups")]


def test_setups_whose_long_labels_differ_in_the_middle_are_told_apart_everywhere() -> None:
    names = [f"clip-clip_vit_b32 adam fp32 eps=1e-08 padding={each} accumulation=plain global_batch=16 steps=2 lr=0.001" for each in "ab"]
    html = render_report(judged(several({name: drawn(5) for name in names})), facts={}, curves=None, distances=None)
    links = re.findall(r'<a href="#setup-\d">(.*?)</a>', html[html.index("<nav>") : html.index("</nav>")])
    assert links == ["padding=a", "padding=b"]
    picture = html[html.index("<svg") : html.index("</svg>")]
    assert "padding=a" in picture and "padding=b" in picture


def test_a_sentence_on_very_many_arms_says_how_many_and_names_the_largest() -> None:
    [calm] = judged(with_controls(table(drawn(9, MANY)))).opening
    assert f"at {len(MANY) - 1} arms (up to k={max(MANY)})" in calm.sentence and "k=2, 4" not in calm.sentence
    moved = {k: [value + 0.001 * k for value in values] for k, values in drawn(8, MANY, noise=1e-5).items()}  # type: ignore[operator]
    [found] = judged(table(moved)).opening
    assert f"at {len(MANY) - 1} arms, the largest at k={max(MANY)} (+2.0" in found.sentence and "k=4 " not in found.sentence
    one_sided = {k: ["diverged" if k > 2 and seed < 1 + k // 512 else 2.0 + seed for seed in range(8)] for k in MANY}
    [diverged] = judged(table(one_sided)).opening
    assert "diverged of 8 seeds: 0 at k=1, some in 10 of the 11 other arms, most at k=2048 (5)" in diverged.sentence
    [empty] = judged(table({k: [2.0] * 5 if k == 1 else ["failed"] * 5 for k in MANY})).opening
    assert "no finished run in 8 more arms" in empty.sentence and "k=32" not in empty.sentence


def test_one_run_is_not_told_as_several() -> None:
    environments = [{"env_id": "e", "runs": "1"}, {"env_id": "f", "runs": "2"}]
    text = page(table({1: [2.0], 2: [2.0]}), older_setups=1, environments=environments).text
    assert "1 run in environment e" in text and "2 runs in environment f" in text and "1 setup of earlier plans is" in text
    assert not re.findall(r"\b(?<![.,\d])1 (?:more |further |finished )?(?:runs|setups|seeds|pairs|cells|arms|values)\b", text)


def test_judging_with_a_fixed_margin_names_its_source() -> None:
    found = replace(judged(table(drawn(5)), margins={"eval_loss_final": 0.01}))
    html = render_report(found, facts={}, curves=None, distances=None)
    assert "eval_loss_final: 0.01 nats, given, not known to be fixed before the runs" in Page(html).text
    assert set(found.opening[0].cells.accum) == set(ARMS)
