"""Tests of accum_sweeps.plan.config: a command line to Config, and the shipped grids."""

import re
from pathlib import Path

import pytest

from accum_sweeps.jobs.resources import Resources, read_resources
from accum_sweeps.jobs.slurm_settings import SlurmSettings
from accum_sweeps.plan.compose import find_groups, shipped_folder
from accum_sweeps.plan.config import read_config
from accum_sweeps.plan.errors import UserError
from accum_sweeps.plan.judging import Judging
from accum_sweeps.plan.labels import setup_labels
from accum_sweeps.plan.setting import names
from accum_sweeps.plan.spec import RUN_KEYS, SETUP_KEYS, RunSpec
from tests.plan.test_compose import write

SGD = {"seed": 8, "dtype": 2, "model.norm": 2, "accum": 4}


def runs(*overrides: str) -> list[RunSpec]:
    """All runs of a command line."""
    return list(read_config(overrides).grid.expand())


def test_plain_command_is_one_run_of_the_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = read_config([])
    assert (config.action, config.sweep, config.reuse, config.judging, config.grid_name) == (
        *("run", "default", "strict"),
        Judging(),
        None,
    )
    assert config.root == tmp_path / "sweeps"
    assert config.tracking == {"kind": "sqlite", "uri": f"sqlite:///{tmp_path}/sweeps/mlflow.db", "experiment": "accum_sweeps"}
    assert set(config.base) == {*SETUP_KEYS, *RUN_KEYS}
    assert [(run.accum, run.seed, run.control) for run in config.grid.expand()] == [(1, 0, "none")]
    assert config.notices == ()


@pytest.mark.parametrize("text", ["+grid=sgd", "grid=sgd"])
def test_grid_names_the_sweep_and_expands_in_order(text: str) -> None:
    config = read_config([text])
    assert (config.sweep, config.grid_name) == ("sgd", "sgd")
    made = list(config.grid.expand())
    assert len(made) == 128
    assert [(r.seed, r.setup.dtype, r.accum) for r in made[:5]] == [(0, "fp32", k) for k in (1, 2, 4, 8)] + [(0, "fp32", 1)]
    assert {name: len(values) for name, values in config.grid.axes.items()} == SGD
    assert {name: set(values.values()) for name, values in config.grid.counts().items()} == {
        "seed": {16},
        "dtype": {64},
        "model.norm": {64},
        "accum": {32},
    }


def test_axes_of_the_command_line_replace_and_add() -> None:
    config = read_config(["+grid=sgd", "axes={accum:[1,16],model.norm:[rmsnorm,none],seed:{range:3},steps:[20,30]}"])
    made = list(config.grid.expand())
    assert len(made) == 3 * 2 * 2 * 2 * 2
    assert {run.accum for run in made} == {1, 16}
    assert list(config.grid.axes) == ["seed", "dtype", "model.norm", "steps", "accum"]
    assert config.notices == (
        "axis accum replaced: 1,2,4,8 -> 1,16",
        "axis model.norm replaced: layernorm,rmsnorm -> rmsnorm,none",
        "axis seed replaced: 0,1,2,3,4,5,6,7 -> 0,1,2",
    )


def test_axes_need_no_grid() -> None:
    assert [(run.seed, run.accum) for run in runs("axes={seed:{range:2},accum:[1,2]}")] == [(0, 1), (0, 2), (1, 1), (1, 2)]


def test_plain_override_reduces_the_axis_and_says_so() -> None:
    config = read_config(["+grid=sgd", "seed=3", "dtype=bf16", "model.norm=none"])
    assert [(r.seed, r.setup.dtype, r.setup.model.norm, r.accum) for r in config.grid.expand()] == [  # type: ignore[union-attr]
        (3, "bf16", "none", k) for k in (1, 2, 4, 8)
    ]
    assert sorted(config.notices) == [
        f"axis {text}, as the command line sets it" for text in ("dtype reduced to bf16", "model.norm reduced to none", "seed reduced to 3")
    ]


