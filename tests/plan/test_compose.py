"""Tests of accum_sweeps.plan.compose: the shipped files, users' own folders, and Hydra's errors in clear words."""

from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from accum_sweeps.plan.compose import DEFAULT_GROUPS, Composer, find_groups, shipped_folder
from accum_sweeps.plan.errors import UserError
from accum_sweeps.plan.overrides import CommandLine, parse
from accum_sweeps.plan.parts import KINDS


def write(folder: Path, name: str, text: str) -> Path:
    """Write a configuration file of the user's own; the folder."""
    file = folder / f"{name}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return folder


def composer(*overrides: str, folder: Path | None = None) -> Composer:
    """The composer of a command line."""
    folders = [folder] if folder else []
    return Composer(parse(overrides, find_groups(folders)), folders)


def test_groups_are_the_folders_of_the_package_and_of_the_user(tmp_path: Path) -> None:
    write(tmp_path, "optimizer/mine", "kind: sgd")
    write(tmp_path, "study/a", "x: 1")
    groups = find_groups([tmp_path])
    assert set(groups["optimizer"]) >= {"adamw", "sgd", "mine"}
    assert groups["study"] == ("a",)
    assert "mine" not in find_groups()["optimizer"]


def test_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--config-dir .*nowhere: there is no such folder"):
        find_groups([tmp_path / "nowhere"])


def test_name_taken_by_the_package_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"grid/adamw.yaml: the name adamw is taken by .*conf/grid/adamw.yaml"):
        find_groups([write(tmp_path, "grid/adamw", "")])


def test_groups_with_a_default_are_those_of_the_defaults_list() -> None:
    defaults = yaml.safe_load((shipped_folder() / "config.yaml").read_text(encoding="utf-8"))["defaults"]
    assert {group for item in defaults if isinstance(item, dict) for group in item} == set(DEFAULT_GROUPS)


def test_parts_carry_the_name_of_their_preset() -> None:
    base = composer("optimizer=sgd").base.values
    assert {group: base[group]["name"] for group in KINDS} == {"subject": "lm", "model": "tiny", "optimizer": "sgd", "data": "stdlib"}


def test_choice_of_an_axis_replaces_the_option_and_overrides_still_win() -> None:
    make = composer("optimizer.lr=0.5", "optimizer=adamw")
    assert (make({})["optimizer"]["kind"], make({})["optimizer"]["lr"]) == ("adamw", 0.5)
    sgd = make({"optimizer": "sgd", "dtype": "bf16"})
    assert (sgd["optimizer"]["kind"], sgd["optimizer"]["lr"], sgd["dtype"]) == ("sgd", 0.5, "bf16")
    assert make({"optimizer": "sgd", "dtype": "bf16"}) is sgd


@pytest.mark.parametrize("subject", ["python", "command"])
def test_users_subjects_have_no_model_and_no_data_unless_chosen(subject: str) -> None:
    values = composer(f"subject={subject}").base.values
    assert (values["model"], values["data"]) == ({"kind": "none", "name": "none"}, {"kind": "none", "name": "none"})
    chosen = composer(f"subject={subject}", "model=small").base.values
    assert (chosen["model"]["name"], chosen["data"]["name"]) == ("small", "none")
    by_axis = composer()({"subject": subject})
    assert (by_axis["model"]["name"], by_axis["data"]["name"]) == ("none", "none")


def test_users_own_subject_preset_extends_a_shipped_one(tmp_path: Path) -> None:
    folder = write(tmp_path / "my 'conf'", "subject/mine", "defaults: [python, _self_]\ntarget: m:C\nargs: {width: 3}\n")
    values = composer("subject=mine", "subject.args.depth=2", folder=folder).base.values
    assert values["subject"] == {"name": "mine", "kind": "python", "target": "m:C", "args": {"width": 3, "depth": 2}, "files": []}
    assert values["model"]["kind"] == "none"


def test_keys_still_to_be_given_are_left_out() -> None:
    assert "target" not in composer("subject=python").base.values["subject"]


def test_override_that_fits_only_the_options_of_an_axis_is_accepted() -> None:
    make = composer("axes.optimizer=[sgd]", "optimizer.momentum=0.5")
    assert make({"optimizer": "sgd"})["optimizer"]["momentum"] == 0.5


