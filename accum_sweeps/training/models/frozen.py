"""Frozen parameters: which names a pattern means, and what is refused while a sweep is planned.

Planning imports no torch: a process of its own makes the model without weights and tells the names of its parameters.
"""

import dataclasses
import difflib
import functools
import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from accum_sweeps.plan.errors import ConfigError
from accum_sweeps.plan.parts import KINDS, Decoder, DualEncoder, Model, Muon
from accum_sweeps.plan.setting import document, read
from accum_sweeps.plan.spec import Setup, canonical

if TYPE_CHECKING:
    from torch import nn

NEAREST = 3  # parameter names shown beside a pattern that means none


def freeze(model: "nn.Module", patterns: Sequence[str]) -> None:
    """Let no gradient be computed for the parameters of ``model`` whose names match one of ``patterns``."""
    for name, parameter in model.named_parameters():
        if is_frozen(name, patterns):
            parameter.requires_grad_(False)


def is_frozen(name: str, patterns: Iterable[str]) -> bool:
    """Whether one of ``patterns`` matches ``name``: ``*`` stands for any text, dots included."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def check_frozen(setup: Setup) -> None:
    """Raise ConfigError where a pattern of ``model.frozen`` means no parameter, or where all of them together mean every one.

    Without patterns it costs nothing; with some, a start of torch for each model of a plan.
    """
    part = setup.model
    if not isinstance(part, Decoder | DualEncoder) or not part.frozen:
        return
    plain = dataclasses.replace(part, name="", frozen=())
    names, hidden = _asked_names(canonical({**document(plain, identity=False), "kind": part.kind}), getattr(setup.data, "seq_len", 0))
    for pattern in part.frozen:
        if not any(is_frozen(name, [pattern]) for name in names):
            near = ", ".join(difflib.get_close_matches(pattern, names, n=NEAREST, cutoff=0.0))
            raise ConfigError("model.frozen", list(part.frozen), f"no parameter is called {pattern!r}; nearest: {near}")
    if all(is_frozen(name, part.frozen) for name in names):
        raise ConfigError("model.frozen", list(part.frozen), "means every parameter: nothing would be left to train")
    if isinstance(setup.optimizer, Muon) and all(is_frozen(name, part.frozen) for name in hidden):
        raise ConfigError("model.frozen", list(part.frozen), "means every hidden matrix: nothing would be left for optimizer=muon")


@functools.cache
def _asked_names(model: str, seq_len: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of all parameters, and of the hidden matrices."""
    # This package last, for a clone that is not installed.
    program = f"import sys; sys.path.append({str(Path(__file__).parents[3])!r})\n"
    program += f"from accum_sweeps.training.models import frozen; frozen.main({model!r}, {seq_len})"
    answer = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=False)
    if answer.returncode:
        last = (answer.stderr.strip().splitlines() or [f"exit code {answer.returncode}"])[-1]
        raise ConfigError("model.frozen", [], f"the names of the parameters cannot be had: {last}")
    names, hidden = json.loads(answer.stdout)
    return tuple(names), tuple(hidden)


def main(model: str, seq_len: int) -> None:
    """Write names as JSON to standard output: all parameters', the hidden matrices'. ``model`` is its part as JSON, with its kind."""
    from accum_sweeps.training.optimizers import hidden_matrices

    values = json.loads(model)
    made = without_weights(read(KINDS["model"][values.pop("kind")], values), seq_len)
    hidden = {id(weight) for weight in hidden_matrices(made)}
    names = [(name, id(parameter) in hidden) for name, parameter in made.named_parameters()]
    json.dump([[name for name, _ in names], [name for name, is_hidden in names if is_hidden]], sys.stdout)


def without_weights(part: Model, seq_len: int = 0) -> "nn.Module":
    """The model of ``part`` on torch's meta device: names and shapes, no memory; ``seq_len`` as the decoder needs it.

    Raises TypeError where the subject brings a model of its own.
    """
    import torch

    with torch.device("meta"):
        if isinstance(part, Decoder):
            from accum_sweeps.training.models import decoder

            return decoder.Decoder(part, seq_len)
        if isinstance(part, DualEncoder):
            from accum_sweeps.training.models import dual_encoder

            return dual_encoder.make(part)
    raise TypeError(f"a model of kind {part.kind!r} is the subject's own")
