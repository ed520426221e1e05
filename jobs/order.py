"""What a worker is told: paths and numbers only, so that it costs the same for ten runs and for a hundred thousand."""

import os
from dataclasses import dataclass

from accum_sweeps.jobs.resources import Resources
from accum_sweeps.jobs.slots import SlotPool
from accum_sweeps.record.state import is_alive
from accum_sweeps.record.sweep import Plan, PlannedRun

REUSE = ("strict", "warn", "any")


@dataclass(frozen=True)
class Group:
    """Runs that share what can be set only once in a process: device type, threads, deterministic algorithms."""

    device: str
    threads: int
    deterministic: bool


def groups(plan: Plan) -> dict[Group, list[PlannedRun]]:
    """The plan's runs by group, in the order in which they shall start.

    All setups and arms of a seed come together: arms that are compared run near in time, and every setup has a first
    result early.
    """
    of_setup = [Group(setup.device, setup.threads, setup.deterministic) for setup in plan.setups]
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
    ``engine`` is the module that computes (see jobs.engine).
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
    job: str = ""
    log: str = ""
    incarnation: int = 0
    runs_left: int = 0

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
