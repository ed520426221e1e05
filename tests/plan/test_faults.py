"""Tests of accum_sweeps.plan.faults: names, what each fault needs, strengths, and what a fault means for controls and run ids."""

import dataclasses
from typing import Any

import pytest

from accum_sweeps.faults.catalogue import MAKERS, STEPS
from accum_sweeps.plan.errors import ConfigError
from accum_sweeps.plan.faults import FAULTS, NAMES, PAIRED, SINGLE
from accum_sweeps.plan.together import check_run, dependence
from tests.plan.grids import SGD, grid
from tests.specs import make_spec

SHORT = {"data.epoch_rows": 40, "data.last_window": "short"}
FIXED = {"data.lengths": "fixed"}
HOOK = {"kind": "python", "name": "mine", "target": "m:C", "args": {}, "code_hash": "ab"}
NONE = {"kind": "none", "name": "none"}
RAGGED_WORDS, SHORT_WORDS = "it needs micro-batches with different numbers of terms", "it needs short windows that are reached"

# Of each fault: settings beside the base ones that it can act with, settings that it cannot act with, and the words of the refusal.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "mean_of_means": ({}, FIXED, RAGGED_WORDS),
    "mean_of_means_over_ranks": ({"ranks": 2}, {}, "it is written for ranks=2"),
    "missing_division": ({}, {"ranks": 2}, "it is written for ranks=1"),
    "double_division": (FIXED, {"ranks": 2}, "it is written for ranks=1"),
    "wrong_divisor": ({}, FIXED, "it needs padding to be counted"),
    "wrong_divisor_terms": (FIXED, {"ranks": 2}, "it is written for ranks=1"),
    "clip_per_micro_batch": ({}, {"optimizer.max_norm": None}, "it needs optimizer.max_norm"),
    "clip_each_micro_batch": ({}, {"optimizer.max_norm": None}, "it needs optimizer.max_norm"),
    "schedule_per_micro_batch": ({}, {"optimizer": SGD}, "it needs a learning rate that changes"),
    "short_window": (SHORT, {}, SHORT_WORDS),
    "merged_window": (SHORT, SHORT | {"data.epoch_rows": 48}, SHORT_WORDS),
    "dropped_window": (SHORT, SHORT | {"steps": 2}, SHORT_WORDS),
    "early_step": ({}, {"ranks": 2}, "it is written for ranks=1"),
    "lost_micro_batches": ({}, {"ranks": 2}, "it is written for ranks=1"),
    "lost_micro_batches_first": ({}, {"ranks": 2}, "it is written for ranks=1"),
    "lost_micro_batches_gated": ({}, {"ranks": 2}, "it is written for ranks=1"),
    "reweighted_buffer": ({}, {"ranks": 2}, "it is written for ranks=1"),
    "wrong_sync": ({"ranks": 2}, {"ranks": 2} | SHORT, "it needs equally many micro-batches on both ranks"),
    "auxiliary_scale": ({"subject.z_loss": 1e-4}, {}, "it needs an auxiliary term"),
    "accumulator_dtype": ({}, {"dtype": "bf16"}, "it needs a gradient buffer that is not bf16 anyway"),
    "loss_scaling": ({"dtype": "amp_fp16"}, {}, "it needs dtype=amp_fp16"),
    "loss_scaling_clip": ({"dtype": "amp_fp16"}, {"dtype": "amp_fp16", "optimizer.max_norm": None}, "it needs optimizer.max_norm"),
    "loss_scaling_overflow": ({"dtype": "amp_fp16"}, {"dtype": "fp16"}, "it needs dtype=amp_fp16, or subject=python"),
    "state_per_micro_batch": ({}, {"optimizer.weight_decay": 0.0}, "it needs optimizer.weight_decay above 0"),
    "state_per_micro_batch_ema": ({"ema": 0.9}, {}, "it needs ema"),
    "state_per_micro_batch_count": ({}, {"optimizer": SGD}, "it needs optimizer=adamw, adam or muon"),
    "reporting": ({}, {"measure": "one_step"}, "it needs measure=training"),
    "reporting_scaled": ({}, {"measure": "one_step"}, "it needs measure=training"),
    "resume_inside_window": ({}, {"measure": "one_step"}, "it needs measure=training"),
    "replay_randomness": ({}, {}, "it needs gradient caching with dropout"),
    "missing_division+clip_per_micro_batch": ({}, {"optimizer.max_norm": None}, "it needs optimizer.max_norm"),
    "missing_division+schedule_per_micro_batch": ({}, {"optimizer": SGD}, "it needs a learning rate that changes"),
    "missing_division+reporting": ({}, {"measure": "one_step"}, "it needs measure=training"),
    "mean_of_means+reporting": ({}, FIXED, RAGGED_WORDS),
    "mean_of_means+clip_per_micro_batch": ({}, FIXED, RAGGED_WORDS),
    "mean_of_means+schedule_per_micro_batch": ({}, {"optimizer": SGD}, "it needs a learning rate that changes"),
    "mean_of_means+short_window": (SHORT, {}, SHORT_WORDS),
    "double_division+state_per_micro_batch": ({}, {"optimizer.weight_decay": 0.0}, "it needs optimizer.weight_decay above 0"),
    "lost_micro_batches+reporting": ({}, {"measure": "one_step"}, "it needs measure=training"),
    "accumulator_dtype+wrong_divisor_terms": ({}, {"dtype": "bf16"}, "it needs a gradient buffer that is not bf16 anyway"),
}


