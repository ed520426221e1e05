"""The runs that an analysis needs besides those of the axes: ladders, rounding controls, reruns, nested initial weights. Pure.

A verdict compares accumulated runs with *controls*: runs of the same k that differ by nothing but rounding. Without them nobody can
tell a fault from rounding. *Reruns* show whether equal runs give equal numbers here at all. *Nested* initial weights tell how much of
the variance over seeds is that of the initial weights, and how much that of the order of the data. A setup's *ladder* tells in seconds
whether its accumulation is right: what is judged beside a fault is the fault.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from accum_sweeps.plan.errors import ConfigError, one_of
from accum_sweeps.plan.parts import CommandHook, PythonHook
from accum_sweeps.plan.spec import CONTROLS, RunSpec, Setup
from accum_sweeps.plan.together import check_run, check_setup, dependence

AUTO, NONE = "auto", "none"
KINDS = (NONE, AUTO, *(kind for kind in CONTROLS if kind != NONE))
KEYS = ("control", "reruns", "inits", "ladder")
MOST_CUTS = 4  # a ladder climbs no further, as each of its steps costs a pass for every micro-batch


@dataclass(frozen=True, kw_only=True)
class Design:
    """``controls``: kinds of controls, one run each for every run at an accumulated k; ``auto`` picks the kind by the setup.

    ``reruns``: so many seeds, from each setup's first on, have every run done twice. ``inits``: initial weights for each data seed.
    ``ladder``: each setup that is trained with several accumulation factors has a ladder.
    """

    controls: tuple[str, ...] = ()
    reruns: int = 0
    inits: int = 1
    ladder: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain values under the configuration's keys."""
        return {"control": list(self.controls) or NONE, "reruns": self.reruns, "inits": self.inits, "ladder": self.ladder}

    def complete(self, runs: Iterable[RunSpec], reference: int | None = None) -> Iterator[RunSpec]:
        """``runs`` and what the design adds to them, each addition after the run it belongs to; only trainings get any.

        A ladder comes before its setup's first run: whoever accumulates wrongly shall not wait for the end of the sweep to learn it.

        ``reference`` is the reference arm's accumulation factor, by default each setup's smallest. Raises ConfigError for a control
        that would change more than rounding, and for inits where the runs set their seed streams apart already.
        """
        if self == Design():
            yield from runs
            return
        planned = list(self._nested(runs))
        arms: dict[int, set[int]] = {}  # equal setups are one object
        seeds: dict[int, dict[int, None]] = {}
        setups = {id(run.setup): run.setup for run in planned}
        for run in planned:
            arms.setdefault(id(run.setup), set()).add(run.accum)
            seeds.setdefault(id(run.setup), {}).setdefault(run.seed)
        kinds = {key: self._kinds(setup, arms[key]) for key, setup in setups.items()}
        rerun = {key: set(list(numbers)[: self.reruns]) for key, numbers in seeds.items()}
        known = {run.run_id for run in planned}
        without_ladder = set(setups) if self.ladder else set()
        for run in planned:
            if id(run.setup) in without_ladder:
                without_ladder.remove(id(run.setup))
                yield from (each for each in _ladder(run, arms[id(run.setup)]) if each.run_id not in known)
            yield run
            if run.control != NONE or run.replicate or run.setup.measure != "training":
                continue
            key = id(run.setup)
            is_accumulated = run.accum != (min(arms[key]) if reference is None else reference)
            added = [dataclasses.replace(run, control=kind) for kind in kinds[key] if is_accumulated]
            added += [dataclasses.replace(run, replicate=1)] if run.seed in rerun[key] else []
            for each in added:
                check_run(each)
                if each.run_id not in known:
                    yield each

    def _nested(self, runs: Iterable[RunSpec]) -> Iterator[RunSpec]:
        """For each run of data seed s the runs of seeds inits x s, inits x s + 1, ..., which share the order of the data alone."""
        for run in runs:
            if self.inits == 1 or run.setup.measure != "training":
                yield run
                continue
            if not run.seed == run.seed_init == run.seed_data == run.seed_dropout:
                raise ConfigError("design.inits", self.inits, "the grid sets the seed streams apart itself", "Take one of the two.")
            for number in range(self.inits):
                own = self.inits * run.seed + number
                yield dataclasses.replace(run, seed=own, seed_init=own, seed_dropout=own)

    def _kinds(self, setup: Setup, arms: set[int]) -> tuple[str, ...]:
        found = dict.fromkeys(automatic(setup, arms) if kind == AUTO else kind for kind in self.controls)
        return tuple(kind for kind in found if kind != NONE)


