"""Plans on disk: revisions, exact round trips, two planners at one moment."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from accum_sweeps.plan.errors import UserError
from accum_sweeps.plan.spec import RunSpec
from accum_sweeps.record.store import RootDir, open_root
from accum_sweeps.record.sweep import SweepDir, open_sweep, sweep_names
from tests.specs import make_spec


@pytest.fixture
def root(tmp_path: Path) -> RootDir:
    return open_root(tmp_path / "root", create=True)


def write(sweep: SweepDir, specs: list[RunSpec]) -> int:
    return sweep.write_plan({"command": "c"}, specs, {s.setup.setup_id: f"lm {s.setup.dtype}" for s in specs}).revision


def test_specifications_come_back_exactly(root: RootDir) -> None:
    specs = [make_spec(seed=s, accum=k, dtype=d, seed_init=7) for d in ("fp32", "fp64") for s in (0, 1) for k in (1, 4)]
    sweep = open_sweep(root, "x")
    assert write(sweep, specs) == 1
    plan = sweep.read_plan()
    assert [plan.spec(run) for run in plan.runs] == specs
    assert [run.run_id for run in plan.runs] == [spec.run_id for spec in specs]
    assert len(plan.setups) == 2 and plan.header["command"] == "c"
    assert plan.run_name(plan.runs[-1]) == "lm fp64 k=4 s=1 init=7"
    assert plan.by_id[specs[3].run_id] == plan.runs[3]


def test_the_same_plan_is_no_new_revision_and_another_is(root: RootDir) -> None:
    sweep = open_sweep(root, "x")
    specs = [make_spec(seed=s) for s in range(3)]
    assert [write(sweep, specs), write(sweep, specs), write(sweep, [*specs, make_spec(seed=3)]), write(sweep, specs)] == [1, 1, 2, 3]
    assert sweep.revisions() == [1, 2, 3]
    assert len(sweep.read_plan(2).runs) == 4


def test_another_reference_for_the_same_runs_is_another_plan(root: RootDir) -> None:
    sweep, spec = open_sweep(root, "x"), make_spec()
    plans = [
        sweep.write_plan({"command": c, "judging": {"reference": r}}, [spec], {spec.setup.setup_id: "lm"})
        for c, r in (("a", 1), ("b", 1), ("c", 2))
    ]
    assert [plan.revision for plan in plans] == [1, 1, 2]
    assert plans[2].header["judging"] == {"reference": 2}


def test_eight_planners_at_one_moment_agree(root: RootDir) -> None:
    sweep = open_sweep(root, "x")
    specs = [make_spec(seed=s) for s in range(20)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda _: write(sweep, specs), range(8))) == [1] * 8


def test_a_sweep_never_planned_names_those_that_are(root: RootDir) -> None:
    with pytest.raises(UserError, match="No sweep is planned there"):
        open_sweep(root, "x").read_plan()
    write(open_sweep(root, "y"), [make_spec()])
    with pytest.raises(UserError, match="Planned sweeps: y"):
        open_sweep(root, "x").read_plan()
    assert sweep_names(root) == ["y"]


@pytest.mark.parametrize("damage", ["", "{", '{"runs":3,"setups":[],"labels":[]}\n', "[]\n"])
def test_a_damaged_plan_is_named(root: RootDir, damage: str) -> None:
    sweep = open_sweep(root, "x")
    write(sweep, [make_spec()])
    (sweep.path / "plan.1.jsonl").write_text(damage)
    with pytest.raises(UserError, match=r"plan\.1\.jsonl is damaged"):
        sweep.read_plan()


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".x", "x" * 81, "a b"])
def test_names_that_are_no_folder_names_are_refused(root: RootDir, name: str) -> None:
    with pytest.raises(UserError, match="must be a folder name: 1 to 80 letters"):
        open_sweep(root, name)


def test_cancelling_can_be_taken_back(root: RootDir) -> None:
    sweep = open_sweep(root, "x")
    write(sweep, [make_spec()])
    for wanted in (True, True, False, False):
        sweep.set_cancelled(wanted)
        assert sweep.is_cancelled == wanted
