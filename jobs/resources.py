"""Typed resources: how many workers, where, and how long a silent one is believed. None of it changes a number in a result."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from accum_sweeps.jobs.slurm_settings import SlurmSettings, check_slurm
from accum_sweeps.plan.errors import ConfigError, one_of
from accum_sweeps.plan.setting import names, read, setting

KINDS = ("local", "inline", "slurm")
SLOTS_ALLOWED = "must be auto, a number of at least 1, or a list of GPU ids (device=cuda) or core numbers (device=cpu)"


@dataclass(frozen=True, kw_only=True)
class Resources:
    """The launcher's settings; made by :func:`read_resources`."""

    kind: str = setting(
        "local = a worker process a slot; slurm = worker jobs on a cluster; inline = in this process", choices=KINDS, default="local"
    )
    slots: object = setting("auto = every GPU, or every core over the threads of a run; a number; a list of ids", default="auto")
    heartbeat_s: float = setting("seconds between two signs of life of a claim", default=5.0, at_least=0.05)
    expiry_s: float = setting("seconds without a sign of life after which a claim may be taken over", default=60.0, above=0)
    max_attempts: int = setting("attempts of a run, within one command, that may end failed or lost", default=2, at_least=1)
    checkpoint_every: int = setting("optimizer steps between checkpoints; 0 = only when stopped", default=100, at_least=0)
    run_limit_min: float | None = setting(
        "minutes an attempt of a run may take before it is stopped and counts as failed; null = none", default=None, above=0
    )
    runs_per_job: int = setting("runs a worker takes before it makes room for a new one; 0 = no bound", default=0, at_least=0)
    stop_grace_s: float = setting("seconds a stopped run has to write its checkpoint", default=30.0, above=0)
    slurm: SlurmSettings = setting("what is asked of the cluster, for kind slurm", default=SlurmSettings())

    @property
    def run_limit_s(self) -> float | None:
        """run_limit_min in seconds."""
        return None if self.run_limit_min is None else 60.0 * self.run_limit_min


COMMON = [name for name in names(Resources) if name not in ("slots", "slurm")]  # to all launchers


def read_resources(launcher: Mapping[str, Any]) -> Resources:
    """The resources of the configuration's ``launcher`` mapping.

    Raises ConfigError with key, value and what is allowed.
    """
    resources = _of_cluster(launcher) if launcher.get("kind") == "slurm" else _of_this_machine(launcher)
    if resources.expiry_s < 3 * resources.heartbeat_s:
        raise ConfigError(
            "launcher.expiry_s",
            resources.expiry_s,
            f"must be at least three times launcher.heartbeat_s={resources.heartbeat_s:g}: one late sign of life is not a death",
        )
    return resources


def _of_this_machine(launcher: Mapping[str, Any]) -> Resources:
    _check_keys(launcher, [*COMMON, "slots"])
    return read(Resources, {**launcher, "slots": _slots(launcher.get("slots", "auto"))}, "launcher.")


def _of_cluster(launcher: Mapping[str, Any]) -> Resources:
    if "slots" in launcher:
        hint = "On a cluster launcher.workers says how many runs go at a time."
        raise ConfigError("launcher.slots", launcher["slots"], "is for this machine", hint)
    own = names(SlurmSettings)
    _check_keys(launcher, [*COMMON, *own])
    settings = read(SlurmSettings, {key: value for key, value in launcher.items() if key in own}, "launcher.")
    resources = read(Resources, {key: value for key, value in launcher.items() if key in COMMON} | {"slurm": settings}, "launcher.")
    check_slurm(settings, resources.runs_per_job)
    return resources


def _check_keys(launcher: Mapping[str, Any], known: list[str]) -> None:
    for key, value in launcher.items():
        if key not in known:
            raise ConfigError(f"launcher.{key}", value, f"there is no such key; {one_of(key, known)}")


def _slots(value: Any) -> str | int | tuple[str, ...]:
    if value == "auto":
        return "auto"
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    if isinstance(value, (list, tuple)) and value and all(_is_id(item) for item in value):
        ids = tuple(str(item) for item in value)
        if len(set(ids)) == len(ids):
            return ids
        raise ConfigError("launcher.slots", list(value), "names an id twice")
    raise ConfigError("launcher.slots", list(value) if isinstance(value, tuple) else value, SLOTS_ALLOWED)


def _is_id(item: Any) -> bool:
    return (isinstance(item, int) and not isinstance(item, bool) and item >= 0) or (isinstance(item, str) and bool(item.strip()))
