from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from accum_sweeps.plan.errors import UserError
from accum_sweeps.plan.parts import PythonHook
from accum_sweeps.plan.spec import RunSpec
from accum_sweeps.record.metrics import StepRecord
from accum_sweeps.subjects import session
from accum_sweeps.subjects.python_hook import HookTask
from accum_sweeps.subjects.sources import code_hash, source_files
from accum_sweeps.training.loop import TrainingSession
from tests.specs import BASE, make_spec

NONE = {"kind": "none", "name": "none"}


def hook_spec(subject: Any = None, lr: float = 1e-3, max_norm: float | None = 1.0, **changes: Any) -> RunSpec:
    part = {"kind": "python", "name": "python", "target": "my_training:Setup", **(subject or {})}
    settings = {"steps": 6, "eval_every": 3, "optimizer.warmup_steps": 0, "optimizer.lr": lr, "optimizer.max_norm": max_norm}
    return make_spec(subject=part, model=NONE, data=NONE, **{**settings, **changes})


def train(spec: RunSpec) -> list[StepRecord]:
    return list(session(spec, Path(), 1).steps())


class Tiny:
    """A hook with one weight per feature: loss = squared error against the sum of the features."""

    def build(self, config: Any, seeds: Any) -> Any:
        self.rows = config["global_batch"]
        return torch.nn.Linear(3, 1)

    def batch(self, step: int, seed: int) -> Any:
        x = torch.randn(self.rows, 3, generator=torch.Generator().manual_seed(1000 * seed + step))
        return {"x": x, "y": x.sum(1, keepdim=True)}

    def loss(self, model: Any, samples: Any) -> Any:
        return (model(samples["x"]) - samples["y"]).square().sum(), len(samples["y"])


def tiny_session(methods: dict[str, Callable[..., Any]], **changes: Any) -> TrainingSession:
    spec = hook_spec(**changes)
    task = HookTask(type("Tiny", (Tiny,), methods)(), spec)
    return TrainingSession(spec, task, task.step)


def test_the_example_learns_and_reports_like_the_built_in_subject(examples: Path) -> None:
    records = train(hook_spec(steps=60, eval_every=30, lr=3e-3))
    assert [record.step for record in records] == list(range(1, 61))
    assert set(records[0].values) == {"train_loss", "grad_norm", "lr", "tokens"}
    assert [record.step for record in records if "eval_loss" in record.values] == [30, 60]
    assert [record.step for record in records if record.sketch is not None] == [1, 60]
    assert records[0].values["train_loss"] > 5.3 and records[-1].values["eval_loss"] < 3.6  # ln 256 = 5.55
    assert records[-1].values["tokens"] == 60 * BASE["global_batch"]


def test_four_micro_batches_give_the_gradient_of_one_batch_in_float64(examples: Path) -> None:
    def gradient(accum: int) -> torch.Tensor:
        running = session(hook_spec(accum=accum, dtype="fp64", steps=1, max_norm=None), Path(), 1)
        assert isinstance(running, TrainingSession)
        next(running.steps())
        return torch.cat([p.grad.flatten() for p in running.training.parameters if p.grad is not None])

    one, four = gradient(1), gradient(4)
    assert one.dtype == torch.float64 and one.norm() > 0.1
    assert (one - four).norm() / one.norm() < 1e-14


def test_continuing_from_a_checkpoint_gives_the_same_bits(examples: Path, tmp_path: Path) -> None:
    spec = hook_spec(accum=2)
    whole = train(spec)
    first = session(spec, Path(), 1)
    steps = first.steps()
    for _ in range(4):
        next(steps)
    first.save(tmp_path / "checkpoint.pt")
    second = session(spec, Path(), 2)
    assert second.load(tmp_path / "checkpoint.pt") == 4
    rest = list(second.steps())
    assert [record.values for record in rest] == [record.values for record in whole[4:]]
    assert rest[-1].weights_hash == whole[-1].weights_hash


def test_each_seed_stream_reaches_its_own_place(examples: Path) -> None:
    def first_loss(**seeds: Any) -> float:
        return float(train(hook_spec(steps=1, **seeds))[0].values["train_loss"])

    assert first_loss() == first_loss(seed_dropout=5)
    assert len({first_loss(), first_loss(seed_init=5), first_loss(seed_data=5), first_loss(seed=5)}) == 4


def test_arguments_reach_the_class(examples: Path) -> None:
    wide = session(hook_spec(subject={"args": {"width": 80}}), Path(), 1)
    assert isinstance(wide, TrainingSession)
    assert wide.training.model.get_submodule("2").out_features == 80


