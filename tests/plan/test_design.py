"""The runs that a design adds: which kind of control, for which runs, and nothing twice."""

import dataclasses
from collections import Counter
from collections.abc import Iterable

import pytest

from accum_sweeps.plan.config import read_config
from accum_sweeps.plan.design import Design, additions, automatic, own_setups
from accum_sweeps.plan.errors import ConfigError
from accum_sweeps.plan.spec import RunSpec

SMALL = ("probe_steps=[]", "global_batch=8", "design.ladder=false")
AXES = "axes={seed:{range:3},accum:[1,2,4]}"


def planned(*overrides: str) -> list[RunSpec]:
    keys = [text.partition("=")[0] for text in SMALL]
    small = [
        text
        for key, text in zip(keys, SMALL, strict=True)
        if not any(f"{key}:" in each or each.startswith(f"{key}=") for each in overrides)
    ]
    config = read_config([*small, *overrides])
    return list(config.design.complete(config.grid.expand(), config.judging.reference))


def kinds(runs: Iterable[RunSpec]) -> set[str]:
    return {run.control for run in runs} - {"none"}


def test_each_accumulated_run_has_one_regrouped_twin_right_after_it() -> None:
    runs = planned(AXES, "design.control=auto")
    assert [(r.seed, r.accum, r.control) for r in runs[:5]] == [
        *((0, 1, "none"), (0, 2, "none"), (0, 2, "regroup"), (0, 4, "none"), (0, 4, "regroup")),
    ]
    assert Counter((r.seed, r.accum) for r in runs if r.control == "regroup") == {(s, k): 1 for s in range(3) for k in (2, 4)}
    assert len({run.run_id for run in runs}) == len(runs) == 15
    assert additions(runs) == {"regroup controls": 6}


def test_without_a_design_nothing_is_added() -> None:
    assert [run.run_id for run in planned(AXES)] == [run.run_id for run in read_config([*SMALL, AXES]).grid.expand()]


def test_the_reference_arm_has_no_control_whichever_it_is() -> None:
    runs = planned(AXES, "design.control=auto", "analysis.reference=2")
    assert {run.accum for run in runs if run.control == "regroup"} == {1, 4}


@pytest.mark.parametrize(
    ("overrides", "kind"),
    [
        (["axes={seed:{range:3},accum:[1,4]}"], "regroup"),
        (["axes={seed:{range:3},accum:[1,8]}"], "ulp_weights"),  # one row in a micro-batch
        (["axes={seed:{range:3},accum:[1,4]}", "ranks=2"], "ulp_weights"),  # two ranks, so one row again
        (["axes={seed:{range:3},accum:[1,2]}", "ranks=2"], "regroup"),
        (["axes={seed:{range:3},accum:[1,4]}", "model.norm=batchnorm"], "ulp_weights"),
        (["axes={seed:{range:3},accum:[1,4]}", "subject.mean=micro_batch"], "ulp_weights"),
        (["axes={seed:{range:3},accum:[1,4]}", "model.dropout=0.1"], "regroup"),
        (["axes={seed:{range:3},accum:[1,4]}", "model.dropout=0.1", "model.dropout_masks=stream"], "ulp_weights"),
        (["axes={seed:{range:3},accum:[1,4]}", "subject=clip", "model=clip_tiny", "data=digits"], "regroup"),
        (
            ["axes={seed:{range:3},accum:[1,4]}", "subject=clip", "model=clip_tiny", "data=digits", "subject.accumulation=plain"],
            "ulp_weights",
        ),
        (["axes={seed:{range:3},accum:[1,4]}", "subject=python", "subject.target=m:C"], "ulp_weights"),
    ],
)
def test_the_automatic_kind_changes_nothing_but_rounding(overrides: list[str], kind: str) -> None:
    assert kinds(planned(*overrides, "design.control=auto")) == {kind}


def test_a_program_of_the_users_own_gets_no_control_it_does_not_ask_for() -> None:
    command = ("axes={seed:{range:3},accum:[1,4]}", "subject=command", "subject.argv=[echo]")
    assert not kinds(planned(*command, "design.control=auto"))
    assert kinds(planned(*command, "design.control=ulp_weights")) == {"ulp_weights"}


def test_one_arm_with_single_rows_decides_for_the_whole_setup_and_for_no_other() -> None:
    runs = planned("axes={seed:{range:3},global_batch:[8,16],accum:[1,2,8]}", "design.control=auto")
    assert kinds(r for r in runs if r.setup.global_batch == 8) == {"ulp_weights"}
    assert kinds(r for r in runs if r.setup.global_batch == 16) == {"regroup"}


