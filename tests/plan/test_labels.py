"""Tests of accum_sweeps.plan.labels."""

from typing import Any

from accum_sweeps.plan.labels import run_name, setup_labels
from tests.plan.grids import SGD
from tests.specs import make_spec

NONE = {"kind": "none", "name": "none"}
HOOK = {"kind": "python", "name": "python", "target": "m:C", "args": {}, "code_hash": "ab"}


def labels(*changes: dict[str, Any]) -> list[str]:
    """Labels of the base setup with each of ``changes``."""
    return setup_labels([make_spec(**change).setup for change in changes])


def test_one_setup_has_its_words() -> None:
    assert labels({}) == ["lm-tiny adamw fp32"]
    assert labels({"subject": HOOK, "model": NONE, "data": NONE}) == ["python adamw fp32"]


def test_varied_keys_are_named_by_their_last_part() -> None:
    assert labels({"model.norm": "none"}, {"model.norm": "rmsnorm", "dtype": "bf16"}, {"model.norm": "rmsnorm"}) == [
        "lm-tiny adamw fp32 norm=none",
        "lm-tiny adamw bf16 norm=rmsnorm",
        "lm-tiny adamw fp32 norm=rmsnorm",
    ]


def test_what_an_optimizer_brings_along_is_said_by_its_name() -> None:
    assert labels({}, {"optimizer": SGD}) == ["lm-tiny adamw fp32", "lm-tiny sgd fp32"]


def test_key_that_some_setups_lack_is_left_out_there() -> None:
    assert labels({"optimizer.eps": 1e-4}, {}, {"optimizer": SGD}) == [
        "lm-tiny adamw fp32 eps=0.0001",
        "lm-tiny adamw fp32 eps=1e-08",
        "lm-tiny sgd fp32",
    ]


def test_ambiguous_last_parts_are_written_out() -> None:
    hook = {**HOOK, "args": {"lr": 1}}
    both = {"model": NONE, "data": NONE}
    assert labels({"subject": hook, **both}, {"subject": {**hook, "args": {"lr": 2}}, "optimizer.lr": 0.5, **both}) == [
        "python adamw fp32 subject.args.lr=1 optimizer.lr=0.001",
        "python adamw fp32 subject.args.lr=2 optimizer.lr=0.5",
    ]


def test_data_preset_is_named_where_it_varies() -> None:
    text = {"kind": "text", "name": "text", "path": "/a", "seq_len": 32, "lengths": "fixed", "eval_rows": 4}
    assert labels({}, {"data": text}) == ["lm-tiny adamw fp32 data=stdlib", "lm-tiny adamw fp32 data=text"]


def test_lists_and_null_are_written_as_on_the_command_line() -> None:
    assert labels({"optimizer.max_norm": None}, {"optimizer.max_norm": 1.0, "probe_steps": [1, 2]}) == [
        "lm-tiny adamw fp32 max_norm=null probe_steps=[1]",
        "lm-tiny adamw fp32 max_norm=1.0 probe_steps=[1,2]",
    ]


def test_setups_that_differ_only_in_hashes_get_distinct_labels() -> None:
    first, second = make_spec(**{"data.hash": "01"}).setup, make_spec(**{"data.hash": "02"}).setup
    assert setup_labels([first, second]) == [f"lm-tiny adamw fp32 #{setup.setup_id}" for setup in (first, second)]


def test_run_names_add_k_seed_and_what_is_not_the_default() -> None:
    assert run_name("lm", make_spec(accum=4, seed=2)) == "lm k=4 s=2"
    assert run_name("lm", make_spec(seed=2, seed_init=5, seed_dropout=2)) == "lm k=1 s=2 init=5"
    assert run_name("lm", make_spec(control="ulp_weights", replicate=1, seed_data=3)) == "lm k=1 s=0 data=3 ctl=ulp_weights rep=1"
