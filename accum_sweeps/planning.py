"""What a command plans: its runs with the hashes of data and code, what of them is done already, how long the rest takes."""

import dataclasses
import shlex
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accum_sweeps.plan.config import Config
from accum_sweeps.plan.errors import ConfigError, one_of
from accum_sweeps.plan.flat import flatten
from accum_sweeps.plan.judging import check_sign_flip
from accum_sweeps.plan.labels import setup_labels
from accum_sweeps.plan.pairs import check_pair
from accum_sweeps.plan.parts import Decoder, DualEncoder, Pairs, TextFiles, TokenFile
from accum_sweeps.plan.spec import RUN_KEYS, RunSpec, Setup
from accum_sweeps.plan.tracking import without_password
from accum_sweeps.record.metrics import FINAL_UNITS
from accum_sweeps.record.state import RunState, file_system_now, run_state
from accum_sweeps.record.store import DamagedRunError, RootDir, open_root
from accum_sweeps.record.sweep import open_sweep, sweep_names
from accum_sweeps.subjects.identify import BUILT_IN
from accum_sweeps.subjects.identify import identify as identify_subject
from accum_sweeps.subjects.identify_clip import identify as identify_clip
from accum_sweeps.training.data.corpus import identify as identify_data
from accum_sweeps.training.models.frozen import check_frozen


def planned_runs(config: Config, cwd: Path) -> list[RunSpec]:
    """Every run of the configuration's grid and design, validated, with the hashes of its data and of the user's code.

    Raises UserError for anything that would make a run impossible, before anything is written.
    """
    reference = config.judging.reference
    specs = list(_identified(config.design.complete(config.grid.expand(), reference), cwd))
    arms = {spec.accum for spec in specs}
    if reference is not None and reference not in arms:
        raise ConfigError("analysis.reference", reference, f"must be an accumulation factor of the grid: {sorted(arms)}")
    _check_judging(config, specs)
    _check_pairs(config.compare, specs)
    return specs


def _check_judging(config: Config, specs: Sequence[RunSpec]) -> None:
    """ConfigError for what would keep the sweep from being judged as it is asked for, before a run is started."""
    judging, trainings = config.judging, [spec for spec in specs if spec.setup.measure == "training"]
    if not trainings:
        return
    own = {spec.setup.subject.kind for spec in trainings} - {"lm", "clip"}
    if judging.response not in FINAL_UNITS and not (own and judging.response.endswith("_final")):
        words = one_of(judging.response, FINAL_UNITS) + (", or a final value of your own, NAME_final" if own else "")
        raise ConfigError("analysis.response", judging.response, words)
    arms: dict[str, tuple[set[int], set[int]]] = defaultdict(lambda: (set(), set()))
    for spec in trainings:
        seeds, factors = arms[spec.setup.setup_id]
        seeds.add(spec.seed)
        factors.add(spec.accum)
    for seeds, factors in arms.values():
        check_sign_flip(judging, len(seeds), len(factors))
    if judging.margin_from is not None:
        _check_earlier(config, {spec.seed for spec in trainings})


def _check_earlier(config: Config, seeds: set[int]) -> None:
    """ConfigError where the margin's sweep is not there, or shares a seed with this one, whose margin it would then not be."""
    name = str(config.judging.margin_from)
    known = sweep_names(open_root(config.root)) if config.root.exists() else []
    if name not in known:
        raise ConfigError("analysis.margin_from", name, one_of(name, known) if known else f"no sweep is planned in {config.root}")
    shared = sorted(seeds & {run.seed for run in open_sweep(open_root(config.root), name).read_plan().runs})
    if shared:
        words = f"has the seeds {', '.join(map(str, shared[:5]))} too; a margin must come from other seeds than those it judges"
        raise ConfigError("analysis.margin_from", name, words)


def _check_pairs(pairs: Sequence[Mapping[str, Any]], specs: Sequence[RunSpec]) -> None:
    """ConfigError for a pair of cells that no two of ``specs`` make."""
    if not pairs:
        return
    trainings = [spec for spec in specs if spec.setup.measure == "training"]
    measures = {spec.setup.measure for spec in specs} - ({"training", "ladder"} if trainings else set())  # a design adds ladders
    if measures:
        words = f"needs trainings: measure={', '.join(sorted(measures))} keeps no weights and compares by itself"
        raise ConfigError("analysis.compare", list(pairs), words)
    setups = {id(spec.setup): flatten(spec.setup.to_dict()) for spec in trainings}
    rows = [{**setups[id(spec.setup)], **{key: getattr(spec, key) for key in RUN_KEYS}} for spec in trainings]
    for pair in pairs:
        check_pair(rows, pair)


