"""Complete small specifications of subject=clip for tests."""

import functools
from pathlib import Path
from typing import Any

from accum_sweeps.plan.parts import Digits, DualEncoder
from accum_sweeps.plan.spec import RunSpec
from accum_sweeps.subjects.identify_clip import identify
from tests.specs import make_spec

TINY: dict[str, Any] = {
    "image_size": 16,
    "patch": 4,
    "vision_layers": 2,
    "vision_width": 48,
    "vision_heads": 4,
    "text_layers": 2,
    "text_width": 48,
    "text_heads": 4,
    "text_length": 24,
    "vocabulary": 256,
    "projection": 32,
    "dropout": 0.0,
    "weights": None,
}
VIT_B32: dict[str, Any] = TINY | {
    "image_size": 224,
    "patch": 32,
    "vision_layers": 12,
    "vision_width": 768,
    "vision_heads": 12,
    "text_layers": 12,
    "text_width": 512,
    "text_heads": 8,
    "text_length": 77,
    "vocabulary": 49408,
    "projection": 512,
}
DIGITS: dict[str, Any] = {"epoch_rows": None, "last_window": "drop", "shuffle": True, "eval_rows": 40}
SUBJECT: dict[str, Any] = {"kind": "clip", "name": "clip", "accumulation": "cached", "padding": "fixed"}


def encoder(**changes: Any) -> DualEncoder:
    """The part of the tiny dual encoder with ``changes``."""
    return DualEncoder(name="clip_tiny", **TINY | changes)


@functools.cache
def digits_hash() -> str:
    """The hash of the digits, as planning finds it."""
    data = Digits(name="digits", **DIGITS)
    return identify(encoder(), data, 16, Path())[1].hash


def clip_spec(**changes: Any) -> RunSpec:
    """A run on digits with ``changes``: top-level keys, or dotted ones as in ``**{"subject.accumulation": "plain"}``."""
    model = {"kind": "dual_encoder", "name": "clip_tiny", **TINY}
    data = {"kind": "digits", "name": "digits", **DIGITS, "hash": digits_hash()}
    whole: dict[str, Any] = {"subject": dict(SUBJECT), "model": model, "data": data}
    for key in list(changes):
        group, _, name = key.partition(".")
        if name and group in whole:
            whole[group][name] = changes.pop(key)
    return make_spec(**whole, **changes)
