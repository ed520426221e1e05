"""A sweep is judged as its plan says; a margin tells when it was fixed."""

from pathlib import Path
from typing import Any

import pytest

from accum_sweeps.analysis.judged import Judged
from accum_sweeps.analysis.load import load
from accum_sweeps.judging import judge_sweep
from accum_sweeps.plan.errors import UserError
from accum_sweeps.record.store import open_root
from accum_sweeps.record.sweep import SweepDir, open_sweep
from tests.analysis.roots import finish
from tests.specs import make_spec

SPECS = [make_spec(seed=seed, accum=k) for seed in range(6) for k in (1, 4)]


def planned(root: Path, name: str = "s", seeds: int = 0, **judging: Any) -> SweepDir:
    """A revision of a sweep of six seeds from ``seeds`` on, with this judging, all runs finished."""
    sweep = open_sweep(open_root(root, create=True), name)
    specs = [make_spec(seed=seeds + seed, accum=k) for seed in range(6) for k in (1, 4)]
    sweep.write_plan({"command": "test", "judging": judging}, specs, {spec.setup.setup_id: "lm" for spec in specs})
    for spec in specs:
        if not sweep.root.environments(spec.run_id):
            finish(sweep.root, spec, 2.0 + 0.1 * (7 * spec.seed % 6) + 1e-4 * spec.accum * (3 * spec.seed % 5 - 2))
    return sweep


def judged(sweep: SweepDir, **asked: Any) -> Judged:
    return judge_sweep(sweep, load(sweep.root.path, sweep=sweep.name), asked)


def source(sweep: SweepDir, **asked: Any) -> str:
    [verdict] = judged(sweep, **asked).opening
    return verdict.margin.source


def test_what_the_plan_says_holds_and_what_the_command_asks_for_comes_before_it(tmp_path: Path) -> None:
    sweep = planned(tmp_path, reference=4, margin={"eval_loss_final": 0.3})
    [verdict] = judged(sweep).opening
    assert (verdict.reference, verdict.margin.value) == (4, 0.3)
    [other] = judged(sweep, reference=1).opening
    assert (other.reference, other.margin.value) == (1, 0.3)


def test_a_margin_says_whether_it_was_fixed_in_advance(tmp_path: Path) -> None:
    margin = {"eval_loss_final": 0.3}
    first = planned(tmp_path / "a", margin=margin)
    assert source(first).startswith("fixed in the plan's first revision (judging ")
    assert source(first, margin={"eval_loss_final": 0.5}) == "given after the runs, so not fixed in advance"
    assert source(first, margin=margin) == source(first)
    planned(tmp_path / "b")
    later = planned(tmp_path / "b", margin=margin)
    assert later.revisions() == [1, 2]
    assert source(later).startswith("fixed in a later revision of the plan, so not in advance of all runs (judging ")
    assert source(planned(tmp_path / "c")) == "0.5 x the lower 95 % limit of the SD of the reference arm (6 seeds)"


def test_the_hash_changes_with_what_was_fixed_and_with_nothing_else(tmp_path: Path) -> None:
    sources = [source(planned(tmp_path / str(n), margin={"eval_loss_final": m})) for n, m in enumerate((0.3, 0.3, 0.4))]
    assert sources[0] == sources[1] != sources[2]


def test_the_margin_of_an_earlier_sweep_of_other_seeds(tmp_path: Path) -> None:
    planned(tmp_path, "before", seeds=50)
    assert "an earlier sweep's reference arm (6 seeds)" in source(planned(tmp_path, "s", margin_from="before"))
    planned(tmp_path, "same", seeds=3)
    with pytest.raises(UserError, match="seeds 3, 4, 5 are in both"):
        judged(planned(tmp_path, "s", margin_from="same"))
    with pytest.raises(UserError, match="nowhere"):
        judged(planned(tmp_path, "s", margin_from="nowhere"))