def _identified(specs: Iterable[RunSpec], cwd: Path) -> Iterator[RunSpec]:
    setups: dict[str, Setup] = {}
    parts: dict[str, Any] = {}
    for spec in specs:
        setup = _once(setups, spec.setup.setup_id, lambda original=spec.setup: _identify(original, cwd, parts))  # type: ignore[misc]
        yield dataclasses.replace(spec, setup=setup)


def _identify(setup: Setup, cwd: Path, parts: dict[str, Any]) -> Setup:
    check_frozen(setup)
    if isinstance(setup.model, DualEncoder) and isinstance(setup.data, Pairs):
        return _identify_contrastive(setup, setup.model, setup.data, cwd, parts)
    vocabulary = setup.model.vocabulary if isinstance(setup.model, Decoder) else None
    data = setup.data
    if isinstance(data, TextFiles | TokenFile):
        data = dataclasses.replace(data, path=str(cwd / Path(data.path).expanduser()))  # a worker may stand in another folder
    key = repr((setup.subject, setup.ranks, setup.dtype, setup.accumulator))
    subject = _once(parts, key, lambda: identify_subject(setup.subject, cwd, setup))
    return dataclasses.replace(setup, subject=subject, data=_once(parts, repr((data, vocabulary)), lambda: identify_data(data, vocabulary)))


def _identify_contrastive(setup: Setup, model: DualEncoder, data: Pairs, cwd: Path, parts: dict[str, Any]) -> Setup:
    key = repr((model, data, setup.global_batch))
    model, data = _once(parts, key, lambda: identify_clip(model, data, setup.global_batch, cwd))
    return dataclasses.replace(setup, model=model, data=data)


def _once(known: dict[str, Any], key: str, make: Callable[[], Any]) -> Any:
    if key not in known:
        known[key] = make()
    return known[key]


def labels_of(specs: Iterable[RunSpec]) -> dict[str, str]:
    """Labels of the setups by setup_id."""
    setups = {spec.setup.setup_id: spec.setup for spec in specs}
    return dict(zip(setups, setup_labels(list(setups.values())), strict=True))


def header(config: Config, cwd: Path) -> dict[str, Any]:
    """What a plan records besides its runs."""
    return {
        "command": shlex.join(["python", "-m", "accum_sweeps", *map(without_password, config.overrides)]),
        "grid": config.grid_name,
        "definition": dict(config.grid.definition),
        "axes": config.grid.axes,
        "design": config.design.to_dict(),
        "judging": config.judging.asked(),
        "compare": list(config.compare),
        "page": config.page,
        "cwd": str(cwd),
        "git_commit": git_commit(Path(__file__).parent) if config.base["subject"]["kind"] in BUILT_IN else git_commit(cwd),
    }


def git_commit(folder: Path) -> str:
    """Commit of the working tree that ``folder`` is in, ``+changes`` where files differ from it; empty outside a working tree."""
    command = ["git", "-C", str(folder), "describe", "--always", "--abbrev=12", "--dirty=+changes", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


@dataclass(frozen=True)
class Standing:
    """How a plan stands: the state of each run, and expected seconds of training for those that are not done."""

    states: Mapping[str, RunState]
    expected_s: Mapping[str, float]

    @property
    def done(self) -> list[RunState]:
        """The runs that are done in whatever environment."""
        return [state for state in self.states.values() if state.is_done]

    def by_environment(self, root: RootDir) -> dict[str, int]:
        """Number of done runs by environment in words."""
        counts: dict[str, int] = defaultdict(int)
        for state in self.done:
            counts[_environment(root, state)] += 1
        return dict(counts)


def standing(root: RootDir, specs: Sequence[RunSpec]) -> Standing:
    """How the planned runs stand in ``root``. Expected times are known where runs of the same setup and k were timed."""
    now = file_system_now(root.path)
    states = {spec.run_id: run_state(root, spec.run_id, now=now) for spec in specs}
    timed: dict[tuple[str, int | None], list[float]] = defaultdict(list)
    for spec in specs:
        wall_s = states[spec.run_id].final.get("wall_s")
        if wall_s is not None:
            timed[spec.setup.setup_id, spec.accum].append(wall_s)
            timed[spec.setup.setup_id, None].append(wall_s)
    left = [spec for spec in specs if not states[spec.run_id].is_done]
    samples = {s.run_id: timed.get((s.setup.setup_id, s.accum)) or timed.get((s.setup.setup_id, None)) for s in left}
    return Standing(states, {run_id: sum(values) / len(values) for run_id, values in samples.items() if values})


def _environment(root: RootDir, state: RunState) -> str:
    try:
        facts = root.run_dir(state.run_id, state.env_id).read_environment()
    except DamagedRunError:
        return state.env_id
    return f"{state.env_id}: torch {facts.get('torch', '?')}, {facts.get('gpu') or facts.get('cpu', '?')}"
