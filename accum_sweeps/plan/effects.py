"""Settings that change nothing unless another one does: refused, as their values would be runs of their own with equal numbers."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from accum_sweeps.plan.errors import ConfigError

if TYPE_CHECKING:
    from accum_sweeps.plan.spec import Setup

ABSENT = object()
TRAINED_HERE = "a training within the service: measure=training, and no subject=command"


def _is_trained_here(setup: "Setup") -> bool:
    return setup.measure == "training" and setup.subject.kind != "command"


def _makes_steps_here(setup: "Setup") -> bool:
    return setup.measure != "one_step" and setup.subject.kind != "command"


# Key, the value that stands for "not set", when another value has an effect, and what that needs in words. The lambdas see a
# setup whose parts have the key.
RULES: tuple[tuple[str, object, Callable[[Any], bool], str], ...] = (
    ("loss_scale", 16.0, lambda setup: setup.dtype == "amp_fp16", "dtype=amp_fp16"),
    ("reduced_precision_reduction", True, lambda setup: setup.device == "cuda", "device=cuda"),
    ("ema", None, _makes_steps_here, "steps within the service: measure=training or ladder, and no subject=command"),
    ("probe_tensors", False, _is_trained_here, TRAINED_HERE),
    ("model.norm_groups", 4, lambda setup: setup.model.norm == "groupnorm", "model.norm=groupnorm"),
    ("model.dropout_masks", "sample", lambda setup: setup.model.dropout > 0, "model.dropout above 0"),
    ("data.last_window", "drop", lambda setup: setup.data.epoch_rows is not None, "data.epoch_rows"),
)


def check_effects(setup: "Setup") -> None:
    """Raise ConfigError for a setting that is set and has no effect."""
    for key, neutral, has_effect, needs in RULES:
        value: Any = setup
        for name in key.split("."):
            value = getattr(value, name, ABSENT)
        if value not in (ABSENT, neutral) and not has_effect(setup):
            hint = "In a grid give the axis a condition: {values: [...], when: {...}}."
            raise ConfigError(key, value, f"has no effect here: it needs {needs}", hint)
