"""Every known fault is found by its name, alone and in pairs, and right code is not accused."""

import dataclasses
from typing import Any

import pytest

from accum_sweeps.ladder.bench import Bench
from accum_sweeps.ladder.diagnosis import diagnose
from accum_sweeps.plan.faults import FAULTS, classes_of
from tests.faults.subjects import cached_spec, lm_spec


def spec_of(name: str, **changes: Any) -> Any:
    return cached_spec(name, **changes) if name == "replay_randomness" else lm_spec(name, **changes)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_called_by_its_name(name: str) -> None:
    found = diagnose(Bench(spec_of(name)))
    assert sorted(found.names) == sorted(classes_of(name)), [each.words for each in found.findings]
    assert all(each.experiments for each in found.findings)


def test_a_short_window_is_found_in_the_next_one_although_that_has_the_same_rows_again() -> None:
    """With 10 rows an epoch and 8 a window, the two that were left are mostly among the next eight."""
    for seed in range(4):
        found = diagnose(Bench(lm_spec("merged_window", seed=seed, **{"data.epoch_rows": 10})))
        assert found.names == ("merged_window",), [each.words for each in found.findings]


def test_an_overflow_of_every_entry_is_an_overflow_too() -> None:
    found = diagnose(Bench(lm_spec("loss_scaling_overflow", loss_scale=2.0**40)))
    assert found.names == ("loss_scaling",), [each.words for each in found.findings]
    assert diagnose(Bench(lm_spec("none", dtype="amp_fp16", loss_scale=2.0**40))).names == ()


@pytest.mark.parametrize("strength", [2.0, 1.1, 1.001, 1 + 1e-11])
def test_an_auxiliary_term_of_another_weight_is_no_other_fault_beside_it(strength: float) -> None:
    found = diagnose(Bench(lm_spec("auxiliary_scale", fault_strength=strength)))
    assert found.names == ("auxiliary_scale",), [each.words for each in found.findings]


LONG: dict[str, dict[str, Any]] = {
    "wrong_sync": {"accum": 8, "global_batch": 32},  # the first micro-batch counts 128 times
    "reweighted_buffer": {"accum": 8, "global_batch": 16, "fault_strength": 3.0},  # 3^7 times
}


def test_shares_that_drown_in_rounding_are_not_taken_for_others() -> None:
    found = diagnose(Bench(lm_spec("wrong_sync", accum=32, global_batch=64, **{"data.seq_len": 8})))
    assert found.names in [("wrong_sync",), ("unknown_fault",)], [each.words for each in found.findings]


@pytest.mark.parametrize("name", LONG)
def test_the_rounding_of_a_gradient_that_is_far_too_long_hides_no_small_share(name: str) -> None:
    found = diagnose(Bench(lm_spec(name, **LONG[name])))
    assert found.names == (name,), [each.words for each in found.findings]


ADAMW = {"kind": "adamw", "name": "adamw", "lr": 1e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}
ADAMW |= {"max_norm": 1.0, "schedule": "cosine", "warmup_steps": 2}
CLEAN: dict[str, dict[str, Any]] = {
    "ragged": {},
    "k=1": {"accum": 1},
    "one row a micro-batch": {"accum": 8},
    "two ranks": {"ranks": 2, "accum": 2},
    "adamw, clipped": {"optimizer": ADAMW, "dtype": "fp32"},
    "no rate": {"optimizer": ADAMW | {"lr": 0.0}, "dtype": "fp32"},
    "amp_bf16": {"dtype": "amp_bf16"},
    "amp_fp16": {"dtype": "amp_fp16"},
    "amp_fp16 with a huge loss scale": {"dtype": "amp_fp16", "loss_scale": 2.0**20},
    "amp_fp16 with a tiny loss scale": {"dtype": "amp_fp16", "loss_scale": 2.0**-10},
    "bf16": {"dtype": "bf16", "optimizer": ADAMW},
    "fp16": {"dtype": "fp16"},
    "a wide buffer": {"dtype": "bf16", "accumulator": "fp32"},
    "sample mean": {"subject.mean": "sample"},
    "mean of micro-batches, equal": {"subject.mean": "micro_batch", "data.lengths": "fixed"},
    "auxiliary term": {"subject.z_loss": 0.1},
    "dropout by sample": {"model.dropout": 0.2},
    "moving average": {"ema": 0.9},
    "tied": {"model.tied": True},
    "frozen": {"model.frozen": ["embedding"]},
    "structurally zero gradients": {"model.attention_bias": True, "model.positions": "none"},
    "short windows": {"data.epoch_rows": 14, "data.last_window": "short", "steps": 6},
}


@pytest.mark.parametrize("case", CLEAN)
def test_right_code_is_not_accused(case: str) -> None:
    found = diagnose(Bench(lm_spec("none", **CLEAN[case])))
    assert found.answer == "rounding", [each.words for each in found.findings]


DEPENDENT: dict[str, dict[str, Any]] = {
    "batch_statistics": {"model.norm": "batchnorm"},
    "dropout_stream": {"model.dropout": 0.2, "model.dropout_masks": "stream"},
}


@pytest.mark.parametrize("kind", DEPENDENT)
def test_a_real_dependence_is_no_fault(kind: str) -> None:
    found = diagnose(Bench(lm_spec("none", **DEPENDENT[kind])))
    assert (found.answer, found.kind) == ("real_dependence", kind)


def test_negatives_within_a_micro_batch_are_a_real_dependence() -> None:
    found = diagnose(Bench(cached_spec("none", **{"subject.accumulation": "plain", "model.dropout": 0.0})))
    assert (found.answer, found.kind) == ("real_dependence", "in_batch_negatives")
    cached = diagnose(Bench(cached_spec("none")))
    assert cached.answer == "rounding"


def test_a_fault_is_seen_beside_a_real_dependence() -> None:
    spec = lm_spec("missing_division", **{"model.norm": "batchnorm"})
    assert diagnose(Bench(spec)).names == ("missing_division",)


def test_the_mean_of_micro_batch_means_that_a_loss_makes_is_named() -> None:
    spec = lm_spec("none", **{"subject.mean": "micro_batch"})
    assert diagnose(Bench(spec)).names == ("mean_of_means",)


def test_what_is_wrong_in_no_known_way_is_not_given_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from accum_sweeps.faults import catalogue
    from accum_sweeps.faults.buffer import Buffer, finish

    def odd(case: Any, training: Any, micro_batches: list[Any]) -> Any:
        buffer = Buffer(training)
        for number, member in enumerate(case.members(training, micro_batches)):
            buffer.add(
                dataclasses.replace(member, gradient=[None if g is None else g * (1.0, 1.7, 0.6, 1.2)[number] for g in member.gradient])
            )
        buffer.divide(buffer.terms)
        return finish(training, buffer)

    monkeypatch.setitem(catalogue.STEPS, "missing_division", odd)
    assert diagnose(Bench(lm_spec("missing_division"))).names == ("unknown_fault",)


SHORT = {"data.epoch_rows": 14, "data.last_window": "short", "steps": 6}


@pytest.mark.parametrize("name", ["missing_division", "double_division", "wrong_divisor_terms", "mean_of_means", "lost_micro_batches"])
def test_what_is_wrong_in_every_window_is_not_called_wrong_in_the_short_one_too(name: str) -> None:
    assert diagnose(Bench(lm_spec(name, **SHORT))).names == classes_of(name)