def test_several_kinds_are_runs_of_their_own_and_a_wrong_one_is_refused() -> None:
    runs = planned(AXES, "design.control=[auto,ulp_weights]")
    assert Counter(r.control for r in runs) == {"none": 9, "regroup": 6, "ulp_weights": 6}
    assert kinds(planned(AXES, "design.control=[auto,regroup]")) == {"regroup"}
    with pytest.raises(ConfigError, match=r"control='regroup': changes more than rounding here: batchnorm"):
        planned(AXES, "model.norm=batchnorm", "design.control=regroup")


def test_the_first_seeds_of_each_setup_are_run_again() -> None:
    runs = planned(AXES.replace("range:3", "range:[5,9]"), "design.reruns=2")
    again = [(r.seed, r.accum) for r in runs if r.replicate]
    assert again == [(s, k) for s in (5, 6) for k in (1, 2, 4)] and len(runs) == 12 + 6
    assert additions(runs) == {"reruns": 6}


def test_controls_and_reruns_that_the_axes_name_themselves_are_not_doubled() -> None:
    runs = planned("axes={seed:{range:2},control:[none,regroup],accum:[1,2],replicate:[0,1]}", "design.control=regroup", "design.reruns=1")
    assert len({run.run_id for run in runs}) == len(runs) == 16


def test_one_step_comparisons_get_neither_controls_nor_reruns() -> None:
    assert len(planned(AXES, "measure=one_step", "steps=1", "design.control=auto", "design.reruns=2")) == 9


@pytest.mark.parametrize(
    ("overrides", "accum"),
    [
        ([AXES], 4),
        (["axes={seed:[5,6],accum:[1,2,4,8]}"], 4),  # k=8 leaves single samples
        (["axes={seed:[5,6],accum:[1,2,8]}"], 2),
        (["axes={seed:[5,6],accum:[1,8]}"], 8),  # single samples or none
        (["axes={seed:[5,6],accum:[2,4]}", "ranks=2"], 2),
        (["axes={seed:[5,6],accum:[1,8,16]}", "global_batch=64"], 8),  # both need more passes than a ladder would take by itself
    ],
)
def test_a_ladder_comes_before_the_first_run_of_its_setup(overrides: list[str], accum: int) -> None:
    runs = planned(*overrides, "design.ladder=true", "design.control=auto", "design.reruns=1", "probe_tensors=true")
    ladder, first, *rest = runs
    assert (ladder.setup.measure, ladder.accum, ladder.seed, ladder.control, ladder.replicate) == ("ladder", accum, first.seed, "none", 0)
    assert dataclasses.replace(ladder.setup, measure="training", probe_tensors=True) == first.setup
    assert {run.setup.measure for run in rest} == {"training"}
    assert additions(runs)["ladders"] == 1 and own_setups([ladder.setup, first.setup]) == [first.setup]


@pytest.mark.parametrize(
    "overrides",
    [
        ["axes={seed:{range:3}}"],  # nothing is compared
        ["axes={seed:{range:3}}", "accum=4"],
        [AXES, "subject=command", "subject.argv=[echo]"],
        [AXES, "measure=one_step", "steps=1"],
    ],
)
def test_no_ladder_where_nothing_is_compared_or_nothing_can_be_seen(overrides: list[str]) -> None:
    assert "ladder" not in {run.setup.measure for run in planned(*overrides, "design.ladder=true")}


def test_every_setup_has_its_own_ladder_and_a_ladder_of_the_grid_is_not_doubled() -> None:
    runs = planned("axes={seed:[0,1],dtype:[fp32,bf16],measure:[training,ladder],accum:[1,4]}", "design.ladder=true")
    climbed = [run for run in runs if run.setup.measure == "ladder"]
    assert len({run.run_id for run in runs}) == len(runs) and len(climbed) == 2 * 2 * 2


def test_nested_initial_weights_share_the_order_of_the_data_alone() -> None:
    runs = planned("axes={seed:{range:2},accum:[1,2]}", "design.inits=3", "design.control=auto")
    plain = [r for r in runs if r.control == "none" and r.accum == 1]
    assert [(r.seed, r.seed_init, r.seed_dropout, r.seed_data) for r in plain] == [(n, n, n, n // 3) for n in range(6)]
    assert sum(r.control == "regroup" for r in runs) == 6
    with pytest.raises(ConfigError, match=r"design.inits=2: the grid sets the seed streams apart itself"):
        planned("axes={seed:{range:2},seed_init:[7,8],accum:[1,2]}", "design.inits=2")


def test_automatic_and_plain_values_agree_with_the_configuration() -> None:
    design = Design(controls=("auto",), reruns=2)
    assert design.to_dict() == {"control": ["auto"], "reruns": 2, "inits": 1, "ladder": False}
    [run] = planned()
    assert automatic(run.setup, [1, 4]) == "regroup"
