"""Tests of accum_sweeps.plan.spec: identity, validation, and the way to plain values and back."""

import json
from typing import Any

import pytest

from accum_sweeps.plan.errors import ConfigError
from accum_sweeps.plan.spec import RUN_KEYS, SETUP_KEYS, from_dict
from tests.specs import BASE, make_spec

SGD = {
    "kind": "sgd",
    "name": "sgd",
    "lr": 0.1,
    "momentum": 0.9,
    "nesterov": True,
    "weight_decay": 0.0,
    "max_norm": None,
    "schedule": "constant",
    "warmup_steps": 0,
}
HOOK = {"kind": "python", "name": "mine", "target": "my.module:Setup", "args": {"width": 8}, "files": ["a.py"], "code_hash": "00ff"}
NONE = {"kind": "none", "name": "none"}

COMPLETE = {
    "subject": {"kind": "lm", "name": "lm"},
    "model": {
        "kind": "decoder",
        "name": "tiny",
        "layers": 2,
        "width": 96,
        "heads": 4,
        "ffn_width": 256,
        "norm": "rmsnorm",
        "qk_norm": False,
        "positions": "rope",
        "vocabulary": 256,
    },
    "optimizer": {
        "kind": "adamw",
        "name": "adamw",
        "lr": 1e-3,
        "betas": [0.9, 0.95],
        "eps": 1e-8,
        "weight_decay": 0.1,
        "max_norm": 1.0,
        "schedule": "cosine",
        "warmup_steps": 2,
    },
    "data": {"kind": "stdlib", "name": "stdlib", "seq_len": 64, "lengths": "documents", "eval_rows": 32, "hash": ""},
    "fault": "none",
    "dtype": "fp32",
    "accumulator": "param",
    "global_batch": 16,
    "ranks": 1,
    "steps": 10,
    "eval_every": 5,
    "probe_steps": [1],
    "device": "cpu",
    "threads": 1,
    "deterministic": True,
    "accum": 1,
    "seed": 0,
    "control": "none",
    "replicate": 0,
}
# A finished run is found again by its run_id: none of these may ever change.
GOLDEN: dict[str, dict[str, Any]] = {
    "7ebcf0b41417112c8d52": {},
    "601dec3ddff784fc6c37": {"accum": 4, "seed": 7, "control": "ulp_weights", "replicate": 1},
    "e4bebc8847e1f0b31c6f": {"optimizer": SGD, "dtype": "bf16", "accumulator": "fp32", "seed_data": 3},
    "2aa1a7a830c297fd8d62": {"subject": HOOK, "model": NONE, "data": NONE, "device": "cuda", "threads": 2, "deterministic": False},
}


@pytest.mark.parametrize("run_id", GOLDEN)
def test_run_id_is_what_it_was_in_every_release(run_id: str) -> None:
    assert from_dict({**COMPLETE, **GOLDEN[run_id]}).run_id == run_id


def test_labels_and_places_are_no_part_of_the_identity() -> None:
    text = {"kind": "text", "name": "text", "path": "/a", "pattern": "*", "seq_len": 8, "lengths": "fixed", "eval_rows": 4, "hash": "ab"}
    here = make_spec(data=text)
    elsewhere = {**text, "path": "/elsewhere", "pattern": "*.txt", "name": "mine"}
    there = make_spec(data=elsewhere, **{"model.name": "other", "optimizer.name": "x"})
    assert here.run_id == there.run_id
    assert here.setup.setup_id == there.setup.setup_id


CHANGES: dict[str, Any] = {
    "model.norm": "layernorm",
    "model.qk_norm": True,
    "optimizer.lr": 2e-3,
    "optimizer.betas": [0.9, 0.99],
    "optimizer.max_norm": None,
    "data.hash": "01",
    "data.seq_len": 32,
    "dtype": "bf16",
    "accumulator": "fp32",
    "global_batch": 32,
    "steps": 11,
    "eval_every": 4,
    "probe_steps": [2],
    "device": "cuda",
    "threads": 2,
    "deterministic": False,
    "accum": 2,
    "seed": 1,
    "seed_init": 1,
    "seed_data": 1,
    "seed_dropout": 1,
    "control": "order",
    "replicate": 1,
}


def test_every_key_that_can_change_a_number_changes_the_run_id() -> None:
    ids = [make_spec().run_id] + [make_spec(**{key: value}).run_id for key, value in CHANGES.items()]
    assert len(set(ids)) == len(CHANGES) + 1


def test_run_id_is_the_hash_of_the_canonical_json() -> None:
    spec = make_spec(accum=2, control="order")
    identity = json.loads(spec.identity)
    assert identity["run"] == {"accum": 2, "control": "order", "replicate": 0, "seed": 0, "seed_data": 0, "seed_dropout": 0, "seed_init": 0}
    assert json.dumps(identity, sort_keys=True, separators=(",", ":")) == spec.identity


def test_equal_numbers_written_differently_are_one_run() -> None:
    assert make_spec(**{"optimizer.max_norm": 1, "optimizer.betas": (0.9, 0.95)}).run_id == make_spec().run_id


