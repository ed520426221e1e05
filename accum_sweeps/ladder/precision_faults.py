"""Faults that exist only in a run's own precision: the loss scale, the buffer, gradients that are not finite, and steps that ask for it."""

import dataclasses
import math

from torch import Tensor

from accum_sweeps.ladder import changes
from accum_sweeps.ladder.bench import Bench
from accum_sweeps.ladder.findings import Experiment, Finding
from accum_sweeps.ladder.geometry import geometry
from accum_sweeps.ladder.gradient_faults import Seen, gradient_faults, seen, unknown
from accum_sweeps.ladder.observation import Observation
from accum_sweeps.ladder.oracle import Tampering
from accum_sweeps.ladder.roundoff import UNITS
from accum_sweeps.ladder.shares import norm
from accum_sweeps.plan.spec import RunSpec

VISIBLE = 0.02  # of a share: a loss scale in the wrong place changes shares by more than half, rounding of half precision by less than this
OTHER_SCALE = 16.0
BEYOND = 10.0  # times what the right code's rounding leaves of the same micro-batches: more than that is no rounding
OWN_ROUNDING = 8.0  # units in which an own step's gradient may be off without accumulation
WELL_TOLD = 0.1  # where shares are known no better, what they look like names nothing


def precision_faults(bench: Bench) -> list[Finding]:
    """What is wrong in the run's own precision alone."""
    spec = bench.spec
    scaled = _scaling(bench, spec) if spec.setup.dtype == "amp_fp16" else None
    if scaled is not None:
        return [scaled]
    found = [*_not_finite(bench, spec), *_buffer(bench, spec)]
    return found or (_here_alone(bench, changes.without_clipping(spec)) if bench.has_fp64 and spec.setup.dtype != "fp64" else [])


def _scaling(bench: Bench, spec: RunSpec) -> Finding | None:
    """Whether the loss scale matters: nothing but rounding should depend on it."""
    scale = spec.setup.loss_scale if spec.setup.loss_scale != 1 else OTHER_SCALE
    scaled, plain = (_scale_errors(bench, changes.changed(spec, loss_scale=value)) for value in (scale, 1.0))
    for before, after, words in zip(scaled, plain, ("before clipping", "after clipping"), strict=True):
        if before > VISIBLE and after < before / 10:
            proof = Experiment(words="a loss scale of 1", before=before, after=after)
            text = f"with a loss scale of {scale:g} the gradient {words} is {before:.3g} from the right one, relative"
            return Finding(name="loss_scaling", rung=5 if "after" in words else 4, words=text, experiments=(proof,))
    return None


def _scale_errors(bench: Bench, spec: RunSpec) -> tuple[float, float]:
    """How far the gradient is from the right one, before and after clipping."""
    own, right = bench.code(spec).observe(), bench.right(changes.one_rank(spec)).observe()
    free, right_free = (_without_limit(bench, spec, is_correct) for is_correct in (False, True))
    return geometry(free.gradient, right_free.gradient).relative, geometry(own.clipped, right.clipped).relative


def _without_limit(bench: Bench, spec: RunSpec, is_correct: bool) -> Observation:
    free = changes.without_clipping(changes.one_rank(spec) if is_correct else spec)
    return (bench.right if is_correct else bench.code)(free).observe()


def _not_finite(bench: Bench, spec: RunSpec) -> list[Finding]:
    """What becomes of a window in which one micro-batch has an infinite gradient."""
    spoiled = Tampering(spoils=0)
    right = bench.right(changes.one_rank(spec), tampering=spoiled).observe()
    if not math.isinf(norm(right.gradient)) and not math.isnan(norm(right.gradient)):
        return []  # the parameter that was spoiled has no gradient here
    own = bench.code(spec, tampering=spoiled).observe()
    is_moved = any(bool((own.after[name] != own.before[name]).any()) for name in own.after)
    is_finite = all(bool(part.isfinite().all()) for part in own.after.values())
    if bench.has_own_step and any(_is_cut_by_element(part) for part in own.gradient.values()):
        return []
    # A gradient of 0 tells nothing, but where it would overflow as a whole.
    is_full = norm(bench.code(spec).observe().gradient) > 0 or not math.isfinite(
        norm(bench.right(changes.one_rank(spec)).observe().gradient)
    )
    if not (is_moved and is_finite and is_full and spec.setup.optimizer.lr > 0):
        return []
    words = "one micro-batch with an infinite gradient: the update is made all the same, from finite numbers"
    proof = Experiment(
        words="the right step with the same micro-batch makes no update, or one that is not finite", before=math.inf, after=math.nan
    )
    return [Finding(name="loss_scaling", variant="loss_scaling_overflow", rung=5, words=words, experiments=(proof,))]


def _is_cut_by_element(gradient: Tensor) -> bool:
    """Whether every element is at a limit of its own: an infinite gradient is a finite one then, with or without accumulation."""
    return gradient.numel() > 1 and bool(gradient.abs().min() == gradient.abs().max() > 0)


def _buffer(bench: Bench, spec: RunSpec) -> list[Finding]:
    """Whether the chosen buffer is coarser than the gradients that go into it, and shows."""
    if spec.setup.accumulator != "bf16" or spec.setup.dtype == "bf16" or spec.accum == 1:
        return []
    low, high = (_rest(bench, spec, accumulator) for accumulator in ("bf16", "fp32"))
    if low.step.shares.rest <= 10 * high.step.shares.rest:
        return []
    proof = Experiment(words="a float32 buffer", before=low.step.shares.rest, after=high.step.shares.rest)
    words = f"the gradient buffer is bfloat16, and {low.step.shares.rest:.3g} of the gradient is its rounding"
    return [Finding(name="accumulator_dtype", rung=4, words=words, experiments=(proof,))]


def _rest(bench: Bench, spec: RunSpec, accumulator: str) -> Seen:
    return seen(bench, changes.without_clipping(changes.changed(spec, accumulator=accumulator)))


def _here_alone(bench: Bench, spec: RunSpec) -> list[Finding]:
    """What a step does in this precision and not in float64, where it was right: one may ask whether autocast is on, say.

    The right code's micro-batches have the same shapes and the same arithmetic, so that what is left is the rounding of their sum.
    """
    found, rounding = seen(bench, spec), bench.rounding_of_sum(spec)
    if not math.isfinite(rounding):
        return []  # it overflows in the right code too
    unit = UNITS[spec.setup.dtype]
    if bench.has_own_step:  # which may round otherwise than the product's, with one micro-batch too
        alone = seen(bench, dataclasses.replace(spec, accum=1)).off
        is_rounding = alone <= OWN_ROUNDING * unit
        if bench.has_train and not is_rounding:
            return []  # a trainer may compute in another precision than the one that is asked about
        rounding = max(rounding, unit, alone if is_rounding else 0.0)
    off = found.step.shares.sums.eta if bench.hides_length else found.off
    if off <= BEYOND * max(rounding, UNITS["fp32"]):
        return []
    is_told = found.tolerance <= WELL_TOLD and math.isfinite(found.off) and not found.is_right
    named = gradient_faults(bench, found) if is_told else []
    return [dataclasses.replace(each, words=f"in {spec.setup.dtype}, not in float64: {each.words}") for each in named or [unknown(found)]]
