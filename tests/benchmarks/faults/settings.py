"""From the names of a case's settings to the run that is diagnosed: small subjects, optimizers, and what a fault needs to act."""

import functools
from typing import Any

from accum_sweeps.plan.spec import RunSpec
from tests.contrastive import clip_spec
from tests.faults.subjects import RANKS, SMALL, corpus_hash
from tests.specs import make_spec

SUBJECTS = ("lm", "mlp", "tagger", "clip_cached", "clip_plain")
COUPLED = ("clip_plain",)  # the loss of a micro-batch depends on which samples share it
HOOKS = {"mlp": "tests.benchmarks.faults.hooks:Mlp", "tagger": "tests.benchmarks.faults.hooks:Tagger"}
_RATE = {"schedule": "cosine", "warmup_steps": 2}
_ADAMW = {"kind": "adamw", "lr": 1e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1, "max_norm": 1.0}
_MUON = {"kind": "muon", "lr": 0.02, "momentum": 0.95, "nesterov": True, "ns_steps": 5, "adamw_lr": 3e-3}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"kind": "sgd", "lr": 0.1, "momentum": 0.0, "nesterov": False, "weight_decay": 0.01, "max_norm": None} | _RATE,
    "adamw": _ADAMW | _RATE,
    "adamw_eps_1e-4": _ADAMW | _RATE | {"eps": 1e-4},
    "muon": _MUON | {"betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.05, "max_norm": 1.0} | _RATE,
}
FURTHER: dict[str, dict[str, Any]] = {  # of clean cases alone
    "adam": OPTIMIZERS["adamw"] | {"kind": "adam"},
    "momentum": OPTIMIZERS["sgd"] | {"momentum": 0.9, "nesterov": True},
}
CLIP = {"vision_layers": 1, "text_layers": 1, "vision_width": 16, "text_width": 16, "vision_heads": 2, "text_heads": 2, "projection": 8}
CLIP_SETTINGS = {f"model.{key}": value for key, value in CLIP.items()} | {"data.eval_rows": 8}
WINDOWS = ("short_window", "merged_window", "dropped_window", "mean_of_means+short_window")
CLIPPING = ("clip_per_micro_batch", "clip_each_micro_batch", "loss_scaling_clip")


def spec_of(subject: str, optimizer: str, k: int, rows: int, seed: int, **changes: Any) -> RunSpec:
    """The run of ``subject`` with ``k`` micro-batches of ``rows`` samples; ``changes`` as in ``make_spec``.

    Raises ConfigError where the settings do not go together.
    """
    ranks = changes.get("ranks", 1)
    settings: dict[str, Any] = {"steps": 5, "eval_every": 0, "accum": k, "global_batch": k * rows * ranks, "seed": seed}
    settings["optimizer"] = (OPTIMIZERS | FURTHER)[optimizer] | {"name": optimizer}
    settings |= {key: value for key, value in changes.items() if not key.startswith("optimizer.")}
    settings["optimizer"] = settings["optimizer"] | {
        key.removeprefix("optimizer."): value for key, value in changes.items() if key.startswith("optimizer.")
    }
    if subject in HOOKS:
        part = {"kind": "python", "name": subject, "target": HOOKS[subject], "args": settings.pop("args", {})}
        nothing = {"kind": "none", "name": "none"}
        return make_spec(subject=part, model=nothing, data=nothing, **settings)
    if subject.startswith("clip"):
        return clip_spec(**CLIP_SETTINGS | {"subject.accumulation": subject.removeprefix("clip_")} | settings)
    return make_spec(**SMALL | {"data.lengths": "uniform", "data.hash": corpus_hash()} | settings)


def needs_of(fault: str, subject: str, optimizer: str, dtype: str, k: int, rows: int, shortened: int) -> dict[str, Any]:
    """The settings without which ``fault`` could not act; ``shortened``: micro-batches that the short window lacks."""
    found: dict[str, Any] = {}
    parts = fault.split("+")
    if fault in WINDOWS:
        found |= {"data.epoch_rows": k * rows + (k - shortened) * rows, "data.last_window": "short"}
    if any(part in CLIPPING for part in parts):
        found["optimizer.max_norm"] = 0.05
    if fault in RANKS:
        found["ranks"] = 2
    if "auxiliary_scale" in parts:
        found["subject.z_loss"] = 0.1
    if "replay_randomness" in parts:
        found["model.dropout"] = 0.2
    if "state_per_micro_batch_ema" in parts:
        found["ema"] = 0.9
    if "accumulator_dtype" in parts and dtype == "bf16":
        found["accumulator"] = "fp32"
    if fault == "loss_scaling_overflow" and dtype == "amp_fp16":
        found["loss_scale"] = 65536.0
    return found


@functools.cache
def is_coupled(subject: str) -> bool:
    """Whether another cut of the batch changes more than rounding."""
    return subject in COUPLED
