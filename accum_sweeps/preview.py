"""What ``action=plan`` prints: counts by axis, what is done already and where, how long the rest takes, every run."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from accum_sweeps import planning
from accum_sweeps.jobs.order import Group, slot_pools
from accum_sweeps.jobs.progress import duration
from accum_sweeps.jobs.resources import Resources
from accum_sweeps.on_cluster import scripts
from accum_sweeps.plan.config import Config
from accum_sweeps.plan.design import additions, own_setups
from accum_sweeps.plan.labels import run_name
from accum_sweeps.plan.spec import RunSpec
from accum_sweeps.plan.words import counted
from accum_sweeps.record.events import DONE
from accum_sweeps.record.store import RootDir, open_root
from accum_sweeps.texts import aligned

MOST_RUNS = 40


def preview(config: Config, specs: Sequence[RunSpec], resources: Resources) -> str:
    """The whole text. Reads the root if there is one; writes nothing."""
    labels = planning.labels_of(specs)
    root = _existing(config.root)
    stands = planning.standing(root, specs) if root else planning.Standing({}, {})
    size = f"{counted(len(specs), 'run')} in {counted(len(own_setups({id(spec.setup): spec.setup for spec in specs}.values())), 'setup')}"
    blocks = [
        f"sweep {config.sweep}: {size}\nroot  {config.root}" + ("" if root else " (to be made)"),
        _axes(config, specs),
        _design(specs),
        _batches(specs),
        _done(specs, stands, root),
        _time(specs, stands, resources),
        _runs(specs, stands, labels),
        _scripts(config, specs, stands, resources),
    ]
    return "\n\n".join(block for block in blocks if block)


def _existing(path: Path) -> RootDir | None:
    return open_root(path) if path.exists() else None


def _axes(config: Config, specs: Sequence[RunSpec]) -> str:
    counts = config.grid.counts()
    rows = [(name, str(len(by_value)), "  ".join(f"{value} x{n}" for value, n in by_value.items())) for name, by_value in counts.items()]
    return aligned([("axis", "values", "runs by value"), *rows]) if rows else "no axis: a single run"


def _design(specs: Sequence[RunSpec]) -> str:
    added = additions(specs)
    return f"design   {', '.join(f'{number} {words}' for words, number in added.items())}" if added else ""


def _batches(specs: Sequence[RunSpec]) -> str:
    """What is fixed and what the accumulation factor cuts."""
    cuts = {(s.setup.global_batch, s.setup.ranks, s.accum, s.micro_batch) for s in specs}
    rows = [("global batch", "= ranks", "x accum", "x micro-batch"), *(tuple(map(str, cut)) for cut in sorted(cuts))]
    return aligned(rows)


def _done(specs: Sequence[RunSpec], stands: planning.Standing, root: RootDir | None) -> str:
    counts = Counter(state.status for state in stands.states.values())
    counts["planned"] += len(specs) - len(stands.states)
    lines = ["state    " + ", ".join(f"{n} {status}" for status, n in counts.items() if n)]
    if root:
        lines += [f"  {n} done in environment {words}" for words, n in stands.by_environment(root).items()]
    return "\n".join(lines)


def _time(specs: Sequence[RunSpec], stands: planning.Standing, resources: Resources) -> str:
    left = [spec for spec in specs if not (spec.run_id in stands.states and stands.states[spec.run_id].is_done)]
    if not left:
        return "to do    nothing"
    timed = [stands.expected_s[spec.run_id] for spec in left if spec.run_id in stands.expected_s]
    if not timed:
        return f"to do    {counted(len(left), 'run')}; how long is not known, as no run of these setups was timed here yet"
    slots = slot_pools([Group.of(left[0].setup)], resources).popitem()[1].count
    guess = sum(timed) / len(timed) * len(left) / min(slots, len(left))
    rest = "" if len(timed) == len(left) else f" ({len(left) - len(timed)} of them taken as long as the others)"
    return f"to do    {counted(len(left), 'run')}, about {duration(guess)} on {counted(slots, 'slot')}{rest}"


def _runs(specs: Sequence[RunSpec], stands: planning.Standing, labels: dict[str, str]) -> str:
    lines = []
    for spec in specs[:MOST_RUNS]:
        state = stands.states.get(spec.run_id)
        lines.append((spec.run_id, state.status if state else "planned", run_name(labels[spec.setup.setup_id], spec)))
    rest = f"\n... and {len(specs) - MOST_RUNS} more" if len(specs) > MOST_RUNS else ""
    return aligned([("run_id", "state", "run"), *lines]) + rest


def _scripts(config: Config, specs: Sequence[RunSpec], stands: planning.Standing, resources: Resources) -> str:
    """What a cluster would be given."""
    if resources.kind != "slurm":
        return ""
    left = (spec for spec in specs if not (spec.run_id in stands.states and stands.states[spec.run_id].status in ("running", *DONE)))
    return scripts(config.sweep, config.root, resources, dict(Counter(Group.of(spec.setup) for spec in left)))