def test_plain_override_of_a_conditional_axis_keeps_its_condition() -> None:
    config = read_config(["+grid=optimizers", "optimizer.eps=1e-4", "axes.seed=[0]"])
    made = list(config.grid.expand())
    assert [getattr(run.setup.optimizer, "eps", None) for run in made] == [*[1e-4] * 4, *[None] * 4]
    assert "axis optimizer.eps reduced to 0.0001, as the command line sets it" in config.notices
    with pytest.raises(UserError, match=r"^optimizer\.eps=0\.0001: there is no such key for optimizer=sgd"):
        runs("+grid=optimizers", "optimizer=sgd", "optimizer.eps=1e-4")


def test_plain_override_of_a_removed_axis_holds_in_every_run() -> None:
    made = runs("+grid=optimizers", "axes.seed=[0]", "~axes.optimizer.eps", "optimizer=adamw", "optimizer.eps=1e-3")
    assert [run.setup.optimizer.eps for run in made] == [1e-3] * 4  # type: ignore[union-attr]
    assert {run.seed for run in runs("+grid=smoke", "~axes", "seed=7")} == {7}


def test_plain_override_of_an_axis_holds_in_sub_grids_and_extra_cells_without_it(tmp_path: Path) -> None:
    text = """\
        # @package _global_
        grids:
          a: {axes: {accum: [1, 2], steps: [5, 6]}}
          b: {axes: {steps: [7]}}
        extra: [{seed: 4, steps: 8}]
    """
    folder = write(tmp_path, "grid/mine", re.sub("^ {8}", "", text, flags=re.M))
    made = list(read_config(["+grid=mine", "accum=4"], [folder]).grid.expand())
    assert [(run.seed, run.setup.steps, run.accum) for run in made] == [(0, 5, 4), (0, 6, 4), (0, 7, 4), (4, 8, 4)]


def test_key_inside_a_group_wins_in_every_cell() -> None:
    made = runs("axes={optimizer:[adamw,sgd],accum:[1,2]}", "optimizer.lr=0.25", "optimizer.warmup_steps=0")
    assert [(r.setup.optimizer.kind, r.setup.optimizer.lr, r.setup.optimizer.warmup_steps) for r in made] == [
        (kind, 0.25, 0) for kind in ("adamw", "adamw", "sgd", "sgd")
    ]


def test_axes_can_be_removed() -> None:
    assert len(runs("+grid=sgd", "~axes.seed", "~axes.dtype")) == 8
    assert len(runs("+grid=adamw", "~axes")) == 1
    assert len(runs("+grid=adamw", "~axes", "axes.accum=[1,2]")) == 2


def test_users_arguments_can_be_set_and_varied() -> None:
    made = runs("subject=python", "subject.target=m:C", "subject.args.width=32", "axes={subject.args.depth:[1,2]}")
    assert [run.setup.subject.args for run in made] == [{"width": 32, "depth": 1}, {"width": 32, "depth": 2}]  # type: ignore[union-attr]
    made = runs("subject=command", "subject.argv=[python,train.py,--spec,'{spec}']", "subject.args.x.y=1")
    assert made[0].setup.subject.argv == ("python", "train.py", "--spec", "{spec}")  # type: ignore[union-attr]
    assert made[0].setup.subject.args == {"x": {"y": 1}}  # type: ignore[union-attr]


def test_subject_can_be_an_axis() -> None:
    made = runs("axes={subject:[lm,python],subject.target:{values:['m:C'],when:{subject:python}},accum:[1,2]}")
    assert [(r.setup.subject.kind, r.setup.model.kind, r.setup.data.kind) for r in made] == [
        *[("lm", "decoder", "stdlib")] * 2,
        *[("python", "none", "none")] * 2,
    ]


@pytest.mark.parametrize(
    ("given", "expected"),
    [("root=a/../b", "b"), ("root=./x y", "x y"), ("root=2024", "2024"), ("root=/abs/x", "/abs/x")],
)
def test_root_is_absolute_and_relative_to_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert read_config([given]).root == tmp_path / expected


def test_root_comes_from_the_environment_unless_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCUM_SWEEPS_ROOT", str(tmp_path / "r"))
    assert read_config([]).root == tmp_path / "r"
    assert read_config(["root=/x"]).root == Path("/x")
    assert read_config(["root=~/x"]).root == Path("~/x").expanduser()
    monkeypatch.setenv("ACCUM_SWEEPS_ROOT", "")
    with pytest.raises(UserError, match=r"^root='': must be the folder of all runs"):
        read_config([])


