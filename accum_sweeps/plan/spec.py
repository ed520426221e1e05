"""RunSpec: everything that decides a run's numbers, and the run's identity made from it.

A Setup is what several runs share; a RunSpec adds the accumulation factor, the seeds, the control and the replicate.
Standard library only, so that planning a hundred thousand runs imports nothing heavy.
"""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from accum_sweeps.plan.errors import ConfigError, one_of
from accum_sweeps.plan.parts import KINDS, Data, Decoder, LanguageModel, Model, Optimizer, Sgd, Subject
from accum_sweeps.plan.setting import document, read, setting

SPEC_VERSION = 1
DTYPES = ("fp64", "fp32", "bf16", "amp_bf16")
ACCUMULATORS = ("param", "bf16", "fp32", "fp64")
CONTROLS = ("none", "regroup", "order", "permute", "ulp_weights", "ulp_grads")
FAULTS = ("none",)
DEVICES = ("cpu", "cuda")


@dataclass(frozen=True, kw_only=True)
class Setup:
    """One combination of all settings except accumulation factor, seeds, control and replicate."""

    subject: Subject = setting("what is trained")
    model: Model = setting("the network")
    optimizer: Optimizer = setting("the update rule, its schedule and clipping")
    data: Data = setting("the samples")
    fault: str = setting("a known accumulation fault built in on purpose; none = correct code", choices=FAULTS)
    dtype: str = setting("precision of weights and arithmetic; amp_* = fp32 weights under autocast", choices=DTYPES)
    accumulator: str = setting("precision of the gradient buffer; param = that of the weights", choices=ACCUMULATORS)
    global_batch: int = setting("samples per optimizer step over all ranks, the same for every k", at_least=1)
    ranks: int = setting("data-parallel processes of a run", at_least=1, at_most=1)
    steps: int = setting("optimizer steps of a run", at_least=1)
    eval_every: int = setting("optimizer steps between evaluations; the last step is always evaluated; 0 = only there", at_least=0)
    probe_steps: tuple[int, ...] = setting("optimizer steps after which the weights are sketched; the last one always is")
    device: str = setting("type of device", choices=DEVICES)
    threads: int = setting("CPU threads of a run", at_least=1)
    deterministic: bool = setting("torch.use_deterministic_algorithms")

    @functools.cached_property
    def identity(self) -> str:
        """Canonical JSON of all keys that can change a number."""
        return canonical(_tagged(self, identity=True))

    def to_dict(self) -> dict[str, Any]:
        """Plain nested values under the names of the configuration, labels included; make_setup reads them."""
        return _tagged(self, identity=False)

    @functools.cached_property
    def setup_id(self) -> str:
        """Eight hex digits; equal for equal numbers-deciding settings."""
        return hashlib.sha256(self.identity.encode()).hexdigest()[:8]


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """One training at one accumulation factor, seed, control and replicate."""

    setup: Setup = setting("what the runs of a setup share")
    accum: int = setting("micro-batches per optimizer step and rank", at_least=1)
    seed: int = setting("sets the three seed streams", at_least=0)
    seed_init: int = setting("stream of the initial weights", at_least=0)
    seed_data: int = setting("stream of the sample order", at_least=0)
    seed_dropout: int = setting("stream of dropout masks", at_least=0)
    control: str = setting("a change of nothing but rounding; none = the run itself", choices=CONTROLS)
    replicate: int = setting("number of an identical rerun", at_least=0)

    @property
    def micro_batch(self) -> int:
        """Samples of one forward and backward pass."""
        return self.setup.global_batch // (self.setup.ranks * self.accum)

    @functools.cached_property
    def run_id(self) -> str:
        """Twenty hex digits: hash of the canonical JSON of all that can change a number."""
        return hashlib.sha256(self.identity.encode()).hexdigest()[:20]

    @property
    def identity(self) -> str:
        """Canonical JSON of all that can change a number, the setup's included."""
        run = (
            f'{{"accum":{self.accum},"control":"{self.control}","replicate":{self.replicate},"seed":{self.seed},'
            f'"seed_data":{self.seed_data},"seed_dropout":{self.seed_dropout},"seed_init":{self.seed_init}}}'
        )
        return f'{{"run":{run},"setup":{self.setup.identity},"spec_version":{SPEC_VERSION}}}'

    def to_dict(self) -> dict[str, Any]:
        """Plain nested values under the names of the configuration; the inverse of :func:`from_dict`."""
        run = {name: getattr(self, name) for name in RUN_KEYS}
        return {**self.setup.to_dict(), **run, "spec_version": SPEC_VERSION}