def refused(**changes: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        make_spec(**changes)
    return str(caught.value)


def test_every_name_is_a_step_and_every_step_has_a_name() -> None:
    assert set(CASES) == set(FAULTS) == {*STEPS, *MAKERS} and not {*STEPS} & {*MAKERS}
    assert len(SINGLE) >= 24 and len(PAIRED) == 10 and NAMES[0] == "none"
    assert all({*name.split("+")} <= {*SINGLE} for name in PAIRED)


def test_every_fault_tells_in_a_line_what_it_is() -> None:
    meanings = [fault.meaning for fault in SINGLE.values()]
    assert len(set(meanings)) == len(meanings)
    assert all(meaning[0].islower() or meaning.startswith("Adam") for meaning in meanings) and max(map(len, meanings)) <= 90


@pytest.mark.parametrize("name", SINGLE)
def test_every_step_tells_its_report_its_closed_form_and_when_it_is_inert(name: str) -> None:
    made = STEPS[name] if name in STEPS else MAKERS[name]
    text = " ".join((made.__doc__ or "").split())
    assert "#" in text or name in ("reporting_scaled", "clip_each_micro_batch")  # one kind of a class whose reports stand at the other
    assert "nert" in text or name == "wrong_divisor_terms"  # which is wrong everywhere
    assert len(text) > 150


@pytest.mark.parametrize("name", [name for name in CASES if name != "replay_randomness"])
def test_a_fault_is_taken_where_it_can_act(name: str) -> None:
    assert make_spec(fault=name, accum=4, **CASES[name][0]).setup.fault == name
    assert make_spec(fault=name, accum=1, **CASES[name][0]).accum == 1  # the reference arm of a grid


@pytest.mark.parametrize("name", CASES)
def test_a_fault_that_cannot_act_is_refused_by_name_with_what_it_needs(name: str) -> None:
    text = refused(fault=name, **CASES[name][1])
    assert text.startswith(f"fault='{name}': cannot act here: {CASES[name][2]}")


def test_a_mistyped_name_is_refused_with_the_nearest() -> None:
    text = refused(fault="mean_of_mean")
    assert text.startswith("fault='mean_of_mean': must be one of accumulator_dtype, ") and "did you mean mean_of_means?" in text


def test_a_users_class_may_have_any_terms_and_overflows() -> None:
    settings = {"subject": HOOK, "model": NONE, "data": NONE, "accum": 4}
    for name in ("mean_of_means", "missing_division", "early_step", "loss_scaling_overflow"):
        assert make_spec(fault=name, **settings).setup.fault == name
    assert SHORT_WORDS in refused(fault="short_window", **settings)
    assert "padding" in refused(fault="wrong_divisor", **settings)


def test_a_program_of_the_users_makes_its_own_steps() -> None:
    subject = {"kind": "command", "name": "mine", "argv": ["python", "{spec}"]}
    text = refused(subject=subject, model=NONE, data=NONE, fault="missing_division")
    assert text.startswith("fault='missing_division': cannot act here: a program of the user's makes its own steps")


@pytest.mark.parametrize(
    ("fault", "strength", "words"),
    [
        ("none", 0.5, "fault_strength=0.5: has no effect here: it needs a fault"),
        ("mean_of_means", 0.5, "fault_strength=0.5: fault=mean_of_means has no strength; those that have one: missing_division, double_di"),
        ("missing_division+reporting", 0.5, "fault_strength=0.5: fault=missing_division+reporting has no strength"),
        ("missing_division", 1.5, "fault_strength=1.5: must be above 0 and at most 1: share s of the division that is missing"),
        ("missing_division", 0.0, "fault_strength=0.0: must be above 0 and at most 1"),
        ("wrong_divisor_terms", -1, "fault_strength=-1.0: must be above 0: number of terms too many"),
        ("reweighted_buffer", 1, "fault_strength=1.0: is no fault at all: factor on the running buffer"),
        ("lost_micro_batches", float("nan"), "fault_strength=nan: must be a finite number"),
        ("lost_micro_batches", "all", "fault_strength='all': must be a number"),
    ],
)
def test_a_strength_that_cannot_be_is_refused(fault: str, strength: Any, words: str) -> None:
    assert refused(fault=fault, fault_strength=strength).startswith(words)


def test_strength_and_fault_are_part_of_the_identity_and_without_a_fault_nothing_is() -> None:
    plain = make_spec()
    assert '"fault":"none"' in plain.identity and "fault_strength" not in plain.identity
    ids = {make_spec(fault="missing_division", fault_strength=value).run_id for value in (None, 0.5, 1.0)}
    assert len(ids | {plain.run_id}) == 4
    assert make_spec(fault="missing_division", fault_strength=0.5).to_dict()["fault_strength"] == 0.5


@pytest.mark.parametrize("kind", ["regroup", "order", "permute"])
def test_a_control_that_moves_samples_changes_more_than_rounding_with_a_fault(kind: str) -> None:
    text = refused(fault="lost_micro_batches", accum=4, control=kind)
    assert text.startswith(f"control='{kind}': changes more than rounding here: ") and "fault=lost_micro_batches" in text
    assert make_spec(fault="lost_micro_batches", accum=4, control="ulp_weights").control == "ulp_weights"
    assert dependence(make_spec().setup) == ""
    check_run(dataclasses.replace(make_spec(accum=4), control=kind))


def test_faults_and_strengths_are_axes_of_a_grid() -> None:
    axes = {
        "fault": ["none", "missing_division", "mean_of_means+reporting"],
        "fault_strength": {"values": [0.1, 1.0], "when": {"fault": "missing_division"}},
        "accum": [1, 4],
    }
    runs = list(grid(axes=axes).expand())
    assert [(run.setup.fault, run.setup.fault_strength, run.accum) for run in runs] == [
        *(("none", None, 1), ("none", None, 4)),
        *(("missing_division", 0.1, 1), ("missing_division", 0.1, 4), ("missing_division", 1.0, 1), ("missing_division", 1.0, 4)),
        *(("mean_of_means+reporting", None, 1), ("mean_of_means+reporting", None, 4)),
    ]
    with pytest.raises(ConfigError, match=r"fault='loss_scaling': cannot act here: it needs dtype=amp_fp16\n  In a grid leave"):
        list(grid(axes={"fault": ["none", "loss_scaling"]}).expand())