def automatic(setup: Setup, arms: Iterable[int]) -> str:
    """The kind of control for a setup with these accumulation factors.

    ``regroup`` cuts the same samples into other micro-batches: exactly what accumulation itself changes. It is none where the
    gradient depends on which samples share a micro-batch, as may be in users' code, and none with one sample in a micro-batch,
    where there is no other partition; one unit in the last place of the weights is a control everywhere. A program of the user's
    would have to carry it out itself, so it gets none.
    """
    if isinstance(setup.subject, CommandHook):
        return NONE
    has_single_rows = any(setup.global_batch // (setup.ranks * k) == 1 for k in arms)
    if dependence(setup) or has_single_rows or isinstance(setup.subject, PythonHook):
        return "ulp_weights"
    return "regroup"


def _ladder(run: RunSpec, arms: set[int]) -> Iterator[RunSpec]:
    """The ladder of the setup that ``run`` trains, with its seeds; none for a program, and none where nothing is compared.

    At the largest factor up to MOST_CUTS that leaves two samples in a micro-batch, as no other partition could be compared with single
    ones; at the smallest where there is none.
    """
    setup, cut = run.setup, sorted(k for k in arms if k > 1)
    if setup.measure != "training" or isinstance(setup.subject, CommandHook) or len(arms) == 1:
        return
    whole = [k for k in cut if k <= MOST_CUTS and setup.global_batch // (setup.ranks * k) > 1]
    ladder = dataclasses.replace(setup, measure="ladder", probe_tensors=False)
    climb = dataclasses.replace(run, setup=ladder, accum=whole[-1] if whole else cut[0], control=NONE, replicate=0)
    check_setup(ladder)
    check_run(climb)
    yield climb


def own_setups(setups: Iterable[Setup]) -> list[Setup]:
    """``setups`` without those of ladders that stand beside trainings."""
    found = list(setups)
    return [setup for setup in found if setup.measure == "training"] or found


def additions(runs: Iterable[RunSpec]) -> dict[str, int]:
    """Numbers of controls by kind, of reruns, and of ladders beside trainings, in words."""
    planned = list(runs)
    counts = Counter(
        f"{run.control} controls" if run.control != NONE else "reruns" for run in planned if run.control != NONE or run.replicate
    )
    measures = Counter(run.setup.measure for run in planned)
    return {**counts, **({"ladders": measures["ladder"]} if measures["ladder"] and measures["training"] else {})}


def read_design(values: Any) -> Design:
    """The Design of the configuration's ``design``; ConfigError for what it cannot be."""
    if not isinstance(values, Mapping):
        raise ConfigError("design", values, f"must be a mapping with {', '.join(KEYS)}")
    for key in values:
        if key not in KEYS:
            raise ConfigError(f"design.{key}", values[key], f"there is no such key; {one_of(str(key), KEYS)}")
    control = values.get("control", NONE)
    kinds = list(control) if isinstance(control, (list, tuple)) else [control]
    for kind in kinds:
        if kind not in KINDS:
            raise ConfigError("design.control", kind, one_of(str(kind), KINDS))
    return Design(
        controls=tuple(dict.fromkeys(str(kind) for kind in kinds if kind != NONE)),
        reruns=_number("design.reruns", values.get("reruns", 0), 0),
        inits=_number("design.inits", values.get("inits", 1), 1),
        ladder=_truth("design.ladder", values.get("ladder", False)),
    )


def _number(key: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(key, value, f"must be a whole number, at least {least}")
    return value


def _truth(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(key, value, "must be true or false")
    return value
