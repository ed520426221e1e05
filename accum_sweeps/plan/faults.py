"""The known accumulation faults by name: what each one is, what it needs to act, and what ``fault_strength`` does to it.

``accum_sweeps.faults`` has the faulty steps themselves. A name with a plus is two faults at once. Standard library only.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from accum_sweeps.plan.errors import ConfigError, one_of

if TYPE_CHECKING:
    from accum_sweeps.plan.spec import Setup

NONE = "none"
HINT = "In a grid leave such cells out: 'exclude=[{fault: ..., ...: ...}]', or give the other axis a condition."
Need = tuple[Callable[[Any], bool], str]  # whether a setup fulfils it, and the words for it


@dataclass(frozen=True, kw_only=True)
class Strength:
    """What ``fault_strength`` means for a fault: a number above ``above``, at most ``at_most``; at ``inert`` there is no fault.

    ``default`` is the public case; None = one that depends on k, told in ``meaning``.
    """

    meaning: str
    default: float | None
    above: float = 0.0
    at_most: float = float("inf")
    inert: float | None = None


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One line of ``meaning``; ``needs``: without them the fault would change nothing. ``ranks``: the number it is written for.

    ``variant_of``: the class of faults that it belongs to, where that is not its own name.
    """

    meaning: str
    needs: tuple[Need, ...] = ()
    strength: Strength | None = None
    ranks: int = 1
    variant_of: str = ""