def test_a_file_edited_after_planning_fails_the_run(examples: Path) -> None:
    def planned() -> RunSpec:
        files = source_files(PythonHook(name="", target="my_training:Setup"), examples)
        return hook_spec(subject={"code_hash": code_hash(files)})

    spec = planned()
    assert len(train(spec)) == 6
    path = examples / "my_training.py"
    path.write_text(path.read_text() + "# edited\n")
    with pytest.raises(UserError, match="my_training:Setup changed since the sweep was planned; type the command again"):
        session(spec, Path(), 1)
    with pytest.raises(UserError, match="was loaded by this worker before its source files changed; type the command again"):
        session(planned(), Path(), 1)


def test_without_evaluate_there_is_no_eval_loss() -> None:
    assert "eval_loss" not in list(tiny_session({}).steps())[-1].values


@pytest.mark.parametrize("given", [2.5, torch.tensor(2.5), (torch.tensor(10.0), 4), {"eval_loss": 2.5}])
def test_evaluate_may_return_a_mean_a_sum_or_several_metrics(given: Any) -> None:
    records = list(tiny_session({"evaluate": lambda self, model: given}).steps())
    assert [record.values.get("eval_loss") for record in records] == [None, None, 2.5, None, None, 2.5]


def test_samples_arrive_in_the_dtype_of_the_weights() -> None:
    assert all(record.values["train_loss"] > 0 for record in tiny_session({}, dtype="fp64").steps())
    seen = []

    def loss(self: Tiny, model: Any, samples: Any) -> Any:
        seen.append(samples["x"].dtype)
        return Tiny.loss(self, model, samples)

    next(tiny_session({"loss": loss}, dtype="bf16", accum=4).steps())
    assert seen == [torch.bfloat16] * 4


def test_an_own_optimizer_replaces_the_one_of_the_specification() -> None:
    own = tiny_session({"optimizer": lambda self, model: torch.optim.SGD(model.parameters(), lr=0.25)})
    assert [record.values["lr"] for record in own.steps()] == [0.25] * 6


class Scheduled(Tiny):
    """An own optimizer, and a schedule that its own step moves on."""

    schedule: Callable[[torch.optim.Optimizer], Any]

    def optimizer(self, model: Any) -> Any:
        made = torch.optim.SGD(model.parameters(), lr=0.25, momentum=0.5)
        self.scheduler = type(self).schedule(made)
        return made

    def step(self, model: Any, optimizer: Any, micro_batches: list[Any]) -> Any:
        optimizer.zero_grad()
        total = torch.stack([self.loss(model, samples)[0] for samples in micro_batches]).sum() / 16
        total.backward()
        optimizer.step()
        self.scheduler.step()
        return total * 16, torch.tensor(16.0, requires_grad=True)  # still in the graph: no warning

    def state(self) -> Any:
        return self.scheduler.state_dict()

    def restore(self, state: Any) -> None:
        self.scheduler.load_state_dict(state)