def test_tracking_variable_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://h:5000")
    assert read_config([]).tracking["uri"] == "http://h:5000"
    assert read_config(["tracking=server"]).tracking["uri"] == "http://h:5000"
    assert read_config(["tracking=none"]).tracking["uri"] is None
    assert read_config(["tracking.uri=sqlite:////x.db"]).tracking["uri"] == "sqlite:////x.db"


def test_launcher_is_handed_on_as_it_is() -> None:
    assert read_config(["launcher.slots=[0,1]", "launcher.run_limit_min=5"]).launcher == {
        "kind": "local",
        "slots": [0, 1],
        "checkpoint_every": 100,
        "max_attempts": 2,
        "run_limit_min": 5,
        "heartbeat_s": 5,
        "expiry_s": 60,
        "runs_per_job": 0,
        "stop_grace_s": 30,
    }
    assert read_config(["launcher=inline"]).launcher["kind"] == "inline"


def test_every_launcher_setting_has_a_line_in_the_local_preset() -> None:
    launcher = read_config([]).launcher
    assert set(launcher) == set(names(Resources)) - {"slurm"}
    assert read_resources(launcher) == Resources(), "the preset and the defaults without one say the same"


def test_every_setting_of_a_cluster_has_a_line_in_the_slurm_preset() -> None:
    launcher = read_config(["launcher=slurm"]).launcher
    assert set(launcher) == set(names(Resources)) - {"slurm", "slots"} | set(names(SlurmSettings))
    assert read_resources(launcher).slurm == SlurmSettings(), "the preset and the defaults without one say the same"


def test_launcher_tracking_and_names_change_no_run_id() -> None:
    plain = [run.run_id for run in runs("+grid=smoke")]
    other = runs(
        "+grid=smoke", "launcher=inline", "tracking=none", "sweep=x", "root=/y", "reuse=any", "action=plan", "analysis.reference=4"
    )
    assert [run.run_id for run in other] == plain


