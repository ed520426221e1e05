"""A class with the method train: what it must look like, and where it is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch

from accum_sweeps.plan.errors import ConfigError, UserError
from accum_sweeps.plan.parts import PythonHook
from accum_sweeps.subjects.hook_check import check_class
from accum_sweeps.subjects.identify import identify
from accum_sweeps.subjects.python_hook import HookTask, session_of
from tests.specs import make_spec

NONE = {"kind": "none", "name": "none"}
SUBJECT = {"kind": "python", "name": "python", "target": "trainers:Setup"}
TRAIN = "def train(self, model, optimizer, scheduler, micro_batches, accum): ..."
SOURCE = f"""class Setup:
    def build(self, config, seeds): ...
    def batch(self, step, seed): ...
    def loss(self, model, samples): ...
    {TRAIN}
"""


class Trained:
    def build(self, config: Any, seeds: Any) -> Any:
        return torch.nn.Linear(2, 1)

    def batch(self, step: int, seed: int) -> Any:
        return torch.ones(16, 2)

    def loss(self, model: Any, samples: Any) -> Any:
        return model(samples).sum(), len(samples)

    def train(self, model: Any, optimizer: Any, scheduler: Any, micro_batches: Any, accum: int) -> Any:
        return None


def spec_of(**changes: Any) -> Any:
    return make_spec(subject=SUBJECT, model=NONE, data=NONE, **changes)


def task_of(**attributes: Any) -> HookTask:
    return HookTask(type("Trained", (Trained,), attributes)(), spec_of())


def test_a_class_is_for_audits_or_for_sweeps() -> None:
    check_class(Trained)
    with pytest.raises(UserError, match="class Both has both train and step"):
        check_class(type("Both", (Trained,), {"step": lambda self, model, optimizer, micro_batches: (0.0, 1)}))


def test_train_must_take_what_it_is_given() -> None:
    with pytest.raises(UserError, match=r"method train\(self, model\) of class Short cannot be called as needed"):
        check_class(type("Short", (Trained,), {"train": lambda self, model: None}))


@pytest.mark.parametrize(
    ("attributes", "name", "words"),
    [
        ({"lr": 0}, "own_rate", "the attribute lr is 0"),
        ({"lr": True}, "own_rate", "the attribute lr is True"),
        ({"lr": "0.1"}, "own_rate", "the attribute lr is '0.1'"),
        ({"lr": float("nan")}, "own_rate", "the attribute lr is nan"),
        ({"last_window": "none"}, "has_short_window", "the attribute last_window is 'none'"),
    ],
)
def test_what_the_attributes_may_be_is_told(attributes: dict[str, Any], name: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        getattr(task_of(**attributes), name)


def test_the_attributes_have_defaults() -> None:
    assert (task_of().own_rate, task_of().has_short_window) == (None, True)
    assert (task_of(lr=0.5).own_rate, task_of(last_window="full").has_short_window) == (0.5, False)


@pytest.mark.parametrize(("given", "words"), [(0.5, "train returned float"), ("text", "train returned str")])
def test_losses_are_a_list(given: Any, words: str) -> None:
    run = session_of(Trained(), spec_of())
    with pytest.raises(UserError, match=words):
        task_of(train=lambda *_: given).train(run.training, None, [], 4)


def test_a_sweep_makes_no_step_by_train() -> None:
    with pytest.raises(UserError, match="the class has the method train, which is for audits"):
        next(session_of(Trained(), spec_of()).steps())


def refusal(project: Path, **changes: Any) -> str:
    (project / "trainers.py").write_text(SOURCE)
    with pytest.raises(ConfigError) as caught:
        identify(PythonHook(name="", target="trainers:Setup"), project, spec_of(**changes).setup)
    return str(caught.value)


def test_a_sweep_is_refused_as_it_is_planned_and_an_audit_is_not(tmp_path: Path) -> None:
    assert "has the method train, which is for audits; a sweep makes step after step and needs step" in refusal(tmp_path)
    found = identify(PythonHook(name="", target="trainers:Setup"), tmp_path, spec_of(measure="ladder").setup)
    assert found.code_hash


@pytest.mark.parametrize("changes", [{"ranks": 2}, {"dtype": "amp_fp16"}, {"accumulator": "fp32"}, {"ema": 0.9}])
def test_settings_that_a_trainer_would_miss_are_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    [(key, value)] = changes.items()
    assert f"has the method train, on which {key}={value} would have no effect" in refusal(tmp_path, measure="ladder", **changes)
