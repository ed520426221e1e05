"""What settings must not be combined: checked for every setup and run of a plan, before anything starts."""

from typing import TYPE_CHECKING

from accum_sweeps.plan.effects import check_effects
from accum_sweeps.plan.errors import ConfigError
from accum_sweeps.plan.faults import NONE as NO_FAULT
from accum_sweeps.plan.faults import check_fault
from accum_sweeps.plan.parts import (
    CommandHook,
    Contrastive,
    Decoder,
    DualEncoder,
    LanguageModel,
    Muon,
    NoData,
    Sgd,
)

if TYPE_CHECKING:
    from accum_sweeps.plan.spec import RunSpec, Setup

# What the built-in subjects can be trained with: group -> kinds of its parts.
NEEDS = {
    LanguageModel: {"model": ("decoder",), "data": ("stdlib", "text", "tokens")},
    Contrastive: {"model": ("dual_encoder",), "data": ("digits", "image_text")},
}


def check_setup(setup: "Setup") -> None:
    """Raise ConfigError for a combination of settings that makes no sense or cannot be had."""
    _check_parts(setup)
    if isinstance(setup.model, Decoder):
        _check_decoder(setup.model)
    if isinstance(setup.model, DualEncoder):
        _check_dual_encoder(setup.model)
    _check_optimizer(setup)
    _check_precision(setup)
    _check_ranks(setup)
    _check_epochs(setup)
    check_effects(setup)
    check_fault(setup)
    if any(not 1 <= step <= setup.steps for step in setup.probe_steps):
        raise ConfigError("probe_steps", list(setup.probe_steps), f"must lie between 1 and steps={setup.steps}")
    if setup.measure != "training" and isinstance(setup.subject, CommandHook):
        raise ConfigError("measure", setup.measure, "needs weights and gradients, which subject=command keeps to itself")


def check_run(run: "RunSpec") -> None:
    """Raise ConfigError for a cut of the batch that the setup cannot be trained with."""
    setup = run.setup
    ranks_batch, remainder = divmod(setup.global_batch, setup.ranks)
    if remainder or ranks_batch % run.accum:
        allowed = ", ".join(str(k) for k in range(1, ranks_batch + 1) if ranks_batch % k == 0)
        batch = f"global_batch={setup.global_batch} over ranks={setup.ranks}"
        raise ConfigError("accum", run.accum, f"does not divide the batch: {batch}; possible: {allowed}")
    _check_control(run)
    if isinstance(setup.subject, Contrastive) and _smallest_window(run) == 1:
        raise ConfigError("global_batch", setup.global_batch, "leaves one pair in a batch, which then has no negatives")
    if _smallest_micro_batch(run) > 1:
        return
    if isinstance(setup.model, Decoder) and setup.model.norm == "batchnorm":
        raise ConfigError("model.norm", "batchnorm", f"needs two samples or more in every micro-batch; accum={run.accum} leaves one")
    if isinstance(setup.subject, Contrastive) and setup.subject.accumulation == "plain":
        raise ConfigError(
            "accum", run.accum, "leaves one pair in a micro-batch, which then has no negatives", "Or subject.accumulation=cached."
        )


def _check_control(run: "RunSpec") -> None:
    """A control must change nothing but rounding."""
    why = dependence(run.setup)
    is_cut_anew = run.control == "regroup" and run.accum > 1
    is_moved = run.control in ("regroup", "order", "permute") and (_has_placed_masks(run.setup) or run.setup.fault != NO_FAULT)
    if why and (is_cut_anew or is_moved):
        hint = "Controls of one unit in the last place are possible: ulp_weights, ulp_grads."
        raise ConfigError("control", run.control, f"changes more than rounding here: {why}", hint)


def _has_placed_masks(setup: "Setup") -> bool:
    return isinstance(setup.model, Decoder) and setup.model.dropout > 0 and setup.model.dropout_masks == "stream"


def dependence(setup: "Setup") -> str:
    """Why the gradient depends on which samples share a micro-batch, as far as the settings tell; empty where it does not."""
    model, subject = setup.model, setup.subject
    if setup.fault != NO_FAULT:
        return f"samples cut or ordered in another way meet fault={setup.fault} in another way"
    if isinstance(model, Decoder) and model.norm == "batchnorm":
        return "batchnorm's statistics are those of a micro-batch"
    if _has_placed_masks(setup):
        return "dropout masks drawn from the global stream belong to places in a micro-batch (model.dropout_masks=stream)"
    if isinstance(subject, Contrastive) and subject.accumulation == "plain":
        return "each micro-batch has its own negatives (subject.accumulation=plain)"
    if isinstance(subject, LanguageModel) and subject.mean == "micro_batch" and not _has_equal_micro_batches(setup):
        return "a micro-batch's own mean depends on its number of targets (subject.mean=micro_batch)"
    return ""