def test_reference_is_an_arm_of_the_grid() -> None:
    assert read_config(["+grid=adamw", "analysis.reference=4"]).judging.reference == 4
    assert read_config(["sweep=old", "action=status", "analysis.reference=4"]).judging.reference == 4


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["action=rnu"], "action='rnu': must be one of cancel, list, plan, prune, report, run, status, sync (did you mean run?)"),
        (["reuse=never"], "reuse='never': must be one of any, strict, warn"),
        (["sweep=../x"], "sweep='../x': must be a folder name"),
        (["sweep=.hidden"], "sweep='.hidden': must be a folder name"),
        (["sweep=''"], "sweep='': must be a folder name"),
        ([f"sweep={'x' * 81}"], f"sweep='{'x' * 81}': must be a folder name: 1 to 80 letters"),
        (
            ["subject=python", "subject.target=m:C", "subject.args={n:7}", "axes.subject.args.n=[1,2]"],
            "subject.args={'n': 7}: is set again by the axis subject.args.n\n  Give the keys one by one",
        ),
        (["root=null"], "root=None: must be the folder of all runs"),
        (["analysis.reference=0"], "analysis.reference=0: must be an accumulation factor"),
        (["analysis.reference=x"], "analysis.reference='x': must be an accumulation factor"),
        (
            ["+grid=adamw", "analysis.reference=3"],
            "analysis.reference=3: must be one of the accumulation factors of the grid: [1, 2, ",
        ),
        (
            ["+analysis.alpha=0.1"],
            "analysis.alpha=0.1: there is no such key; must be one of compare, margin, margin_from, page, reference, response, sign_flip",
        ),
        (["analysis=1"], "analysis=1: must be a mapping"),
        (
            ["analysis.compare={left:{accum:4},right:{accum:2}}"],
            "Error merging override analysis.compare={left:{accum:4},right:{accum:2}}\n  It is a list of pairs: write 'analysis.compare=[",
        ),
        (["tracking.uri=./mlruns"], "tracking.uri='./mlruns': MLflow's file store is closed"),
        (["tracking=server"], "tracking.uri=None: a server needs its URI"),
        (["~tracking"], "tracking=None: is required"),
        (["+extras=1"], "extras=1: there is no such key; must be one of accum"),
        (
            ["+grid=nothing"],
            "grid='nothing': there is no such option; must be one of adamw, audit, dtypes, faults, gradcache, ladder, norms,",
        ),
        (["design.control=ulp"], "design.control='ulp': must be one of auto, none, order, permute, regroup, ulp_grads, ulp_weights"),
        (["design.reruns=-1"], "design.reruns=-1: must be a whole number, at least 0"),
        (["design.ladder=auto"], "design.ladder='auto': must be true or false"),
        (["design.inits=0"], "design.inits=0: must be a whole number, at least 1"),
        (["+design.rerun=1"], "design.rerun=1: there is no such key; must be one of control, inits, ladder, reruns (did you mean reruns?)"),
        (["analysis.margin=0"], "analysis.margin=0: must be above 0 and finite"),
        (["analysis.margin={eval_loss_final:inf}"], "analysis.margin.eval_loss_final=inf: must be above 0 and finite"),
        (["analysis.margin=small"], "analysis.margin='small': must be above 0 and finite"),
        (["analysis.margin_from=../x"], "sweep='../x': must be a folder name"),
        (["analysis.sign_flip=1"], "analysis.sign_flip=1: must be true or false"),
        (["analysis.response=3"], "analysis.response=3: must be the name of a column"),
        (["+grid=adamw", "axes.seed=[]"], "axes.seed=[]: an axis needs at least one value"),
        (["+grid=adamw", "exclude=[{seeds:1}]"], "exclude.seeds=[1]: there is no such axis here"),
        (["axes.launcher.slots=[1,2]"], "axes.launcher.slots='1,2': there is no such setting of a run"),
        (["axes.tracking=[none]"], "axes.tracking='none': there is no such setting of a run"),
    ],
)
def test_bad_configuration_is_refused_at_once(overrides: list[str], words: str) -> None:
    with pytest.raises(UserError) as caught:
        read_config(overrides)
    assert str(caught.value).startswith(words)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["steps=abc"], "steps='abc': must be a whole number: optimizer steps of a run"),
        (
            ["model.norm=rms"],
            "model.norm='rms': must be one of batchnorm, groupnorm, layernorm,",
        ),
        (["+model.depth=3"], "model.depth=3: there is no such key for model=tiny; must be one of attention_bias, dropout"),
        (["subject.args.width=3"], "subject.args={'width': 3}: there is no such key for subject=lm"),
        (["subject=python"], "subject.target=None: is required: the class, as module:Class"),
        (["subject=command"], "subject.argv=None: is required: program and arguments"),
        (["data=text"], "data.path=None: is required: file or folder"),
        (
            ["+grid=adamw", "global_batch=12"],
            "accum=8: does not divide the batch: global_batch=12 over ranks=1; possible: ",
        ),
        (["~optimizer"], "optimizer=None: is required"),
        (["optimizer.lr=inf"], "optimizer.lr=inf: must be a finite number: learning rate"),
        (["axes={optimizer.lr:[nan]}"], "optimizer.lr=nan: must be a finite number"),
        (["optimizer.betas=[0.9,1.0]"], "optimizer.betas=1.0: must be at least 0 and below 1"),
        (["subject=python", "subject.target=m:C", "subject.args.a=[1,inf]"], "subject.args.a[1]=inf: must be a finite number"),
    ],
)
def test_bad_values_of_runs_are_refused_when_expanded(overrides: list[str], words: str) -> None:
    config = read_config(overrides)
    with pytest.raises(UserError) as caught:
        list(config.grid.expand())
    assert str(caught.value).startswith(words)


def test_misspelt_key_of_a_preset_file_is_reported(tmp_path: Path) -> None:
    folder = write(tmp_path, "optimizer/mine", "defaults: [sgd, _self_]\nmomentun: 0.5\n")
    with pytest.raises(UserError, match=r"^optimizer.momentun=0.5: there is no such key for optimizer=mine; .*did you mean momentum\?"):
        list(read_config(["optimizer=mine"], [folder]).grid.expand())


def test_misspelt_key_of_a_grid_file_is_reported(tmp_path: Path) -> None:
    folder = write(tmp_path, "grid/mine", "# @package _global_\nexlude: [{seed: 1}]\n")
    with pytest.raises(UserError, match=r"^exlude=.*: there is no such key; .*did you mean exclude\?"):
        read_config(["+grid=mine"], [folder])


