"""Small runs of the built-in subjects in float64 in which a fault can act, and one step of them seen from inside."""

import functools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from accum_sweeps import subjects
from accum_sweeps.plan.spec import RunSpec
from accum_sweeps.training import controls
from accum_sweeps.training.data import corpus
from accum_sweeps.training.loop import TrainingSession
from tests.contrastive import clip_spec
from tests.faults.toy import Seen, flat
from tests.specs import BASE, make_spec

SMALL = {"model.layers": 1, "model.width": 16, "model.heads": 2, "model.ffn_width": 32, "data.seq_len": 12, "data.eval_rows": 4}
SHORT = {"data.epoch_rows": 14, "data.last_window": "short", "steps": 6}  # windows of 8 and 6 rows: 4 and 3 micro-batches
# Plain and unclipped: Adam and clipping hide a wrong length of the gradient.
SGD = {"kind": "sgd", "name": "sgd", "lr": 0.1, "momentum": 0.0, "nesterov": False, "weight_decay": 0.01}
SGD |= {"max_norm": None, "schedule": "cosine", "warmup_steps": 2}
CLIPPED = {"optimizer": SGD | {"max_norm": 0.5}}
NEEDS: dict[str, dict[str, Any]] = {
    "short_window": SHORT,
    "merged_window": SHORT,
    "dropped_window": SHORT,
    "mean_of_means+short_window": SHORT,
    "auxiliary_scale": {"subject.z_loss": 0.1},
    "loss_scaling": {"dtype": "amp_fp16"},
    "loss_scaling_clip": CLIPPED | {"dtype": "amp_fp16"},
    "clip_per_micro_batch": CLIPPED,
    "clip_each_micro_batch": CLIPPED,
    "missing_division+clip_per_micro_batch": CLIPPED,
    "mean_of_means+clip_per_micro_batch": CLIPPED,
    "state_per_micro_batch_count": {"optimizer": BASE["optimizer"]},
    "loss_scaling_overflow": {"dtype": "amp_fp16", "loss_scale": 65536.0},
    "state_per_micro_batch_ema": {"ema": 0.9},
}
RANKS = ("mean_of_means_over_ranks", "wrong_sync")


@functools.cache
def corpus_hash() -> str:
    """The hash of Python's library, as planning finds it."""
    return corpus.identify(make_spec().setup.data, 256).hash  # type: ignore[union-attr]


def lm_spec(fault: str, **changes: Any) -> RunSpec:
    """Four micro-batches of two ragged rows; whatever else ``fault`` needs."""
    settings: dict[str, Any] = {"optimizer": SGD, "dtype": "fp64", "accum": 4, "global_batch": 8, "steps": 5, "eval_every": 0}
    settings |= {"data.lengths": "uniform", "data.hash": corpus_hash()}
    ranks = {"ranks": 2, "accum": 2} if fault in RANKS else {}
    return make_spec(**SMALL | settings | ranks | NEEDS.get(fault, {}) | changes, fault=fault)


def cached_spec(fault: str, **changes: Any) -> RunSpec:
    """Gradient caching over four micro-batches of two pairs, with dropout."""
    settings: dict[str, Any] = {"subject.accumulation": "cached", "model.dropout": 0.2, "accum": 4, "global_batch": 8, "steps": 4}
    return clip_spec(**settings | {"dtype": "fp64", "eval_every": 0} | changes, fault=fault)


def session(spec: RunSpec) -> TrainingSession:
    """The run's session, as a worker makes it."""
    made = subjects.session(spec, Path(), 0)
    assert isinstance(made, TrainingSession)
    return made


def first_step(spec: RunSpec, number: int = 1) -> Seen:
    """Optimizer step ``number`` of the run, made from its initial weights."""
    run = session(spec)
    task, state = run.task, run.training
    state.position = number - 1
    seen = Seen(before=flat(state.parameters).clone())
    state.on_gradient = lambda: seen.gradients.append(_gradient(state.parameters))
    handle = state.optimizer.register_step_pre_hook(lambda *_: seen.clipped.append(_gradient(state.parameters)))
    seen.outcome = run.make_step(number, task.split(task.batch(number), controls.partition(spec, number, task.rows(number))))
    handle.remove()
    seen.after = flat(state.parameters).clone()
    return seen


def _gradient(parameters: list[torch.nn.Parameter]) -> Tensor:
    return flat([torch.zeros_like(p) if p.grad is None else p.grad for p in parameters])
