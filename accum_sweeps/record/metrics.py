"""Metric names and units, defined once, and the record that a training yields for each optimizer step."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy

    from accum_sweeps.record.sketches import TensorSketches

# Metrics of the built-in subjects, by step. Users' subjects may add names of their own.
TRAIN_LOSS = "train_loss"
EVAL_LOSS = "eval_loss"
GRAD_NORM = "grad_norm"
LR = "lr"
TOKENS = "tokens"
EVAL_LOSS_EMA = "eval_loss_ema"
LOSS_SCALE = "loss_scale"

UNITS: dict[str, str] = {
    TRAIN_LOSS: "nats per target token, mean over the optimizer step's tokens, before the update",
    EVAL_LOSS: "nats per target token on the fixed evaluation set, after the update",
    GRAD_NORM: "L2 norm of the whole gradient before clipping",
    LR: "learning rate of the optimizer step",
    EVAL_LOSS_EMA: "as eval_loss, of the moving average of the weights",
    LOSS_SCALE: "factor on the summed loss during the optimizer step (dtype=amp_fp16)",
    TOKENS: "target tokens seen so far",
}

# Final values of a run, one per run (table columns; in MLflow under final/).
FINAL_UNITS: dict[str, str] = {
    "train_loss_final": "nats per token at the last optimizer step",
    "eval_loss_final": "nats per token on the fixed evaluation set after the last optimizer step",
    "eval_perplexity_final": "exp of eval_loss_final",
    "train_loss_area": "mean of train_loss over all optimizer steps, nats per token",
    "tokens": "target tokens seen",
    "steps": "optimizer steps done",
    "diverged_step": "optimizer step whose training or evaluation loss was not finite, if any",
    "wall_s": "seconds spent in training, over all attempts that count",
    "peak_mem_gb": "largest resident memory of the worker so far (GPU: allocated memory), GiB",
}


def is_divergence(values: Mapping[str, float]) -> bool:
    """Whether a training loss or an evaluation loss among ``values`` is not finite: then the run has diverged."""
    return not all(math.isfinite(values[key]) for key in (TRAIN_LOSS, EVAL_LOSS) if key in values)


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRecord:
    """What one optimizer step gave: ``values`` by metric name; at probe steps the weights' sketch and hash too.

    ``sketch`` is float64 of shape (4096,); ``weights_hash`` is the hex digest of the exact weights; ``tensors`` holds the
    same tensor by tensor, where the run was asked for that. ``is_diverged`` says that the loss was not finite: no further
    step follows. ``is_checkpoint`` says that the subject has by itself saved all it needs to continue after this step. A
    record without values is a sign of life only.
    """

    step: int
    values: Mapping[str, float] = field(default_factory=dict)
    sketch: "numpy.ndarray | None" = None
    weights_hash: str = ""
    tensors: "TensorSketches | None" = None
    is_diverged: bool = False
    is_checkpoint: bool = False
