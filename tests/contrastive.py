"""Complete small specifications of subject=clip for tests."""

import functools
from importlib import resources
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from accum_sweeps.plan.parts import Digits, DualEncoder
from accum_sweeps.plan.spec import RunSpec
from accum_sweeps.subjects.identify_clip import identify
from tests.specs import make_spec


def preset(group: str, name: str) -> dict[str, Any]:
    """The values of a preset in conf/, without its kind and its ``defaults``."""
    loaded = OmegaConf.create((resources.files("accum_sweeps.conf") / group / f"{name}.yaml").read_text())
    values: Any = OmegaConf.to_container(loaded)
    return {key: value for key, value in values.items() if key not in ("kind", "defaults")}


TINY = preset("model", "clip_tiny")
DIGITS = preset("data", "digits") | {"eval_rows": 40}
SUBJECT = {"kind": "clip", "name": "clip"} | preset("subject", "clip")


def encoder(**changes: Any) -> DualEncoder:
    """The part of the tiny dual encoder with ``changes``."""
    return DualEncoder(name="clip_tiny", **TINY | {"frozen": ()} | changes)


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
