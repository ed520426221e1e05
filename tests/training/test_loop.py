"""The training loop: what is recorded when, divergence, resuming."""

import gc
import math
import weakref
from pathlib import Path

import pytest
import torch

from accum_sweeps.plan.errors import UserError
from accum_sweeps.plan.spec import RunSpec
from accum_sweeps.record.metrics import StepRecord
from accum_sweeps.training.loop import TrainingSession
from accum_sweeps.training.sketch import sketch, weights_hash
from accum_sweeps.training.task import StepOutcome, Training
from tests.specs import make_spec
from tests.training.toy import ToyTask


def session(spec: RunSpec, **toy: object) -> TrainingSession:
    return TrainingSession(spec, ToyTask(spec, **toy))  # type: ignore[arg-type]


def as_values(records: list[StepRecord]) -> list[tuple[int, dict[str, float], str]]:
    return [(record.step, dict(record.values), record.weights_hash) for record in records]


def test_there_is_one_record_a_step_and_the_position_follows() -> None:
    run = session(make_spec(steps=4, eval_every=0, probe_steps=[]))
    assert [(record.step, run.position) for record in run.steps()] == [(1, 1), (2, 2), (3, 3), (4, 4)]
    assert list(run.steps()) == []


def test_every_record_holds_loss_rate_tokens_and_norm() -> None:
    run = session(make_spec(steps=3, **{"optimizer.warmup_steps": 2, "optimizer.lr": 0.1, "optimizer.schedule": "constant"}))
    records = list(run.steps())
    assert [record.values["lr"] for record in records] == [0.05, 0.1, 0.1]
    assert [record.values["tokens"] for record in records] == [16, 32, 48]
    assert all(record.values["train_loss"] > 0 and record.values["grad_norm"] > 0 for record in records)


def test_evaluation_comes_every_so_many_steps_and_after_the_last() -> None:
    records = list(session(make_spec(steps=7, eval_every=3)).steps())
    assert [record.step for record in records if "eval_loss" in record.values] == [3, 6, 7]
    records = list(session(make_spec(steps=7, eval_every=0)).steps())
    assert [record.step for record in records if "eval_loss" in record.values] == [7]


def test_evaluation_runs_in_eval_mode_and_training_goes_on_in_training_mode() -> None:
    spec = make_spec(steps=3, eval_every=1)
    task = ToyTask(spec, dropout=0.5)
    run = TrainingSession(spec, task)
    assert [run.training.model.training for _ in run.steps()] == [True] * 3
    assert task.modes == [False] * 3


def test_weights_are_sketched_at_the_probe_steps_and_after_the_last() -> None:
    run = session(make_spec(steps=5, probe_steps=[1, 3]))
    seen = {}
    for record in run.steps():
        if record.sketch is not None:
            assert (record.sketch == sketch(run.training.model)).all()
            seen[record.step] = record.weights_hash == weights_hash(run.training.model)
    assert seen == {1: True, 3: True, 5: True}


def test_each_tensor_is_sketched_too_where_that_is_asked_for() -> None:
    run = session(make_spec(steps=3, probe_steps=[1], probe_tensors=True))
    tensors = {record.step: record.tensors for record in run.steps() if record.tensors is not None}
    assert sorted(tensors) == [1, 3]
    assert (tensors[3].names, tensors[3].sizes.tolist()) == (("1.weight", "1.bias"), [5, 1])
    assert tensors[3].sketches[0, :5].tolist() == dict(run.training.model.named_parameters())["1.weight"][0].detach().double().tolist()
    assert all(record.tensors is None for record in session(make_spec(steps=3)).steps())


@pytest.mark.parametrize("control", ["none", "ulp_grads"])
def test_a_finished_training_leaves_the_memory_at_once(control: str) -> None:
    run = session(make_spec(steps=2, control=control, ema=0.9))
    weights = weakref.ref(run.training.model)
    gc.disable()  # cycles would stay until it runs, and with them the weights of a run beside those of the next
    try:
        list(run.steps())
        del run
        assert weights() is None
    finally:
        gc.enable()


def test_a_loss_that_is_not_finite_ends_the_run_with_the_weights_before() -> None:
    run = session(make_spec(steps=9), bad_step=4)
    before, records = "", []
    for record in run.steps():
        before = before if record.is_diverged else weights_hash(run.training.model)
        records.append(record)
    assert [(record.step, record.is_diverged) for record in records] == [(1, False), (2, False), (3, False), (4, True)]
    assert math.isinf(records[-1].values["train_loss"]) and records[-1].values["tokens"] == 48
    assert (run.position, weights_hash(run.training.model)) == (3, before)
    assert list(run.steps()) == []


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_an_evaluation_that_is_not_finite_ends_the_run_and_is_recorded(loss: float) -> None:
    run = session(make_spec(steps=9, eval_every=3), eval_loss=loss)
    records = list(run.steps())
    assert [(record.step, record.is_diverged) for record in records] == [(1, False), (2, False), (3, True)]
    assert not math.isfinite(records[-1].values["eval_loss"]) and math.isfinite(records[-1].values["train_loss"])
    assert list(run.steps()) == []


