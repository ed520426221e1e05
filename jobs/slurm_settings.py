"""What can be asked of a SLURM cluster, each key with its meaning and unit, checked before anything is submitted."""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from accum_sweeps.plan.errors import ConfigError
from accum_sweeps.plan.setting import setting

# Options of sbatch that a key of the launcher, or the launcher itself, decides.
OWNED = {
    "account": "account",
    "constraint": "constraint",
    "cpus-per-task": "cpus_per_run",
    "gpus-per-node": "gpus_per_run",
    "gres": "gres",
    "mem": "mem_gb",
    "nodes": "nodes",
    "partition": "partition",
    "qos": "qos",
    "requeue": "requeue",
    "no-requeue": "requeue",
    "signal": "signal_before_limit_s",
    "time": "time_min",
}
BUILT_IN = ("array", "dependency", "error", "job-name", "ntasks", "ntasks-per-node", "open-mode", "output", "parsable", "wait", "wrap")
LEAD_S = 120
_OPTION = re.compile(r"[a-z][a-z0-9-]*")


@dataclass(frozen=True, kw_only=True)
class SlurmSettings:
    """The launcher's settings for ``launcher=slurm``, besides those that all launchers have."""

    partition: str | None = setting("partition; null = the cluster's default", default=None)
    account: str | None = setting("account that the time is booked on; null = the user's default", default=None)
    qos: str | None = setting("quality of service; null = the default", default=None)
    constraint: str | None = setting("features that the nodes must have; null = any node", default=None)
    gres: str | None = setting("generic resources of a worker; null = by gpus_per_run", default=None)
    gpus_per_run: int | None = setting("GPUs of a worker; null = one for each rank with device=cuda", default=None, at_least=0)
    cpus_per_run: int | None = setting("CPUs of a worker; null = threads x ranks", default=None, at_least=1)
    mem_gb: float | None = setting("memory of a worker in GB; null = the partition's default", default=None, above=0)
    nodes: int = setting("nodes of a worker, which runs on the first", default=1, at_least=1)
    time_min: int | None = setting("minutes until SLURM ends a job; null = the partition's default", default=None, at_least=1)
    workers: int | None = setting("most workers at a time; null = one for each open run, 100 at most", default=None, at_least=1)
    max_parallel: int | None = setting("jobs that may run at the same time; null = no limit", default=None, at_least=1)
    signal_before_limit_s: int | None = setting(
        "seconds before the time limit at which runs are saved; null = a quarter of time_min, 120 at most", default=None, at_least=1
    )
    requeue: bool = setting("start jobs again that were preempted or reached their limit", default=True)
    wait: bool = setting("stay until the sweep is done", default=False)
    setup: tuple[str, ...] = setting("shell lines before the worker", default=())
    container: str | None = setting("command in front of the worker's; null = none", default=None)
    options: Mapping[str, Any] | None = setting("further options of sbatch; null = none", default=None)
    python: str | None = setting("interpreter on the nodes; null = the one of this command", default=None)
    poll_s: float = setting("seconds between two questions to SLURM", default=10.0, at_least=1)

    @property
    def lead_s(self) -> int:
        """Seconds before the time limit at which runs are saved."""
        if self.signal_before_limit_s is not None:
            return self.signal_before_limit_s
        return LEAD_S if self.time_min is None else min(LEAD_S, 15 * self.time_min)

    @property
    def container_words(self) -> list[str]:
        """The container's command, in words."""
        return shlex.split(self.container or "")


def check_slurm(settings: SlurmSettings, runs_per_job: int) -> None:
    """ConfigError for values that contradict each other, or that an sbatch script cannot hold."""
    if settings.workers is not None and runs_per_job:
        hint = "launcher.max_parallel bounds how many jobs run at the same time."
        words = f"with launcher.runs_per_job={runs_per_job} the open runs decide how many jobs there are"
        raise ConfigError("launcher.workers", settings.workers, words, hint)
    for key in ("partition", "account", "qos", "constraint", "gres"):
        _check_value(f"launcher.{key}", getattr(settings, key))
    for key in ("container", "python"):
        _check_text(f"launcher.{key}", getattr(settings, key))
    for number, line in enumerate(settings.setup):
        _check_text(f"launcher.setup[{number}]", line)
    for name, value in (settings.options or {}).items():
        _check_option(name, value)
    try:
        settings.container_words  # noqa: B018
    except ValueError as error:
        raise ConfigError("launcher.container", settings.container, f"cannot be read as a command: {error}") from None
    _check_limit(settings)


def _check_text(key: str, value: str | None) -> None:
    if value is not None and (not value.strip() or not value.isprintable()):
        raise ConfigError(key, value, "must be one line of text, not empty")


def _check_value(key: str, value: str | None) -> None:
    """A value of an option, which sbatch reads in its own way."""
    _check_text(key, value)
    if value is not None and "\\" in value:
        raise ConfigError(key, value, "must not hold a backslash, which sbatch takes away")


def _check_option(name: str, value: Any) -> None:
    key = f"launcher.options.{name}"
    if not _OPTION.fullmatch(name):
        raise ConfigError(key, value, "must be a long option of sbatch without its dashes, as in exclude or mail-user")
    if name in OWNED:
        raise ConfigError(key, value, f"is set by launcher.{OWNED[name]}")
    if name in BUILT_IN:
        raise ConfigError(key, value, "is set by the launcher itself")
    if not isinstance(value, str | int | float):
        raise ConfigError(key, value, "must be a text, a number, or true for an option without a value")
    if value is False:
        raise ConfigError(key, value, "must be true or left out")
    _check_value(key, str(value))


def _check_limit(settings: SlurmSettings) -> None:
    if settings.time_min is not None and settings.lead_s >= 60 * settings.time_min:
        hint = "A job needs the time between to do something: a longer launcher.time_min, or a shorter lead."
        words = f"must be less than launcher.time_min={settings.time_min} ({60 * settings.time_min} s)"
        raise ConfigError("launcher.signal_before_limit_s", settings.lead_s, words, hint)