def test_override_that_fits_only_some_options_of_an_axis_is_explained() -> None:
    make = composer("axes.optimizer=[sgd,adamw]", "optimizer.momentum=0.5")
    with pytest.raises(UserError) as caught:
        make({"optimizer": "adamw"})
    assert str(caught.value) == (
        "optimizer.momentum=0.5: there is no such key for optimizer=adamw; must be one of betas, eps, kind, lr, max_norm, schedule, "
        "warmup_steps, weight_decay\n"
        "  Where only some options have it: 'axes={optimizer.momentum:{values:[0.5],when:{optimizer:OPTION}}}'"
    )


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            ["optimizer.momentun=1", "optimizer=sgd"],
            "optimizer.momentun=1: there is no such key for optimizer=sgd; must be one of k",
        ),
        (["stepz=1"], "stepz=1: there is no such key; must be one of accum, "),
        (["launcher.slot=1"], "launcher.slot=1: there is no such key for launcher=local; must be one of checkpoint_every"),
        (["steps.x=1"], "steps.x=1: there is no such key"),
        (["design={controls:auto}"], "design.controls='auto': there is no such key; must be one of control, inits, ladder, reruns"),
        (["analysis={reference:1,respons:x}"], "analysis.respons='x': there is no such key; must be one of "),
        (["steps=${nothing}"], "Interpolation key 'nothing' not found\n  full_key: steps"),
        (["+seed=3"], "Could not append to config. An item is already at 'seed'.\n  Either remove + prefix: 'seed=3'"),
        (["~seeds"], "Could not delete from config. 'seeds' does not exist."),
    ],
)
def test_overrides_that_hydra_refuses_are_explained(overrides: list[str], words: str) -> None:
    with pytest.raises(UserError) as caught:
        _ = composer(*overrides).base
    assert str(caught.value).startswith(words)


def test_bare_key_of_a_group_is_completed() -> None:
    with pytest.raises(UserError, match=r"^lr=0.1: there is no such key; (.|\n)*Did you mean optimizer.lr\?$"):
        _ = composer("lr=0.1").base


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("axes:\n  seed: [1]\n  accum: [1]\n  seed: [2]\n", r"grid/mine.yaml, line 5: found duplicate key seed"),
        ("axes: {seed: [1]}\nsteps: 5\naxes: {seed: [2]}\n", r"grid/mine.yaml, line 4: found duplicate key axes"),
        ("axes: {seed: [1\n", r"grid/mine.yaml, line \d: expected ',' or '\]'"),
        ("defaults: [adamm]\n", r"In 'grid/mine': Could not load 'grid/adamm'"),
        (
            "defaults: [{override /optimizer: adamm}]\n",
            r"Could not find 'optimizer/adamm'\n  Available options in 'optimizer':\n  adam\n  adamw\n  muon\n  sgd$",
        ),
        (
            "defaults: [sgd, _self_]\naxes: {seed: [1]}\n",
            r"A list cannot replace an inherited range: write \{range: null, values: ",
        ),
        ("- 1\n", r"mine"),
    ],
)
def test_broken_grid_files_are_reported_by_name(tmp_path: Path, text: str, words: str) -> None:
    folder = write(tmp_path, "grid/mine", "# @package _global_\n" + text)
    with pytest.raises(UserError, match=words):
        _ = composer("grid=mine", folder=folder).base


def test_grid_can_extend_another(tmp_path: Path) -> None:
    text = "# @package _global_\ndefaults: [sgd, _self_]\naxes: {seed: {range: null, values: [3, 5]}, accum: [1, 2], steps: [10]}\n"
    values = composer("grid=mine", folder=write(tmp_path, "grid/mine", text)).base.values
    assert list(values["axes"]) == ["seed", "dtype", "model.norm", "accum", "steps"]
    assert (values["axes"]["seed"], values["axes"]["accum"]) == ({"range": None, "values": [3, 5]}, [1, 2])


def test_composing_leaves_no_global_state_behind() -> None:
    from hydra.core.global_hydra import GlobalHydra

    _ = Composer(CommandLine(choices={}, values={})).base
    assert not GlobalHydra.instance().is_initialized()