def test_users_grid_with_every_part_of_the_language(tmp_path: Path) -> None:
    text = """\
        # @package _global_
        axes: {seed: {range: 2}, accum: [1, 2]}
        grids:
          adam:
            axes: {optimizer: adamw, optimizer.eps: [1.0e-8, 1.0e-4], steps: [20, 30]}
            zip: [[optimizer.eps, steps]]
            exclude: [{seed: 1, accum: 2}]
          sgd:
            axes: {optimizer: sgd, dtype: [fp32, bf16], accumulator: {values: [param, fp32], when: {dtype: bf16}}}
            only: [{seed: 0}]
        extra: [{accum: 16, seed: 5}]
    """
    config = read_config(["+grid=mine"], [write(tmp_path, "grid/mine", re.sub("^ {8}", "", text, flags=re.M))])
    made = list(config.grid.expand())
    assert config.sweep == "mine"
    assert len(made) == 6 + 6 + 1
    assert [(r.seed, r.setup.steps, r.accum) for r in made[:6]] == [(0, 20, 1), (0, 20, 2), (0, 30, 1), (0, 30, 2), (1, 20, 1), (1, 30, 1)]
    assert [(r.setup.dtype, r.setup.accumulator) for r in made[6:12:2]] == [("fp32", "param"), ("bf16", "param"), ("bf16", "fp32")]
    assert (made[12].seed, made[12].accum, made[12].setup.optimizer.kind) == (5, 16, "adamw")


def test_configuration_comes_back_as_plain_values() -> None:
    plain = read_config(["+grid=smoke", "axes.accum=[1,2]", "subject.args.x=1", "subject=python", "root=/r"]).to_dict()
    assert plain["axes"] == {"seed": [0, 1, 2], "accum": [1, 2]}
    assert (plain["root"], plain["sweep"], plain["subject"]["args"]) == ("/r", "smoke", {"x": 1})


# With their designs: 8 seeds x (4 arms + 3 controls), 2 x 4 reruns and a ladder for a setup; 8 x (3 + 2), 2 x 3 and a ladder where
# there are three arms. A ladder is a setup of its own.
SHIPPED = {"adamw": (130, 4), "sgd": (260, 8), "optimizers": (195, 6), "norms": (282, 12), "dtypes": (325, 10), "smoke": (6, 1)}
SHIPPED |= {"open_lm": (103, 26), "gradcache": (24, 15), "audit": (1, 1), "ladder": (96, 48), "faults": (77, 77)}


@pytest.mark.parametrize("name", find_groups()["grid"])
def test_shipped_grid_expands_and_says_its_question(name: str) -> None:
    text = (shipped_folder() / "grid" / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    assert text[0] == "# @package _global_"
    assert text[1].startswith("# ")
    assert "?" in text[1]
    config = read_config([f"+grid={name}"])
    made = list(config.design.complete(config.grid.expand()))
    setups = list({run.setup.setup_id: run.setup for run in made}.values())
    assert (len(made), len(setups)) == SHIPPED[name]
    assert len(set(setup_labels(setups))) == len(setups)


# What a preset of model or data needs beside it.
PARTNERS = {
    "text": ["data.path=a.txt"],
    "tokens": ["data.path=a.bin"],
    "digits": ["subject=clip"],
    "image_text": ["subject=clip", "data.path=images", "data.captions=captions.tsv"],
    "clip_tiny": ["subject=clip"],
    "clip_vit_b32": ["subject=clip"],
    "none": ["subject=python", "subject.target=m:C"],
}


@pytest.mark.parametrize("group", ["model", "optimizer", "dtype", "data", "launcher", "tracking"])
def test_shipped_presets_are_valid_and_explained(group: str) -> None:
    for option in find_groups()[group]:
        if group in ("model", "data"):
            with_it = PARTNERS.get(option, [])
        else:
            with_it = {"server": ["tracking.uri=http://h"], "tf32": ["device=cuda"]}.get(option, [])
        assert len(runs(f"{group}={option}", *with_it)) == 1
        for line in (shipped_folder() / group / f"{option}.yaml").read_text(encoding="utf-8").splitlines():
            key = line.partition(":")[0]
            assert not line or line.startswith("#") or key in ("kind", "dtype", "uri") or "# " in line, f"{option}: {key} is not explained"