SCHEDULES = {
    "exponential": lambda made: torch.optim.lr_scheduler.ExponentialLR(made, 0.5),
    "by step": lambda made: torch.optim.lr_scheduler.LambdaLR(made, lambda step: 2.0**-step),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_of_the_users_own_counts_and_resumes_bitwise(name: str, tmp_path: Path) -> None:
    def started() -> TrainingSession:
        spec = hook_spec(accum=2, steps=6)
        task = HookTask(type("Setup", (Scheduled,), {"schedule": staticmethod(SCHEDULES[name])})(), spec)
        return TrainingSession(spec, task, task.step)

    whole = list(started().steps())
    assert [record.values["lr"] for record in whole] == [0.25 / 2**done for done in range(6)]
    first = started()
    steps = first.steps()
    for _ in range(4):
        next(steps)
    first.save(tmp_path / "checkpoint.pt")
    second = started()
    assert second.load(tmp_path / "checkpoint.pt") == 4
    rest = list(second.steps())
    assert [record.values for record in rest] == [record.values for record in whole[4:]]
    assert rest[-1].weights_hash == whole[-1].weights_hash


@pytest.mark.parametrize(
    ("given", "words"), [([1], "state returned list, not a dict"), ({"f": Path()}, "what state returned cannot be kept in a checkpoint")]
)
def test_a_state_that_could_not_be_read_again_is_refused_as_it_is_saved(given: Any, words: str, tmp_path: Path) -> None:
    own = tiny_session({"state": lambda self: given, "restore": lambda self, state: None})
    with pytest.raises(UserError, match=words):
        own.save(tmp_path / "checkpoint.pt")


def test_an_own_step_is_one_optimizer_step_with_all_micro_batches() -> None:
    sizes = []

    def step(self: Tiny, model: Any, optimizer: Any, micro_batches: list[Any]) -> Any:
        sizes.append([len(samples["y"]) for samples in micro_batches])
        optimizer.zero_grad()
        total = torch.stack([self.loss(model, samples)[0] for samples in micro_batches]).sum() / 16
        total.backward()
        optimizer.step()
        return total.detach() * 16, 16

    own, product = tiny_session({"step": step}, accum=4), tiny_session({}, accum=4, max_norm=None)
    losses = [[record.values["train_loss"] for record in running.steps()] for running in (own, product)]
    assert sizes == [[4, 4, 4, 4]] * 6
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def own_step(self: Tiny, model: Any, optimizer: Any, micro_batches: list[Any]) -> Any:
    optimizer.zero_grad()
    total = torch.stack([self.loss(model, samples)[0] for samples in micro_batches]).sum() / 16
    total.backward()
    optimizer.step()
    return 16 * float(total.detach()), 16


def test_the_moving_average_follows_an_own_step() -> None:
    methods = {"evaluate": lambda self, model: (model.weight.sum(), 1)}
    own = tiny_session({"step": own_step, **methods}, accum=4, ema=0.5, max_norm=None)
    product = tiny_session(methods, accum=4, ema=0.5, max_norm=None)
    lasts = [list(running.steps())[-1].values for running in (own, product)]
    assert lasts[0]["eval_loss_ema"] == pytest.approx(lasts[1]["eval_loss_ema"], rel=1e-5)
    assert abs(lasts[0]["eval_loss_ema"] - lasts[0]["eval_loss"]) > 1e-4


def test_an_own_step_runs_under_the_autocast_of_the_specification() -> None:
    losses = [
        [record.values["train_loss"] for record in tiny_session({"step": own_step}, accum=4, dtype=dtype).steps()]
        for dtype in ("fp32", "amp_bf16")
    ]
    assert losses[0] != losses[1] and losses[0] == pytest.approx(losses[1], rel=0.05)


def test_what_a_method_stores_in_the_object_is_no_method_of_a_training() -> None:
    def build(self: Any, config: Any, seeds: Any) -> Any:
        self.step, self.optimizer = 0, None
        return Tiny.build(self, config, seeds)

    assert len(list(tiny_session({"build": build}).steps())) == 6


def test_a_loss_that_is_not_finite_is_divergence() -> None:
    def loss(self: Tiny, model: Any, samples: Any) -> Any:
        total, count = Tiny.loss(self, model, samples)
        return total / 0, count

    records = list(tiny_session({"loss": loss}).steps())
    assert [(record.step, record.is_diverged) for record in records] == [(1, True)]


def unseeded(self: Tiny, step: int, seed: int) -> Any:
    return {"x": torch.randn(self.rows, 3), "y": torch.zeros(self.rows, 1)}


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (("build", lambda *_: "model"), ["build returned str, not a torch.nn.Module"]),
        (("optimizer", lambda *_: 0.1), ["optimizer returned float, not a torch.optim.Optimizer"]),
        (("batch", lambda *_: [1, 2, 3]), ["batch(1, 0) gave 3 samples, but global_batch=16", "set global_batch=3"]),
        (("batch", lambda *_: "text"), ["gave 0 samples", "Return a list, a tensor, or a tuple or dict of tensors."]),
        (("batch", unseeded), ["batch(1, 0) gave other samples when it was called again", "torch.Generator().manual_seed"]),
        (("loss", lambda *_: torch.zeros(4)), ["loss returned a tensor of shape (4,), not (sum, count) of scalars"]),
        (("loss", lambda *_: (torch.zeros(4), 4)), ["loss returned a tuple, not (sum, count)", "losses.sum(), losses.numel()"]),
        (("step", lambda *_: (torch.zeros(()), 0)), ["step returned a count of 0"]),
        (("step", lambda *_: None), ["step returned a NoneType, not (sum, count)"]),
    ],
)
def test_a_method_that_returns_something_else_is_told_what_to_return(method: tuple[str, Any], words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        list(tiny_session(dict([method])).steps())
    assert [word for word in words if word not in str(caught.value)] == []