def _has_equal_micro_batches(setup: "Setup") -> bool:
    """Whether all micro-batches of a step hold the same number of targets, however the batch is cut."""
    data = setup.data
    return getattr(data, "lengths", "") == "fixed" and getattr(data, "last_window", "") != "short"


def _smallest_micro_batch(run: "RunSpec") -> int:
    """Samples of the smallest micro-batch, which may be the last one of a short last window."""
    data = run.setup.data
    if isinstance(data, NoData) or data.epoch_rows is None or data.last_window == "drop":
        return run.micro_batch
    return data.epoch_rows % run.setup.global_batch % run.micro_batch or run.micro_batch


def _smallest_window(run: "RunSpec") -> int:
    """Samples of the smallest optimizer step, which may be the short last window of an epoch."""
    data, batch = run.setup.data, run.setup.global_batch
    if isinstance(data, NoData) or data.epoch_rows is None or data.last_window == "drop":
        return batch
    return data.epoch_rows % batch or batch


def _check_parts(setup: "Setup") -> None:
    for group, kinds in NEEDS.get(type(setup.subject), {}).items():
        part = getattr(setup, group)
        if part.kind not in kinds:
            given = part.name or part.kind
            raise ConfigError(group, given, f"subject={setup.subject.kind} needs another one: a preset of kind {' or '.join(kinds)}")


def _check_decoder(model: Decoder) -> None:
    if model.width % model.heads:
        raise ConfigError("model.heads", model.heads, f"must divide model.width={model.width}")
    if model.positions == "rope" and model.width // model.heads % 2:
        raise ConfigError("model.heads", model.heads, f"rope needs an even width per head, here {model.width // model.heads}")
    if model.norm == "groupnorm" and model.width % model.norm_groups:
        raise ConfigError("model.norm_groups", model.norm_groups, f"must divide model.width={model.width}")


def _check_dual_encoder(model: DualEncoder) -> None:
    if model.image_size % model.patch:
        raise ConfigError("model.patch", model.patch, f"must divide model.image_size={model.image_size}")
    for side in ("vision", "text"):
        heads, width = getattr(model, f"{side}_heads"), getattr(model, f"{side}_width")
        if width % heads:
            raise ConfigError(f"model.{side}_heads", heads, f"must divide model.{side}_width={width}")


def _check_optimizer(setup: "Setup") -> None:
    optimizer = setup.optimizer
    if isinstance(optimizer, Sgd | Muon) and optimizer.nesterov and optimizer.momentum == 0:
        raise ConfigError("optimizer.nesterov", True, "needs optimizer.momentum above 0")


def _check_precision(setup: "Setup") -> None:
    if setup.dtype == "tf32" and setup.device != "cuda":
        raise ConfigError(
            "dtype", "tf32", "is a mode of NVIDIA GPUs: it needs device=cuda", "Its rounding anywhere, slowly: dtype=tf32_emulated."
        )


def _check_epochs(setup: "Setup") -> None:
    data = setup.data
    if isinstance(data, NoData) or data.epoch_rows is None or data.last_window == "short":
        return
    if data.epoch_rows < setup.global_batch:
        allowed = f"an epoch has no whole global batch of {setup.global_batch}, and data.last_window=drop leaves the rest out"
        raise ConfigError("data.epoch_rows", data.epoch_rows, allowed, "More rows, or data.last_window=short.")


def _check_ranks(setup: "Setup") -> None:
    if setup.ranks == 1:
        return
    if isinstance(setup.subject, CommandHook):
        raise ConfigError("ranks", setup.ranks, "a program starts its own ranks: leave ranks=1 and let subject.argv call torchrun")
    if isinstance(setup.subject, Contrastive):
        raise ConfigError("ranks", setup.ranks, "subject=clip is trained in one process: each rank would contrast only its own pairs")
    if setup.measure == "one_step":
        raise ConfigError("ranks", setup.ranks, "measure=one_step compares within one process")
