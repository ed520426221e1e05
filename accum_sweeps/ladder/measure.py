"""From a pair of observations to the metrics of ``record.metrics.ONE_STEP_UNITS``."""

import math
from dataclasses import dataclass, field

from torch import Tensor

from accum_sweeps.ladder.amplification import Amplification, amplification, first_step, soft_eps
from accum_sweeps.ladder.compare import Difference, Part, difference, part, ratio, total
from accum_sweeps.ladder.interventions import Pair
from accum_sweeps.ladder.observation import Observation
from accum_sweeps.ladder.roundoff import BY_TENSOR
from accum_sweeps.record.metrics import GRAD_NORM, LR, TOKENS, TRAIN_LOSS
from accum_sweeps.training import optimizers
from accum_sweeps.training.task import Rows


class Outputs:
    """The reference's outputs by row, and what the arm's differ from them, row by row as they come."""

    def __init__(self) -> None:
        self._kept: list[Tensor] = []
        self._parts: list[Part] = []

    def fresh(self) -> "Outputs":
        """The same reference, to compare others with."""
        other = Outputs()
        other._kept = self._kept
        return other

    def keep(self, rows: Rows, tensors: list[Tensor]) -> None:
        """The outputs of the whole batch, whose rows stand in their own order."""
        self._kept = tensors

    def compare(self, rows: Rows, tensors: list[Tensor]) -> None:
        """The outputs of the micro-batch with these rows; those whose shape depends on the cut cannot be compared."""
        for kept, tensor in zip(self._kept, tensors, strict=False):
            if kept.shape[1:] == tensor.shape[1:]:
                self._parts += [part(own.to(kept.dtype), kept[row]) for row, own in zip(rows.tolist(), tensor, strict=True)]

    @property
    def difference(self) -> Part | None:
        """Over all outputs; None where there was nothing to compare."""
        return total(self._parts) if self._parts else None


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The differences of a pair, without its tensors. ``roundoff`` is that of the parameters' dtype."""

    gradient: Difference
    weights: Difference
    amplified: Amplification
    roundoff: float = field(repr=False)

    def metrics(self) -> dict[str, float]:
        """Those that an intervention is judged by."""
        values = {
            "gradient_difference": self.gradient.whole.relative,
            "update_difference": self.amplified.update,
            "gain": self.amplified.gain,
            "prediction": self.amplified.prediction,
            "soft_share": self.amplified.soft_share,
            "flip_share": self.amplified.flip_share,
            "weights_tolerance": self.weights.whole.tolerance,
            "weights_failing": float(self.weights.whole.failing),
        }
        return {name: value for name, value in values.items() if not math.isnan(value)}

    def further_metrics(self) -> dict[str, float]:
        """The others of a step, of gradient, update and weights."""
        gradient, weights = self.gradient, self.weights
        values = {
            "gradient_largest": gradient.whole.largest,
            "gradient_tolerance": gradient.whole.tolerance,
            "gradient_failing": gradient.whole.failing,
            "gradient_moved": gradient.whole.moved,
            "gradient_size": gradient.whole.size,
            "gradient_worst_tensor": max(gradient.by_tensor(self.roundoff).values(), default=0.0),
            "zero_tensors": len(gradient.zero_tensors(self.roundoff)),
            "clipped_difference": self.amplified.gradient,
            "soft_elements": self.amplified.soft_elements,
            "flip_elements": self.amplified.flip_elements,
            "largest_share": max(self.amplified.by_tensor.values(), default=0.0),
            "weights_difference": weights.whole.relative,
            "weights_largest": weights.whole.largest,
            "weights_moved": weights.whole.moved,
            "weights_size": weights.whole.size,
            "weights_failing_tensors": weights.failing_tensors,
            "tensors": len(weights.parts),
            "parameters": weights.whole.elements,
        }
        return {name: value for name, value in values.items() if not math.isnan(value)}


def measured(pair: Pair) -> Measured:
    """The differences of ``pair``. The closed form is that of a first step, at the schedule's rate, by the settings' optimizer."""
    setup = pair.spec.setup
    rule = None
    if pair.has_settings_optimizer:
        rule = first_step(setup.optimizer, setup.optimizer.lr * optimizers.schedule(setup.optimizer, setup.steps)(1))
    dtype = next(iter(pair.reference.after.values())).dtype
    return Measured(
        gradient=difference(pair.arm.gradient, pair.reference.gradient),
        weights=difference(pair.arm.after, pair.reference.after),
        amplified=amplification(pair.arm, pair.reference, rule, soft_eps(setup.optimizer)),
        roundoff=BY_TENSOR[dtype],
    )


def step_metrics(pair: Pair, found: Measured, outputs: Part | None) -> dict[str, float]:
    """All metrics of a step; those of the arm itself under the names that a training gives them."""
    arm, reference = pair.arm, pair.reference
    own = {TRAIN_LOSS: arm.loss, GRAD_NORM: _norm(arm), LR: arm.lr, TOKENS: arm.tokens}
    sums = {
        "loss_difference": ratio(abs(arm.loss_sum - reference.loss_sum), abs(reference.loss_sum)),
        "terms_difference": arm.terms - reference.terms,
    }
    broken = {"weights_not_finite": float(sum(int((~after.isfinite()).sum()) for after in arm.after.values()))}
    return own | _forward(outputs) | sums | broken | found.metrics() | found.further_metrics() | _buffers(pair)


def gradient_errors(pair: Pair, exact: Observation) -> dict[str, float]:
    """How far both gradients of ``pair`` are from the float64 gradient of ``exact``: accumulation need not be the less accurate."""
    sides = {"gradient_error": pair.arm, "gradient_error_one_batch": pair.reference}
    wide = {key: {name: g.double() for name, g in seen.gradient.items()} for key, seen in sides.items()}
    return {key: difference(gradient, exact.gradient).whole.relative for key, gradient in wide.items()}


def _norm(seen: Observation) -> float:
    return math.sqrt(sum(float(g.double().square().sum()) for g in seen.gradient.values()))


def _forward(outputs: Part | None) -> dict[str, float]:
    if outputs is None:
        return {}
    return {
        "forward_difference": outputs.relative,
        "forward_largest": outputs.largest,
        "forward_tolerance": outputs.tolerance,
        "forward_moved": outputs.moved,
        "forward_size": outputs.size,
    }


def _buffers(pair: Pair) -> dict[str, float]:
    floating = [{n: b for n, b in seen.buffers.items() if b.is_floating_point()} for seen in (pair.arm, pair.reference)]
    return {"buffers_difference": difference(*floating).whole.relative} if floating[1] else {}
