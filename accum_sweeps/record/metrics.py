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
    "eval_loss_ema_final": "as eval_loss_final, of the moving average of the weights, where there is one",
    "train_loss_area": "mean of train_loss over all optimizer steps, nats per token",
    "tokens": "target tokens seen",
    "steps": "optimizer steps done",
    "diverged_step": "optimizer step whose training or evaluation loss was not finite, if any",
    "wall_s": "seconds spent in training, over all attempts that count",
    "peak_mem_gb": "largest resident memory of the worker so far (GPU: allocated memory), GiB",
}

# What measure=one_step records of this run's step against the same step in one batch, at the same weights. "Relative" is the L2
# norm of the difference over that of the one-batch quantity. "allclose" is torch's at its default rtol of 1e-5, the test that
# people use; "failing" counts at atol 1e-7.
_AMPLIFICATION_UNITS: dict[str, str] = {
    "gradient_difference": "relative difference of the whole gradient, before clipping",
    "update_difference": "relative difference of the whole update of the weights",
    "gain": "update_difference over the relative difference of what the optimizer was given (the clipped gradient)",
    "prediction": "measured difference of the updates over that of the closed form of the optimizer's first step (L2 norms)",
    "soft_share": "share of the squared update difference from elements with |g| < 10 eps (Adam, AdamW)",
    "flip_share": "share of the squared update difference from elements whose gradients differ in sign",
    "weights_tolerance": "smallest atol at which allclose passes on the weights after the step",
    "weights_failing": "elements of the weights after the step that fail allclose",
}
ONE_STEP_UNITS: dict[str, str] = {
    "forward_difference": "relative difference of the network's outputs",
    "forward_largest": "largest absolute difference of the network's outputs",
    "forward_tolerance": "smallest atol at which allclose passes on the network's outputs",
    "forward_moved": "elements of the network's outputs that differ at all",
    "forward_size": "root mean square of the network's outputs",
    "loss_difference": "relative difference of the summed loss",
    "terms_difference": "difference of the number of terms (target tokens), exact",
    "gradient_largest": "largest absolute difference of the gradient",
    "gradient_tolerance": "smallest atol at which allclose passes on the gradient",
    "gradient_failing": "elements of the gradient that fail allclose",
    "gradient_moved": "elements of the gradient that differ at all",
    "gradient_size": "root mean square of the gradient",
    "gradient_worst_tensor": "largest relative difference of one tensor's gradient (of the whole where its own is zero but for rounding)",
    "gradient_error": "relative difference of the gradient from the one-batch gradient computed in float64",
    "gradient_error_one_batch": "the same of the one-batch gradient",
    "zero_tensors": "tensors whose gradient is zero but for rounding",
    "clipped_difference": "relative difference of the clipped gradient, which the optimizer is given",
    **_AMPLIFICATION_UNITS,
    "soft_elements": "proportion of the elements with a gradient for which |g| < 10 eps",
    "flip_elements": "proportion of the elements with a gradient for which its sign differs",
    "largest_share": "share of the squared update difference from the tensor with the largest",
    "weights_difference": "relative difference of the weights after the step",
    "weights_largest": "largest absolute difference of the weights after the step",
    "weights_moved": "elements of the weights after the step that differ at all",
    "weights_size": "root mean square of the weights after the step",
    "weights_not_finite": "elements of the weights after the step that are not finite; then nothing is said of the update",
    "weights_failing_tensors": "tensors with an element that fails allclose after the step",
    "buffers_difference": "relative difference of the model's buffers after the step",
    "tensors": "trained tensors",
    "parameters": "trained parameters, elements",
}
INTERVENTIONS: dict[str, str] = {
    "eps_1e_4": "the optimizer's eps at 1e-4",
    "eps_1e_15": "the optimizer's eps at 1e-15",
    "fp64_gradients": "gradients computed in float64 and then cast",
    "fp64_accumulation": "gradients of micro-batches summed in float64, computed as before",
    "frozen_tensor": "the tensor with the largest share not trained",
}
ONE_STEP_UNITS |= {
    f"{metric}_{name}": f"{unit}; {what}" for name, what in INTERVENTIONS.items() for metric, unit in _AMPLIFICATION_UNITS.items()
}

# What measure=ladder records: by rung what was found, and what rounding alone may do.
LADDER_RUNGS: dict[str, str] = {
    "rerun": "rung 0: relative difference of the gradient of the same step made again",
    "terms": "rung 1: number of terms less the right one",
    "outputs": "rung 2: relative difference of the network's outputs from those of one batch",
    "loss": "rung 3: relative difference of the summed loss",
    "gradient": "rung 4: relative difference of the whole gradient, before clipping",
    "tensor": "rung 4: relative difference of the gradient of the tensor that differs most",
    "bias": "rung 4: mean over windows of <g - r, r> / <r, r>, g the whole gradient and r the right one",
    "clipped": "rung 5: relative difference of what the optimizer is given",
    "update": "rung 6: relative difference of the update",
    "state": "rung 7: relative difference of weights, optimizer state and moving average from those that the same gradient gives",
    "windows": "rung 8: largest relative difference of a window's gradient from the right one",
    "log": "rung 9: relative difference of the logged loss from the loss of the step's micro-batches",
}
LADDER_UNITS: dict[str, str] = {f"ladder_{name}": meaning for name, meaning in LADDER_RUNGS.items()}
LADDER_UNITS |= {f"ladder_{name}_floor": f"what rounding alone may do to ladder_{name}" for name in LADDER_RUNGS}
LADDER_UNITS |= {
    "ladder_gain": "relative difference of the update over that of the clipped gradient",
    "ladder_resolution": "a fault that changes the gradient by less, relative, would not have been seen",
    "ladder_seconds": "seconds that the ladder took",
}
TEXT_UNITS: dict[str, str] = {
    "diagnosis": "measure=ladder: rounding, amplified_rounding, fault classes joined by +, real_dependence, below_floor, not_observable",
    "diagnosis_detail": "measure=ladder: the mechanism of the amplification, or the kind of the dependence",
}


def is_divergence(values: Mapping[str, float]) -> bool:
    """Whether a training loss or an evaluation loss among ``values`` is not finite: then the run has diverged."""
    return not all(math.isfinite(values[key]) for key in (TRAIN_LOSS, EVAL_LOSS) if key in values)


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRecord:
    """What one optimizer step gave: ``values`` by metric name; at probe steps the weights' sketch and hash too.

    ``sketch`` is float64 of shape (4096,); ``weights_hash`` is the hex digest of the exact weights; ``tensors`` holds the
    same tensor by tensor, where the run was asked for that. ``texts`` are answers in words, by the names of
    TEXT_UNITS. ``is_diverged`` says that the loss was not finite: no further
    step follows. ``is_checkpoint`` says that the subject has by itself saved all it needs to continue after this step. A
    record without values is a sign of life only.
    """

    step: int
    values: Mapping[str, float] = field(default_factory=dict)
    sketch: "numpy.ndarray | None" = None
    weights_hash: str = ""
    tensors: "TensorSketches | None" = None
    texts: Mapping[str, str] = field(default_factory=dict)
    is_diverged: bool = False
    is_checkpoint: bool = False