def test_reruns_are_bitwise_equal_and_seeds_differ() -> None:
    first, again, other = (as_values(list(session(make_spec(**seed)).steps())) for seed in ({}, {"replicate": 1}, {"seed": 1}))
    assert first == again
    assert first != other


@pytest.mark.parametrize("stream", ["seed_init", "seed_data", "seed_dropout"])
def test_each_seed_stream_counts(stream: str) -> None:
    hashes = [[record.weights_hash for record in session(make_spec(**change), dropout=0.5).steps()][-1] for change in ({}, {stream: 5})]
    assert hashes[0] != hashes[1]


def test_the_accumulation_factor_changes_nothing_in_exact_arithmetic() -> None:
    losses = [
        [r.values["train_loss"] for r in session(make_spec(dtype="fp64", accum=k, **{"optimizer.lr": 0.1})).steps()] for k in (1, 4, 16)
    ]
    assert losses[1] == pytest.approx(losses[0], rel=1e-12)
    assert losses[2] == pytest.approx(losses[0], rel=1e-12)


def test_an_optimizer_of_the_tasks_own_keeps_its_rate_and_is_not_clipped() -> None:
    run = session(make_spec(**{"optimizer.max_norm": 1e-9}), own_lr=0.25)
    start = torch.cat([p.detach().flatten().clone() for p in run.training.parameters])
    record = next(run.steps())
    moved = torch.cat([p.detach().flatten() for p in run.training.parameters]) - start
    assert record.values["lr"] == 0.25
    assert float(moved.norm()) == pytest.approx(0.25 * record.values["grad_norm"], rel=1e-5)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_rate_that_an_own_step_changes_stays_and_the_one_stepped_with_is_recorded(when: str) -> None:
    def own(training: Training, micro_batches: list[object]) -> StepOutcome:
        [group] = training.optimizer.param_groups
        if when == "before":
            group["lr"] /= 2
        training.optimizer.step()
        if when == "after":
            group["lr"] /= 2
        return StepOutcome(loss=1.0, terms=1)

    spec = make_spec(steps=3, eval_every=0)
    rates = [record.values["lr"] for record in TrainingSession(spec, ToyTask(spec, own_lr=8.0), own).steps()]
    assert rates == {"before": [4.0, 2.0, 1.0], "after": [8.0, 4.0, 2.0]}[when]


def test_a_step_of_the_tasks_own_gets_all_micro_batches() -> None:
    def own(training: Training, micro_batches: list[object]) -> StepOutcome:
        return StepOutcome(loss=1.5, terms=len(micro_batches), values={"mine": 7.0})

    spec = make_spec(accum=8, steps=2, eval_every=0)
    records = list(TrainingSession(spec, ToyTask(spec), own).steps())
    assert [(r.values["train_loss"], r.values["tokens"], r.values["mine"]) for r in records] == [(1.5, 8, 7.0), (1.5, 16, 7.0)]


def test_a_resumed_run_is_bitwise_equal_with_dropout_and_whatever_was_drawn_in_between(tmp_path: Path) -> None:
    spec = make_spec(accum=2, steps=8, eval_every=3, probe_steps=[1, 2, 3, 4, 5, 6, 7])
    whole = as_values(list(session(spec, dropout=0.5).steps()))
    first = session(spec, dropout=0.5)
    records = []
    for record in first.steps():
        records.append(record)
        if record.step == 3:
            break
    first.save(tmp_path / "c.pt")
    torch.rand(7)
    second = session(spec, dropout=0.5)
    assert second.load(tmp_path / "c.pt") == 3 == second.position
    assert as_values(records + list(second.steps())) == whole


def test_saving_does_not_change_the_run(tmp_path: Path) -> None:
    run, records = session(make_spec(), dropout=0.5), []
    for record in run.steps():
        records.append(record)
        run.save(tmp_path / "c.pt")
    assert as_values(records) == as_values(list(session(make_spec(), dropout=0.5).steps()))


def test_what_a_task_keeps_comes_back(tmp_path: Path) -> None:
    spec = make_spec()
    saved, loaded = ToyTask(spec), ToyTask(spec)
    saved.kept = {"average": torch.ones(2), "seen": 3}
    TrainingSession(spec, saved).save(tmp_path / "c.pt")
    TrainingSession(spec, loaded).load(tmp_path / "c.pt")
    assert (loaded.kept["average"].tolist(), loaded.kept["seen"]) == ([1.0, 1.0], 3)


def test_another_runs_checkpoint_leaves_the_session_as_it_was(tmp_path: Path) -> None:
    other = session(make_spec(seed=1))
    next(other.steps())
    other.save(tmp_path / "c.pt")
    run = session(make_spec())
    with pytest.raises(UserError, match="belongs to run"):
        run.load(tmp_path / "c.pt")
    assert as_values(list(run.steps())) == as_values(list(session(make_spec()).steps()))
