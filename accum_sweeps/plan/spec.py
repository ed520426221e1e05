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
from accum_sweeps.plan.faults import NAMES as FAULTS
from accum_sweeps.plan.parts import KINDS, Data, Model, Optimizer, Subject
from accum_sweeps.plan.setting import document, read, setting
from accum_sweeps.plan.together import check_run, check_setup

SPEC_VERSION = 1
DTYPES = ("fp64", "fp32", "tf32", "tf32_emulated", "bf16", "fp16", "amp_bf16", "amp_fp16")
ACCUMULATORS = ("param", "bf16", "fp32", "fp64")
CONTROLS = ("none", "regroup", "order", "permute", "ulp_weights", "ulp_grads")
DEVICES = ("cpu", "cuda")
MEASURES = ("training", "one_step", "ladder")


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
    ranks: int = setting("data-parallel processes of a run", at_least=1, at_most=2)
    steps: int = setting("optimizer steps of a run", at_least=1)
    eval_every: int = setting("optimizer steps between evaluations; the last step is always evaluated; 0 = only there", at_least=0)
    probe_steps: tuple[int, ...] = setting("optimizer steps after which the weights are sketched; the last one always is")
    device: str = setting("type of device", choices=DEVICES)
    threads: int = setting("CPU threads of a run", at_least=1)
    deterministic: bool = setting("torch.use_deterministic_algorithms")
    measure: str = setting(
        "training; one_step: one optimizer step with k compared with the same step in one batch; ladder: is the accumulation right?",
        choices=MEASURES,
        neutral="training",
    )
    ema: float | None = setting("decay of an exponential moving average of the weights; null = none", at_least=0, below=1, neutral=None)
    loss_scale: float = setting(
        "dtype=amp_fp16: initial factor on the summed loss, adapted by the rule of torch's GradScaler", above=0, neutral=16.0
    )
    reduced_precision_reduction: bool = setting("GPUs may add the products of half-precision matrices in half precision", neutral=True)
    probe_tensors: bool = setting("sketch each tensor by itself too, to tell which tensors differ", neutral=False)
    fault_strength: float | None = setting("strength of the fault, in the fault's own measure; null = the public case", neutral=None)

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
    check_setup(setup)
    return setup


def make_run(setup: Setup, values: Mapping[str, Any]) -> RunSpec:
    """The validated run of ``setup`` with ``values`` for the run keys."""
    seeds = {stream: values[stream] if values.get(stream) is not None else values.get("seed") for stream in SEED_STREAMS}
    run = read(RunSpec, {"setup": setup, **values, **seeds})
    check_run(run)
    return run


def _part(group: str, values: Any) -> Any:
    if not isinstance(values, Mapping):
        return values
    kind = values.get("kind")
    if kind not in KINDS[group]:
        raise ConfigError(f"{group}.kind", kind, one_of(kind, KINDS[group]))
    return read(KINDS[group][kind], {key: value for key, value in values.items() if key != "kind"}, f"{group}.")


def _tagged(setup: Setup, *, identity: bool) -> dict[str, Any]:
    """The setup's document with each part's kind beside its keys."""
    result = document(setup, identity=identity)
    for group in KINDS:
        result[group]["kind"] = getattr(setup, group).kind
    return result