RUN_KEYS = tuple(f.name for f in dataclasses.fields(RunSpec) if f.name != "setup")
SETUP_KEYS = tuple(f.name for f in dataclasses.fields(Setup))
SEED_STREAMS = ("seed_init", "seed_data", "seed_dropout")


def canonical(value: Any) -> str:
    """JSON with sorted keys and no blanks: equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def from_dict(values: Mapping[str, Any]) -> RunSpec:
    """A validated RunSpec from plain nested values; a seed stream left out or null takes ``seed``.

    Raises ConfigError naming key, value and what is allowed.
    """
    version = values.get("spec_version", SPEC_VERSION)
    if not isinstance(version, int) or version > SPEC_VERSION:
        raise ConfigError("spec_version", version, f"this release reads up to {SPEC_VERSION}", "Update accum_sweeps.")
    rest = {key: value for key, value in values.items() if key != "spec_version"}
    setup = _known_setup(json.dumps({key: value for key, value in rest.items() if key not in RUN_KEYS}))
    return make_run(setup, {key: value for key, value in rest.items() if key in RUN_KEYS})


@functools.lru_cache(maxsize=256)
def _known_setup(text: str) -> Setup:
    """Validated once: thousands of run directories share a setup."""
    return make_setup(json.loads(text))


def make_setup(values: Mapping[str, Any]) -> Setup:
    """The validated Setup of plain nested values (no run keys among them)."""
    parts = {group: _part(group, values[group]) for group in KINDS if group in values}
    setup = read(Setup, {**values, **parts})
    _check_together(setup)
    return setup


def make_run(setup: Setup, values: Mapping[str, Any]) -> RunSpec:
    """The validated run of ``setup`` with ``values`` for the run keys."""
    seeds = {stream: values[stream] if values.get(stream) is not None else values.get("seed") for stream in SEED_STREAMS}
    run = read(RunSpec, {"setup": setup, **values, **seeds})
    ranks_batch, remainder = divmod(setup.global_batch, setup.ranks)
    if remainder or ranks_batch % run.accum:
        allowed = ", ".join(str(k) for k in range(1, ranks_batch + 1) if ranks_batch % k == 0)
        raise ConfigError(
            "accum",
            run.accum,
            f"does not divide the batch: global_batch={setup.global_batch} over ranks={setup.ranks}; possible: {allowed}",
        )
    return run


def _part(group: str, values: Any) -> Any:
    if not isinstance(values, Mapping):
        return values
    kind = values.get("kind")
    if kind not in KINDS[group]:
        raise ConfigError(f"{group}.kind", kind, one_of(kind, KINDS[group]))
    return read(KINDS[group][kind], {key: value for key, value in values.items() if key != "kind"}, f"{group}.")


def _check_together(setup: Setup) -> None:
    model, optimizer = setup.model, setup.optimizer
    if isinstance(setup.subject, LanguageModel):
        for group in ("model", "data"):
            if getattr(setup, group).kind == "none":
                raise ConfigError(group, "none", "the subject lm needs one: name a preset")
    if isinstance(model, Decoder) and model.width % model.heads:
        raise ConfigError("model.heads", model.heads, f"must divide model.width={model.width}")
    if isinstance(model, Decoder) and model.positions == "rope" and model.width // model.heads % 2:
        raise ConfigError("model.heads", model.heads, f"rope needs an even width per head, here {model.width // model.heads}")
    if isinstance(optimizer, Sgd) and optimizer.nesterov and optimizer.momentum == 0:
        raise ConfigError("optimizer.nesterov", True, "needs optimizer.momentum above 0")
    if any(not 1 <= step <= setup.steps for step in setup.probe_steps):
        raise ConfigError("probe_steps", list(setup.probe_steps), f"must lie between 1 and steps={setup.steps}")


def _tagged(setup: Setup, *, identity: bool) -> dict[str, Any]:
    """The setup's document with each part's kind beside its keys."""
    result = document(setup, identity=identity)
    for group in KINDS:
        result[group]["kind"] = getattr(setup, group).kind
    return result
