"""What an experiment changes in the settings of a run; everything else stays. Each gives another RunSpec, for the oracle alone."""

import dataclasses
from typing import Any

from accum_sweeps.plan.parts import Decoder
from accum_sweeps.plan.spec import RunSpec


def changed(spec: RunSpec, **settings: Any) -> RunSpec:
    """``spec`` with other settings of its setup."""
    return dataclasses.replace(spec, setup=dataclasses.replace(spec.setup, **settings))


def optimizer(spec: RunSpec, **settings: Any) -> RunSpec:
    """``spec`` with other settings of its optimizer; those that it does not have are left out."""
    part = spec.setup.optimizer
    known = {field.name for field in dataclasses.fields(part)}
    return changed(spec, optimizer=dataclasses.replace(part, **{key: value for key, value in settings.items() if key in known}))


def one_batch(spec: RunSpec) -> RunSpec:
    """The same step in one batch, on one rank, without a control."""
    return changed(dataclasses.replace(spec, accum=1, control="none"), ranks=1)


def one_rank(spec: RunSpec) -> RunSpec:
    """The same micro-batches, all on one rank, without a control."""
    return changed(dataclasses.replace(spec, accum=spec.accum * spec.setup.ranks, control="none"), ranks=1)


def regrouped(spec: RunSpec, seed: int) -> RunSpec:
    """Another partition of the same samples; the samples and the weights are those of ``spec``."""
    # The seed of a run that keeps its three streams draws nothing but its controls.
    return dataclasses.replace(one_rank(spec), control="regroup", seed=seed)


def in_fp64(spec: RunSpec) -> RunSpec:
    """Weights, arithmetic and buffer in float64."""
    return changed(spec, dtype="fp64", accumulator="param")


def without_clipping(spec: RunSpec) -> RunSpec:
    """The gradient's length unlimited."""
    return optimizer(spec, max_norm=None)


def clipped_at(spec: RunSpec, limit: float) -> RunSpec:
    """The gradient's length limited to ``limit``."""
    return optimizer(spec, max_norm=limit)


def at_constant_rate(spec: RunSpec) -> RunSpec:
    """The learning rate the same in all steps."""
    return optimizer(spec, schedule="constant", warmup_steps=0)


def without_decay(spec: RunSpec) -> RunSpec:
    """No weight decay."""
    return optimizer(spec, weight_decay=0.0)


def without_auxiliary_terms(spec: RunSpec) -> RunSpec | None:
    """Coefficient 0; None where there is no such term."""
    subject = spec.setup.subject
    if not getattr(subject, "z_loss", 0.0):
        return None
    return changed(spec, subject=dataclasses.replace(subject, z_loss=0.0))  # type: ignore[arg-type]


def with_equal_lengths(spec: RunSpec) -> RunSpec | None:
    """All rows full; None where they are, or where their lengths are the user's."""
    data = spec.setup.data
    if getattr(data, "lengths", "fixed") == "fixed":
        return None
    return changed(spec, data=dataclasses.replace(data, lengths="fixed"))  # type: ignore[arg-type]


def with_other_norm(spec: RunSpec) -> RunSpec | None:
    """Layer norm in place of batch norm; None where there is no batch norm of the settings."""
    model = spec.setup.model
    if not isinstance(model, Decoder) or model.norm != "batchnorm":
        return None
    return changed(spec, model=dataclasses.replace(model, norm="layernorm"))


def without_dropout(spec: RunSpec) -> RunSpec | None:
    """Dropout 0; None where there is none in the settings."""
    model = spec.setup.model
    if not getattr(model, "dropout", 0.0):
        return None
    return changed(spec, model=dataclasses.replace(model, dropout=0.0))  # type: ignore[arg-type]
