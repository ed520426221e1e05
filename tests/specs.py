"""Complete small specifications for tests."""

from typing import Any

from accum_sweeps.plan.spec import RunSpec, from_dict

BASE: dict[str, Any] = {
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


def make_spec(**changes: Any) -> RunSpec:
    """The base specification with ``changes``: top-level keys, or dotted ones as in ``**{"model.norm": "none"}``."""
    values = {key: dict(value) if isinstance(value, dict) else value for key, value in BASE.items()}
    for key, value in changes.items():
        group, _, name = key.partition(".")
        if name:
            values[group][name] = value
        else:
            values[key] = value
    return from_dict(values)
