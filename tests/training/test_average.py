"""The moving average of the weights: by hand, over a training, from a checkpoint, with BatchNorm, and where steps are left out."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from accum_sweeps.plan.spec import RunSpec
from accum_sweeps.training.average import moving_average
from accum_sweeps.training.loop import TrainingSession
from tests.specs import make_spec
from tests.training.toy import ToyTask

SGD = {"kind": "sgd", "name": "sgd", "lr": 0.25, "momentum": 0.0, "nesterov": False, "weight_decay": 0.0, "max_norm": None}
SGD |= {"schedule": "constant", "warmup_steps": 0}


def session(spec: RunSpec, **toy: Any) -> TrainingSession:
    return TrainingSession(spec, ToyTask(spec, **toy))


def test_the_average_begins_with_the_first_update_and_decays() -> None:
    model = nn.Linear(1, 1, bias=False)
    average = moving_average(model, 0.75)
    assert average is not None
    seen = []
    for weight in (8.0, 16.0, 0.0):
        with torch.no_grad():
            model.weight.fill_(weight)
        average.update_parameters(model)
        seen += [float(p.detach()) for p in average.module.parameters()]
    assert seen == [8.0, 0.75 * 8 + 0.25 * 16, 0.75 * 10 + 0.25 * 0]


def test_there_is_none_without_a_decay() -> None:
    assert moving_average(nn.Linear(1, 1), None) is None
    assert "eval_loss_ema" not in list(session(make_spec(steps=1)).steps())[-1].values


def test_it_follows_the_training_and_is_evaluated_beside_it() -> None:
    # The evaluation of the toy is linear in the weights: so is its average.
    spec = make_spec(dtype="fp64", ema=0.5, steps=4, eval_every=1, optimizer=SGD | {"lr": 0.01})
    values = [record.values for record in session(spec).steps()]
    expected = values[0]["eval_loss"]
    for number, step in enumerate(values):
        expected = 0.5 * expected + 0.5 * step["eval_loss"] if number else expected
        assert step["eval_loss_ema"] == pytest.approx(expected, rel=1e-12)
    assert abs(values[-1]["eval_loss_ema"] - values[-1]["eval_loss"]) > 1e-3


def test_the_training_itself_does_not_see_it() -> None:
    hashes = [[record.weights_hash for record in session(make_spec(ema=ema)).steps()] for ema in (None, 0.9)]
    assert hashes[0] == hashes[1]


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "amp_fp16"])
def test_a_resumed_average_is_bitwise_equal(tmp_path: Path, dtype: str) -> None:
    spec = make_spec(dtype=dtype, ema=0.9, steps=6, eval_every=1)
    whole = [record.values for record in session(spec).steps()]
    first = session(spec)
    for _ in zip(range(3), first.steps(), strict=False):
        pass
    first.save(tmp_path / "checkpoint.pt")
    second = session(spec)
    assert second.load(tmp_path / "checkpoint.pt") == 3
    assert [record.values for record in second.steps()] == whole[3:]


def test_running_statistics_of_batchnorm_are_the_newest_ones() -> None:
    model = nn.BatchNorm1d(2)
    average = moving_average(model, 0.9)
    assert average is not None
    for scale in (1.0, 3.0):
        model(scale * torch.tensor([[1.0, 2.0], [3.0, 6.0]]))
        average.update_parameters(model)
    buffers = dict(average.module.named_buffers())
    assert buffers["running_mean"].tolist() == pytest.approx([0.78, 1.56], rel=1e-6)  # 0.9 (0.1 * 2) + 0.1 * 6, and twice that
    assert int(buffers["num_batches_tracked"]) == 2


class NoLoss(ToyTask):
    """A task whose evaluation gives no loss, as a user's class may."""

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        return {"accuracy": 1.0}


def test_a_task_without_an_evaluation_loss_has_none_of_the_average() -> None:
    spec = make_spec(ema=0.9, steps=1)
    values = list(TrainingSession(spec, NoLoss(spec)).steps())[-1].values
    assert values["accuracy"] == 1.0 and "eval_loss_ema" not in values
