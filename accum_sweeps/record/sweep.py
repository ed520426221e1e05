"""The sweep directory: revisions of a plan, the tables made from it, and whether it was cancelled.

    sweeps/<name>/plan.<revision>.jsonl     one header line, one line a run
    sweeps/<name>/results.parquet, results.csv, trajectories.parquet
    sweeps/<name>/mlflow/ submitit/ workers/

A plan file is compact (setups once, then one short array a run), because a plan may hold a hundred thousand runs.
"""

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from accum_sweeps.plan.errors import UserError
from accum_sweeps.plan.labels import run_name
from accum_sweeps.plan.names import check_sweep_name
from accum_sweeps.plan.spec import RUN_KEYS, RunSpec, Setup, canonical, make_run, make_setup
from accum_sweeps.record.events import now_ms
from accum_sweeps.record.files import create_exclusive, whole_lines, write_text
from accum_sweeps.record.store import RootDir

PLANNED = (
    "grid",
    "definition",
    "axes",
    "design",
    "judging",
    "compare",
    "page",
)  # of a plan's header: what makes another plan of the same runs


class PlannedRun(NamedTuple):
    """One run of a plan; ``setup`` counts into Plan.setups."""

    run_id: str
    setup: int
    accum: int
    seed: int
    seed_init: int
    seed_data: int
    seed_dropout: int
    control: str
    replicate: int


@dataclass(frozen=True)
class Plan:
    """One revision of a sweep's plan. ``labels`` name the setups; ``header`` keeps command, grid, axes, design, judging, cwd."""

    revision: int
    header: Mapping[str, Any]
    setups: Sequence[Setup]
    labels: Sequence[str]
    runs: Sequence[PlannedRun] = field(repr=False)

    def spec(self, run: PlannedRun) -> RunSpec:
        """The run's full specification."""
        return make_run(self.setups[run.setup], {key: getattr(run, key) for key in RUN_KEYS})

    def cell_label(self, run: PlannedRun) -> str:
        """Setup and accumulation factor in words."""
        return f"{self.labels[run.setup]} k={run.accum}"

    def run_name(self, run: PlannedRun) -> str:
        """The run in words, as in ``lm-tiny adamw fp32 k=4 s=2 ctl=ulp_weights rep=1``."""
        return run_name(self.labels[run.setup], run)

    @functools.cached_property
    def by_id(self) -> dict[str, PlannedRun]:
        """The runs by run_id."""
        return {run.run_id: run for run in self.runs}


@dataclass(frozen=True)
class SweepDir:
    """A named sweep of a root; made by :func:`open_sweep`."""

    root: RootDir
    name: str

    @property
    def path(self) -> Path:
        """The sweep's folder."""
        return self.root.path / "sweeps" / self.name

    def revisions(self) -> list[int]:
        """Numbers of the plan's revisions, ascending."""
        found = [p.name.split(".") for p in self.path.glob("plan.*.jsonl")]
        return sorted(int(n[1]) for n in found if len(n) == 3 and n[1].isdigit())

    def write_plan(self, header: Mapping[str, Any], specs: Iterable[RunSpec], labels: Mapping[str, str]) -> Plan:
        """The plan of ``specs`` as a new revision, or the newest revision where that holds the same runs.

        ``labels`` names setups by setup_id. Two commands that plan at the same moment get one revision each.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        setups, runs = _numbered(specs)
        document = {"setups": [setup.to_dict() for setup in setups], "labels": [labels[s.setup_id] for s in setups]}
        while True:
            newest = self.revisions()[-1:] or [0]
            if newest[0]:
                plan = self.read_plan(newest[0])
                asked = [header.get(key) for key in PLANNED] == [plan.header.get(key) for key in PLANNED]
                if asked and list(plan.runs) == runs and list(plan.labels) == document["labels"]:
                    return plan
            lines = [canonical({**header, **document, "revision": newest[0] + 1, "created_ms": now_ms(), "runs": len(runs)})]
            lines += [canonical(list(run)) for run in runs]
            if create_exclusive(self.path / f"plan.{newest[0] + 1}.jsonl", "\n".join(lines) + "\n"):
                return self.read_plan(newest[0] + 1)

    def read_plan(self, revision: int | None = None) -> Plan:
        """A revision of the plan, the newest by default; UserError if there is none or it is damaged."""
        if revision is None:
            revision = (self.revisions()[-1:] or [0])[0]
        path = self.path / f"plan.{revision}.jsonl"
        try:
            lines = [json.loads(line) for line in whole_lines(path)]
            header = lines[0]
            setups = [make_setup(values) for values in header["setups"]]
            runs = [PlannedRun(*line) for line in lines[1:]]
            if len(runs) != header["runs"]:
                raise ValueError(f"{len(runs)} of {header['runs']} runs")
        except FileNotFoundError:
            raise UserError(f"sweep={self.name}: not planned yet in root={self.root.path}.\n  {_known(self.root)}") from None
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise UserError(f"sweep={self.name}: {path} is damaged ({error}).\n  Remove it and type the grid's command again.") from None
        rest = {key: value for key, value in header.items() if key not in ("setups", "labels", "runs")}
        return Plan(revision, rest, setups, header["labels"], runs)

    @property
    def is_cancelled(self) -> bool:
        """Whether ``action=cancel`` stopped the sweep; typing its command again takes that back."""
        return (self.path / "cancelled").exists()

    def set_cancelled(self, cancelled: bool) -> None:
        """Cancel the sweep for all its workers, or take that back."""
        if cancelled:
            write_text(self.path / "cancelled", f"{now_ms()}\n")
        else:
            (self.path / "cancelled").unlink(missing_ok=True)


def open_sweep(root: RootDir, name: str) -> SweepDir:
    """The sweep ``name`` of ``root``, planned or not; UserError if the name cannot be a folder's."""
    return SweepDir(root, check_sweep_name(name))


def sweep_names(root: RootDir) -> list[str]:
    """The names of all planned sweeps of a root, sorted."""
    return sorted({path.parent.name for path in root.path.glob("sweeps/*/plan.*.jsonl")})


def _known(root: RootDir) -> str:
    names = sweep_names(root)
    return f"Planned sweeps: {', '.join(names)}" if names else "No sweep is planned there. Start one with +grid=NAME."


def _numbered(specs: Iterable[RunSpec]) -> tuple[list[Setup], list[PlannedRun]]:
    setups: dict[str, tuple[int, Setup]] = {}
    runs = [PlannedRun(s.run_id, _number(setups, s.setup), *(getattr(s, key) for key in RUN_KEYS)) for s in specs]
    return [setup for _, setup in setups.values()], runs


def _number(setups: dict[str, tuple[int, Setup]], setup: Setup) -> int:
    return setups.setdefault(setup.setup_id, (len(setups), setup))[0]