def _has_short_windows(setup: Any) -> bool:
    rows = getattr(setup.data, "epoch_rows", None)
    if rows is None or setup.data.last_window != "short" or setup.measure == "one_step":
        return False
    return bool(rows % setup.global_batch and setup.steps > rows // setup.global_batch)


def _has_unequal_terms(setup: Any) -> bool:
    if setup.subject.kind == "lm" and setup.subject.mean == "micro_batch":
        return False
    return setup.subject.kind == "python" or _has_padding(setup) or _has_short_windows(setup)


def _has_padding(setup: Any) -> bool:
    return bool(setup.subject.kind == "lm" and setup.subject.mean == "token" and setup.data.lengths != "fixed")


def _has_changing_rate(setup: Any) -> bool:
    return bool(setup.optimizer.schedule != "constant" or setup.optimizer.warmup_steps > 1)


def _has_other_buffer(setup: Any) -> bool:
    return bool(setup.accumulator != "bf16" and (setup.accumulator != "param" or setup.dtype != "bf16"))


SHORT_WINDOWS: Need = (
    _has_short_windows,
    "short windows that are reached: data.last_window=short, data.epoch_rows that global_batch does not divide, steps of an epoch or more",
)
UNEQUAL_TERMS: Need = (
    _has_unequal_terms,
    "micro-batches with different numbers of terms: subject=lm with its mean over tokens and data.lengths other than fixed, "
    "short windows, or subject=python",
)
PADDING: Need = (_has_padding, "padding to be counted: subject=lm with its mean over tokens and data.lengths other than fixed")
CLIPPING: Need = (lambda setup: setup.optimizer.max_norm is not None, "optimizer.max_norm")
CHANGING_RATE: Need = (_has_changing_rate, "a learning rate that changes: optimizer.schedule=cosine or optimizer.warmup_steps of 2 or more")
CACHED_DROPOUT: Need = (
    lambda setup: getattr(setup.subject, "accumulation", "") == "cached" and setup.model.dropout > 0,
    "gradient caching with dropout: subject=clip, subject.accumulation=cached, model.dropout above 0",
)
AUXILIARY: Need = (lambda setup: getattr(setup.subject, "z_loss", 0) > 0, "an auxiliary term: subject=lm with subject.z_loss above 0")
OTHER_BUFFER: Need = (_has_other_buffer, "a gradient buffer that is not bf16 anyway: another dtype or accumulator")
SCALED_LOSS: Need = (lambda setup: setup.dtype == "amp_fp16", "dtype=amp_fp16")
OVERFLOWS: Need = (lambda setup: setup.dtype == "amp_fp16" or setup.subject.kind == "python", "dtype=amp_fp16, or subject=python")
DECAY: Need = (lambda setup: setup.optimizer.weight_decay > 0, "optimizer.weight_decay above 0")
AVERAGE: Need = (lambda setup: setup.ema is not None, "ema")
ADAM: Need = (lambda setup: hasattr(setup.optimizer, "betas"), "optimizer=adamw, adam or muon")
RECORDS: Need = (lambda setup: setup.measure != "one_step", "measure=training or ladder")
PLAIN: Need = (lambda setup: getattr(setup.subject, "accumulation", "plain") == "plain", "subject.accumulation=plain")
EVEN_WINDOWS: Need = (
    lambda setup: getattr(setup.data, "last_window", "") != "short",
    "equally many micro-batches on both ranks",
)

LOST = Strength(meaning="share of the micro-batches that are lost; without it all but the last", default=None, at_most=1.0)
MISSING = Strength(meaning="share s of the division that is missing: divided by k to the 1 - s", default=1.0, at_most=1.0)
DOUBLE = Strength(meaning="how far the second division goes: by k to the s", default=1.0, at_most=4.0)
COUNTED = Strength(meaning="share of the padding that is counted", default=1.0, at_most=1.0)
TOO_MANY = Strength(meaning="number of terms too many in the divisor of a step", default=1.0)
REWEIGHTED = Strength(meaning="factor on the running buffer at each add", default=0.5, at_most=4.0, inert=1.0)
AUXILIARY_FACTOR = Strength(meaning="factor on the auxiliary term; without it k", default=None, inert=1.0)
LOGGED = Strength(meaning="factor on the logged loss; without it 1 / k", default=None, inert=1.0)
BEFORE = Strength(meaning="share of the window's micro-batches before the restart", default=0.5, at_most=1.0)

SINGLE: dict[str, Fault] = {
    "mean_of_means": Fault(meaning="each micro-batch's own mean, averaged although their numbers of terms differ", needs=(UNEQUAL_TERMS,)),
    "mean_of_means_over_ranks": Fault(meaning="each rank's own mean, averaged over the ranks", needs=(UNEQUAL_TERMS,), ranks=2),
    "missing_division": Fault(meaning="the micro-batches' means are added up and never divided by k", strength=MISSING),
    "double_division": Fault(meaning="the exact mean is divided by k once more", strength=DOUBLE),
    "wrong_divisor": Fault(meaning="the divisor counts padding; wrong at k=1 too", needs=(PADDING,), strength=COUNTED),
    "wrong_divisor_terms": Fault(
        meaning="the divisor counts terms too many; wrong at k=1 too", strength=TOO_MANY, variant_of="wrong_divisor"
    ),
    "clip_per_micro_batch": Fault(meaning="the running buffer is clipped after each micro-batch", needs=(CLIPPING,)),
    "clip_each_micro_batch": Fault(
        meaning="each micro-batch's own gradient is clipped, by itself, before it is added",
        needs=(CLIPPING,),
        variant_of="clip_per_micro_batch",
    ),
    "schedule_per_micro_batch": Fault(meaning="the learning rate's schedule advances with each micro-batch", needs=(CHANGING_RATE,)),
    "short_window": Fault(meaning="the short last window of an epoch is divided as if it were full", needs=(SHORT_WINDOWS,)),
    "merged_window": Fault(meaning="the short last window of an epoch waits and goes into the next epoch's first", needs=(SHORT_WINDOWS,)),
    "dropped_window": Fault(meaning="the short last window of an epoch makes no update", needs=(SHORT_WINDOWS,)),
    "early_step": Fault(meaning="the update comes after the first of k micro-batches, the others wait for the next", needs=(PLAIN,)),
    "lost_micro_batches": Fault(meaning="gradients are set to zero between micro-batches: only the last counts", strength=LOST),
    "lost_micro_batches_first": Fault(meaning="the second micro-batch overwrites the first", variant_of="lost_micro_batches"),
    "lost_micro_batches_gated": Fault(meaning="every second micro-batch is not added", variant_of="lost_micro_batches"),
    "reweighted_buffer": Fault(meaning="the running buffer is halved before each add", strength=REWEIGHTED),
    "wrong_sync": Fault(meaning="the running buffer is summed over the ranks after each micro-batch", needs=(EVEN_WINDOWS,), ranks=2),
    "replay_randomness": Fault(meaning="gradient caching's second pass draws other dropout than the first", needs=(CACHED_DROPOUT,)),
    "auxiliary_scale": Fault(meaning="the auxiliary term counts k times", needs=(AUXILIARY,), strength=AUXILIARY_FACTOR),
    "accumulator_dtype": Fault(meaning="the gradient buffer is bf16 whatever the settings say", needs=(OTHER_BUFFER,)),
    "loss_scaling": Fault(meaning="the loss scale is taken out of the running buffer after each micro-batch", needs=(SCALED_LOSS,)),
    "loss_scaling_clip": Fault(
        meaning="gradients are clipped before the loss scale is taken out", needs=(SCALED_LOSS, CLIPPING), variant_of="loss_scaling"
    ),
    "loss_scaling_overflow": Fault(
        meaning="entries that overflowed count as 0, and the update is made", needs=(OVERFLOWS,), variant_of="loss_scaling"
    ),
    "state_per_micro_batch": Fault(meaning="weight decay is applied for each micro-batch", needs=(DECAY,)),
    "state_per_micro_batch_ema": Fault(
        meaning="the moving average of the weights moves with each micro-batch", needs=(AVERAGE,), variant_of="state_per_micro_batch"
    ),
    "state_per_micro_batch_count": Fault(
        meaning="Adam's count of steps advances with each micro-batch", needs=(ADAM,), variant_of="state_per_micro_batch"
    ),
    "reporting": Fault(meaning="the logged loss is the last micro-batch's", needs=(RECORDS,)),
    "reporting_scaled": Fault(meaning="the logged loss is divided by k", needs=(RECORDS,), strength=LOGGED, variant_of="reporting"),
    "resume_inside_window": Fault(
        meaning="after a resume the first update lacks the micro-batches before the restart", needs=(RECORDS,), strength=BEFORE
    ),
}
# What to write instead, by class, and by variant where that is more exact; of real dependences what can be done.
REMEDIES = {
    "mean_of_means": "Sum the losses of all micro-batches and divide once, by the step's number of terms.",
    "mean_of_means_over_ranks": "Sum the number of terms over the ranks, and divide every rank's sum by that instead of by its own.",
    "missing_division": "Divide each micro-batch's summed loss by the step's number of terms; where all have equally many, its mean by k.",
    "double_division": "Divide once: by the loop or by the library, the loss or the gradient.",
    "wrong_divisor": "Divide by the number of terms that the loss sums: no padding, no ignored labels.",
    "clip_per_micro_batch": "Clip once per optimizer step, after the last micro-batch.",
    "schedule_per_micro_batch": "Advance the schedule once per optimizer step, and give its length in optimizer steps.",
    "short_window": "Divide a short window by its own number of terms.",
    "merged_window": "Make an update at the end of the epoch too, divided by the number of terms that are there.",
    "dropped_window": "Make an update at the end of the epoch too, divided by the number of terms that are there.",
    "early_step": "Update after micro-batch k, 2k and so on, and the last of an epoch: (i + 1) % k == 0 or i + 1 == n, with i from 0.",
    "lost_micro_batches": "Add every micro-batch's gradient; look for what skips some, or sets gradients to zero between two updates.",
    "reweighted_buffer": "Add every micro-batch's gradient with the same weight; scale nothing in between.",
    "wrong_sync": "Sum over the ranks once per optimizer step, with the last micro-batch; no_sync() before.",
    "replay_randomness": "Keep the random state of each micro-batch in the first pass, and set it again in the second.",
    "auxiliary_scale": "Weight the auxiliary term of each micro-batch so that it counts once per optimizer step, as the loss does.",
    "accumulator_dtype": "Keep the gradient buffer in float32.",
    "loss_scaling": "Take the scale out once, after the last micro-batch and before clipping; after an overflow make no update.",
    "state_per_micro_batch": "Apply weight decay, and whatever else belongs to an update, once per optimizer step.",
    "state_per_micro_batch_ema": "Move the average of the weights once per optimizer step, after the update.",
    "state_per_micro_batch_count": "Advance the optimizer's count of steps once per optimizer step.",
    "reporting": "Log the sum of all micro-batches' losses over the step's number of terms.",
    "resume_inside_window": "Write checkpoints between optimizer steps only, or keep the half-filled gradient buffer in them.",
}
DEPENDENCES = {
    "batch_statistics": "Take a norm that sees one sample (layer, group, RMS norm), or freeze the statistics; or accept it.",
    "in_batch_negatives": "Cache embeddings and take the loss over the whole batch (gradient caching), or accept that k changes the loss.",
    "dropout_stream": "Draw masks by sample, not in the order of micro-batches, to compare runs of different k; or accept it.",
}
PAIRED = (
    "missing_division+clip_per_micro_batch",
    "missing_division+schedule_per_micro_batch",
    "missing_division+reporting",
    "mean_of_means+reporting",
    "mean_of_means+clip_per_micro_batch",
    "mean_of_means+schedule_per_micro_batch",
    "mean_of_means+short_window",
    "double_division+state_per_micro_batch",
    "lost_micro_batches+reporting",
    "accumulator_dtype+wrong_divisor_terms",
)


def _both(name: str) -> Fault:
    first, second = (SINGLE[part] for part in name.split("+"))
    return Fault(meaning=f"two at once: {first.meaning}; {second.meaning}", needs=(*first.needs, *second.needs))


FAULTS: dict[str, Fault] = SINGLE | {name: _both(name) for name in PAIRED}
CLASSES = tuple(name for name, fault in SINGLE.items() if not fault.variant_of)


def classes_of(name: str) -> tuple[str, ...]:
    """The classes of the one or two faults called ``name``; () of none."""
    parts = [] if name == NONE else name.split("+")
    return tuple(SINGLE[part].variant_of or part for part in parts)


NAMES = (NONE, *FAULTS)


def check_fault(setup: "Setup") -> None:
    """Raise ConfigError for a fault that could not act in this setup, or a strength that its fault has not."""
    if setup.fault == NONE:
        if setup.fault_strength is not None:
            raise ConfigError("fault_strength", setup.fault_strength, f"has no effect here: it needs a fault. fault {one_of('', NAMES)}")
        return
    fault = FAULTS[setup.fault]
    if setup.subject.kind == "command":
        raise ConfigError("fault", setup.fault, "cannot act here: a program of the user's makes its own steps", "Take another subject.")
    if setup.ranks != fault.ranks:
        raise ConfigError("fault", setup.fault, f"cannot act here: it is written for ranks={fault.ranks}")
    for is_fulfilled, words in fault.needs:
        if not is_fulfilled(setup):
            raise ConfigError("fault", setup.fault, f"cannot act here: it needs {words}", HINT)
    _check_strength(setup, fault.strength)


def _check_strength(setup: "Setup", strength: Strength | None) -> None:
    value = setup.fault_strength
    if value is None:
        return
    if strength is None:
        having = ", ".join(name for name, fault in FAULTS.items() if fault.strength)
        raise ConfigError("fault_strength", value, f"fault={setup.fault} has no strength; those that have one: {having}")
    if value == strength.inert:
        raise ConfigError("fault_strength", value, f"is no fault at all: {strength.meaning}")
    if not strength.above < value <= strength.at_most:
        limit = "" if strength.at_most == float("inf") else f" and at most {strength.at_most:g}"
        raise ConfigError("fault_strength", value, f"must be above {strength.above:g}{limit}: {strength.meaning}")