def test_dictionary_form_comes_back_as_the_same_run() -> None:
    spec = make_spec(**GOLDEN["2aa1a7a830c297fd8d62"])
    again = from_dict(json.loads(json.dumps(spec.to_dict())))
    assert again == spec
    assert again.run_id == spec.run_id
    assert set(spec.to_dict()) == {*SETUP_KEYS, *RUN_KEYS, "spec_version"}


def test_seed_sets_the_streams_that_are_not_set_alone() -> None:
    spec = make_spec(seed=5, seed_data=9, seed_init=None)
    assert (spec.seed_init, spec.seed_data, spec.seed_dropout) == (5, 9, 5)


def test_micro_batch_is_the_batch_cut_by_ranks_and_accum() -> None:
    assert [make_spec(accum=k).micro_batch for k in (1, 2, 4, 8, 16)] == [16, 8, 4, 2, 1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"accum": 3}, "accum=3: does not divide the batch: global_batch=16 over ranks=1; possible: 1, 2, 4, 8, 16"),
        ({"accum": 0}, "accum=0: must be at least 1"),
        ({"seed": -1}, "seed=-1: must be at least 0"),
        ({"dtype": "fp15"}, "dtype='fp15': must be one of amp_bf16, amp_fp16, bf16, fp16, fp32, fp64, tf32, tf32_emulated"),
        ({"control": "ulp_weigths"}, "control='ulp_weigths': must be one of none, order, permute, regroup, ulp_grads, "),
        ({"model.heads": 5}, "model.heads=5: must divide model.width=96"),
        ({"model.heads": 32}, "model.heads=32: rope needs an even width per head, here 3"),
        ({"optimizer": {**SGD, "momentum": 0.0}}, "optimizer.nesterov=True: needs optimizer.momentum above 0"),
        ({"optimizer": {**SGD, "eps": 1.0}}, "optimizer.eps=1.0: there is no such key"),
        ({"optimizer": {**SGD, "kind": "sdg"}}, "optimizer.kind='sdg': must be one of adam, adamw, muon, sgd (did you mean sgd?)"),
        ({"probe_steps": [11]}, "probe_steps=[11]: must lie between 1 and steps=10"),
        ({"data": NONE}, "data='none': subject=lm needs another one: a preset of kind stdlib or text or tokens"),
        (
            {"data.epoch_rows": 15},
            "data.epoch_rows=15: an epoch has no whole global batch of 16, and data.last_window=drop leaves the rest out",
        ),
        ({"model.norm": "batchnorm", "accum": 2, "control": "regroup"}, "control='regroup': changes more than rounding here: batchnorm's"),
        (
            {"model.dropout": 0.1, "model.dropout_masks": "stream", "control": "permute"},
            "control='permute': changes more than rounding here",
        ),
        ({"subject": {**BASE["subject"], "mean": "micro_batch"}, "accum": 2, "control": "regroup"}, "control='regroup': changes more than"),
        (
            {"subject": {**BASE["subject"], "mean": "micro_batch"}, "accum": 2, "control": "regroup", "data.lengths": "fixed"}
            | {"data.epoch_rows": 20, "data.last_window": "short"},
            "control='regroup': changes more than",
        ),
        ({"loss_scale": 4.0}, "loss_scale=4.0: has no effect here: it needs dtype=amp_fp16"),
        ({"reduced_precision_reduction": False}, "reduced_precision_reduction=False: has no effect here"),
        ({"ema": 0.9, "measure": "one_step"}, "ema=0.9: has no effect here: it needs steps within the service"),
        ({"probe_tensors": True, "measure": "one_step"}, "probe_tensors=True: has no effect here"),
        ({"model.norm_groups": 2}, "model.norm_groups=2: has no effect here: it needs model.norm=groupnorm"),
        ({"model.dropout_masks": "stream"}, "model.dropout_masks='stream': has no effect here: it needs model.dropout above 0"),
        ({"data.last_window": "short"}, "data.last_window='short': has no effect here: it needs data.epoch_rows"),
        ({"model.norm": "batchnorm", "accum": 16}, "model.norm='batchnorm': needs two samples or more in every micro-batch; accum=16 "),
        ({"model.norm": "batchnorm", "accum": 4, "data.epoch_rows": 37, "data.last_window": "short"}, "model.norm='batchnorm': needs two "),
        ({"model.norm": "groupnorm", "model.norm_groups": 5}, "model.norm_groups=5: must divide model.width=96"),
        ({"spec_version": 99}, "spec_version=99: this release reads up to 1"),
        ({"step": 3}, "step=3: there is no such key"),
    ],
)
def test_impossible_runs_are_refused_with_key_and_value(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_spec(**changes)
    assert str(caught.value).startswith(words)


def test_every_key_without_a_default_is_required() -> None:
    for key in BASE:
        with pytest.raises(ConfigError, match=rf"^{key}=None: "):
            from_dict({name: value for name, value in BASE.items() if name != key})
