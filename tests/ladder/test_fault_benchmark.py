"""A fraction of the fault benchmark, and what its figures are made of."""

import dataclasses
from typing import Any

import pytest

from accum_sweeps.plan.faults import FAULTS, NONE
from tests.benchmarks.bench_faults import run
from tests.benchmarks.faults.cases import CLEAN, DTYPES, FAULTY_SEEDS, KS, Case, all_cases, fraction
from tests.benchmarks.faults.checks_of_today import checks
from tests.benchmarks.faults.effects import INERT, effect
from tests.benchmarks.faults.floors import SEEDS, committed, floor_of, measured
from tests.benchmarks.faults.one_case import row_of
from tests.benchmarks.faults.rates import clopper_pearson, rate
from tests.benchmarks.faults.settings import OPTIMIZERS, SUBJECTS
from tests.benchmarks.faults.table import errors, is_counted, is_independent, is_wrong, summary
from tests.benchmarks.faults.toggles import TOGGLES

FRACTION = 40


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return all_cases()


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return run(fraction(FRACTION))


def test_a_fraction_is_answered_rightly(rows: list[dict[str, Any]]) -> None:
    assert len(rows) == FRACTION
    assert [f"{row['number']} {row['fault']} {row['toggles']}: {row['answer']} {row['words']}" for row in errors(rows)] == []
    assert all(is_counted(row) for row in rows if row["fault"] != NONE)


def test_the_page_shows_what_was_found(rows: list[dict[str, Any]]) -> None:
    page = summary(rows, [], 60.0)
    faulty = sum(row["fault"] != NONE for row in rows)
    assert f"| right class | {faulty} of {faulty} = 100.00 %" in page
    assert "Cases answered wrongly" not in page
    accused = [row | {"answer": "mean_of_means", "words": "accused"} if row["fault"] == NONE else row for row in rows]
    clean = sum(map(is_independent, rows))
    assert f"| false alarms | {clean} of {clean} = 100.00 %" in summary(accused, [], 60.0)
    assert "accused" in summary(accused, [], 60.0)


def test_a_wrong_name_counts_as_wrong_and_an_unknown_fault_as_none() -> None:
    row = {"truth": "early_step", "answer": "early_step+reporting"}
    assert is_wrong(row)
    assert not is_wrong(row | {"answer": "unknown_fault"})
    assert not is_wrong(row | {"answer": NONE})


def test_the_design_is_the_same_each_time_and_within_its_bounds(cases: list[Case]) -> None:
    assert all_cases() == cases
    clean = [case for case in cases if case.fault == NONE]
    assert len(cases) <= 2000
    assert sum(not case.kind for case in clean) >= 600
    assert len({case.seed for case in clean}) == len(clean) == sum(CLEAN.values())
    assert not {case.seed for case in clean} & {*FAULTY_SEEDS, *SEEDS}


def test_each_fault_meets_the_levels_that_it_can_act_in(cases: list[Case]) -> None:
    by_fault = {fault: [case for case in cases if case.fault == fault] for fault in FAULTS}
    assert all(len(own) >= 12 for own in by_fault.values())
    assert {case.subject for case in by_fault["missing_division"]} == set(SUBJECTS)
    for key, levels in (("dtype", DTYPES), ("optimizer", OPTIMIZERS), ("k", KS)):
        assert {getattr(case, key) for case in by_fault["missing_division"]} == set(levels)
    for subject, toggles in TOGGLES.items():
        seen = {name for case in cases if case.subject == subject for name in case.toggles}
        # one pair in a micro-batch has no negatives: clip_plain cannot have one_row
        assert len(set(toggles) - seen) <= (subject == "clip_plain"), set(toggles) - seen


def test_an_effect_is_the_faults_closed_form() -> None:
    case = Case(number=0, subject="mlp", fault="double_division", dtype="fp32", optimizer="sgd", k=4, rows=2, seed=3)
    assert effect(case.spec()).size == pytest.approx(0.75, abs=1e-9)
    logged = dataclasses.replace(case, fault="reporting_scaled")
    assert effect(logged.spec()).size == pytest.approx(0.75, abs=1e-9)
    weak = dataclasses.replace(case, fault="missing_division", subject="lm", strength=1e-6)
    equal = effect(weak.spec(**{"data.lengths": "fixed"}))
    assert equal.size == pytest.approx(4**1e-6 - 1, rel=1e-6)


def test_a_fault_that_cannot_show_is_inert() -> None:
    case = Case(number=0, subject="lm", fault="mean_of_means", dtype="fp32", optimizer="sgd", k=8, rows=1, seed=3)
    assert effect(case.spec()).size > 0.01
    same = dataclasses.replace(case, fault="clip_per_micro_batch")
    assert effect(same.spec(**{"optimizer.max_norm": 1e6})).size <= INERT


def test_the_effect_of_two_faults_is_that_of_the_smaller_one() -> None:
    case = Case(number=0, subject="lm", fault="double_division+state_per_micro_batch", dtype="fp32", optimizer="adamw", k=4, rows=2, seed=3)
    sizes = [effect(dataclasses.replace(case, fault=part).spec()).size for part in case.fault.split("+")]
    assert effect(case.spec()).size == min(sizes) != max(sizes)


def test_the_floors_are_those_of_this_code() -> None:
    for each in measured("mlp", "sgd", "fp64", 4):
        kept = floor_of("mlp", "sgd", "fp64", 4, each.rung)
        assert kept / 10 < each.floor < 10 * kept, each  # rounding differs between machines
    assert len(committed()) == 5 * sum(1 for subject in SUBJECTS for k in KS if not (subject.startswith("clip") and k == 64)) * 20


def test_the_checks_of_today_pass_correct_code_in_float64_and_see_a_large_fault() -> None:
    case = Case(number=0, subject="mlp", fault=NONE, dtype="fp64", optimizer="sgd", k=4, rows=2, seed=3)
    assert not any(checks(case.spec()).values())
    assert all(checks(dataclasses.replace(case, fault="missing_division").spec()).values())
    ranks = dataclasses.replace(case, fault="mean_of_means_over_ranks")
    assert checks(ranks.spec())["gradient"]


def test_a_case_that_fails_is_a_row_that_says_so() -> None:
    case = Case(number=7, subject="mlp", fault=NONE, dtype="fp32", optimizer="sgd", k=4, rows=2, seed=3, changes={"args": {"nothing": 1}})
    row = row_of(case)
    assert row["answer"] == "error" and "nothing" in row["words"] and list(errors([row])) == [row]


def test_intervals_of_a_rate() -> None:
    assert clopper_pearson(0, 600)[1] == pytest.approx(1 - 0.025 ** (1 / 600), rel=1e-9)
    assert clopper_pearson(8, 10) == pytest.approx((0.4439, 0.9748), abs=1e-4)
    alike = rate([(f"c{number // 10}", number < 50) for number in range(100)])  # ten clusters, each of one answer
    apart = rate([(f"c{number}", number < 50) for number in range(100)])
    assert alike.exact == apart.exact == pytest.approx((0.3983, 0.6017), abs=1e-4)
    assert apart.clustered == pytest.approx(apart.exact, abs=0.002)
    assert alike.clustered[0] < 0.2 and alike.clustered[1] > 0.8
    sure = rate([(f"c{number % 5}", True) for number in range(100)])
    assert sure.clustered == clopper_pearson(5, 5)
    assert rate([]).clustered == (0.0, 1.0)
