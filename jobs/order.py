"""What a worker is told: paths and numbers only, so that it costs the same for ten runs and for a hundred thousand."""

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from accum_sweeps.jobs.resources import Resources
from accum_sweeps.jobs.slots import SlotPool, slot_pool
from accum_sweeps.jobs.slurm_chunks import MOST_WORKERS
from accum_sweeps.plan.spec import Setup
from accum_sweeps.record.state import is_alive
from accum_sweeps.record.sweep import Plan, PlannedRun


@dataclass(frozen=True)
class Group:
    """Runs that share what can be set only once in a process: device type, threads, deterministic algorithms, slots of a run."""

    device: str
    threads: int
    deterministic: bool
    ranks: int = 1

    @classmethod
    def of(cls, setup: Setup) -> "Group":
        """The group of a setup's runs."""
        return cls(setup.device, setup.threads, setup.deterministic, setup.ranks)


def slot_pools(wanted: Iterable[Group], resources: Resources) -> dict[Group, SlotPool]:
    """The slots of each group.

    Raises UserError where no GPU is found, ConfigError where more slots are asked for than there are or a run takes more. On a
    cluster nothing of this machine matters: the scheduler gives each worker what it may use.
    """
    if resources.kind == "slurm":
        workers = resources.slurm.max_parallel or resources.slurm.workers or MOST_WORKERS
        return {group: SlotPool("job", (), 0, workers) for group in wanted}
    return {group: slot_pool(resources, group.device, group.threads, group.ranks) for group in wanted}


def groups(plan: Plan) -> dict[Group, list[PlannedRun]]:
    """The plan's runs by group, in the order in which they shall start.

    All setups and arms of a seed come together: arms that are compared run near in time, and every setup has a first
    result early.
    """
    of_setup = [Group.of(setup) for setup in plan.setups]
    seeds: dict[int, int] = {}
    for run in plan.runs:
        seeds.setdefault(run.seed, len(seeds))
    found: dict[Group, list[PlannedRun]] = {}
    for run in sorted(plan.runs, key=lambda run: (seeds[run.seed], run.setup)):
        found.setdefault(of_setup[run.setup], []).append(run)
    return found


@dataclass(frozen=True, kw_only=True)
class WorkOrder:
    """One worker's order. ``dispatch`` names the command that gave it, ``name`` the worker's journal.

    ``dispatcher`` is (pid, start time) of a process on this machine whose death ends the work; None where nobody waits.
    ``engine`` is the module that computes (see jobs.engine). ``facts`` on the command are recorded with each attempt;
    ``environment`` are variables that the worker's process is started with.

    On a cluster: ``job``, ``turn`` (how often it was put back into the queue) and ``node`` are filled in by the job itself;
    ``release`` of this package wrote the order; ``linger_s`` is how long a worker waits for runs that others have before it leaves
    its node; ``closing`` is the module that reports a sweep that is over, from ``closing_facts``.

    With a bound on the runs of a worker, ``runs_left`` are still to be taken (None = no bound), and of ``taken`` those that failed may be
    tried again.
    """

    root: str
    sweep: str
    revision: int
    dispatch: str
    name: str
    group: Group
    pool: SlotPool
    resources: Resources
    reuse: str = "strict"
    dispatcher: tuple[int, int] | None = None
    engine: str = "accum_sweeps.jobs.engine"
    sys_path: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)
    job: str = ""
    log: str = ""
    incarnation: int = 0
    runs_left: int | None = None
    taken: tuple[str, ...] = ()
    turn: int = 0
    node: str = ""
    release: str = ""
    linger_s: float = math.inf
    closing: str = ""
    closing_facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def owner(self) -> str:
        """Names this worker process in claims."""
        return f"{self.name}.{self.incarnation}"

    @property
    def is_abandoned(self) -> bool:
        """Whether the command that waited for this worker is gone."""
        return self.dispatcher is not None and _is_gone(*self.dispatcher)


def _is_gone(pid: int, start: int) -> bool:
    if start:
        return not is_alive(pid, start)
    try:  # a system that does not tell when processes started
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False
