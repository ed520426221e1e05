"""The contrastive subject: exact cached gradients, pure batches, a fixed evaluation, bounded memory, resumable."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from accum_sweeps import subjects
from accum_sweeps.plan.errors import UserError
from accum_sweeps.plan.spec import RunSpec
from accum_sweeps.record.metrics import StepRecord
from accum_sweeps.subjects.clip import ContrastiveTask, MicroBatch, Samples
from accum_sweeps.training.controls import partition
from accum_sweeps.training.loop import TrainingSession
from accum_sweeps.training.task import Rows
from tests.contrastive import clip_spec

# Sums of 16 pairs' float64 terms in another order: measured 5e-15 at most. No fault is smaller than 1e-12.
EXACT = 1e-12
ALWAYS_ZERO = "k_proj.bias"  # softmax does not see what is added to all scores of a row: such a gradient is nothing but rounding


def session_of(spec: RunSpec) -> TrainingSession:
    made = subjects.session(spec, Path(), 1)
    assert isinstance(made, TrainingSession)
    return made


def cut(session: TrainingSession, sizes: list[int], step: int = 1) -> list[MicroBatch]:
    ends = np.cumsum(sizes)
    rows: list[Rows] = [np.arange(end - size, end) for size, end in zip(sizes, ends, strict=True)]
    task = session.task
    assert isinstance(task, ContrastiveTask)
    return task.split(task.batch(step), rows)


def gradients(session: TrainingSession, micro_batches: list[MicroBatch]) -> dict[str, Tensor]:
    """The step's gradient before clipping."""
    found: dict[str, Tensor] = {}
    training = session.training

    def keep() -> None:
        found.update({name: p.grad.double() for name, p in training.model.named_parameters() if p.grad is not None})

    training.on_gradient = keep
    state = {name: value.clone() for name, value in training.model.state_dict().items()}
    session.make_step(1, micro_batches)
    training.model.load_state_dict(state)
    return found


def one_batch(**changes: Any) -> dict[str, Tensor]:
    """The gradient of the whole batch in one pass, without caching."""
    session = session_of(clip_spec(**{"subject.accumulation": "plain", **changes}))
    return gradients(session, cut(session, [16]))


def whole(gradient: dict[str, Tensor]) -> Tensor:
    return torch.cat([gradient[name].flatten() for name in sorted(gradient)])


def difference(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    return float((whole(found) - whole(expected)).norm() / whole(expected).norm())


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("sizes", [[8, 8], [6, 6, 4], [1] * 16], ids=str)
def test_cached_gradients_of_every_parameter_are_those_of_one_batch(sizes: list[int], dropout: float) -> None:
    settings = {"dtype": "fp64", "model.dropout": dropout}
    session, expected = session_of(clip_spec(**settings)), one_batch(**settings)
    found, size = gradients(session, cut(session, sizes)), float(whole(expected).norm())
    assert len(found) == len(expected) == len(session.training.parameters) and "logit_scale" in found
    for name, gradient in expected.items():
        scale = size if name.endswith(ALWAYS_ZERO) else float(gradient.norm())
        assert float((found[name] - gradient).norm()) < EXACT * scale, name


def test_dropout_decides_about_the_gradient() -> None:
    plain, dropped = (one_batch(**{"dtype": "fp64", "model.dropout": dropout}) for dropout in (0.0, 0.2))
    assert difference(dropped, plain) > 0.1


@pytest.mark.parametrize(("k", "expected"), [(2, 0.055), (4, 0.506), (8, 0.580)])
def test_each_micro_batchs_own_negatives_give_another_gradient(k: int, expected: float) -> None:
    session = session_of(clip_spec(**{"dtype": "fp64", "subject.accumulation": "plain"}))
    found = gradients(session, cut(session, [16 // k] * k))
    assert difference(found, one_batch(dtype="fp64")) == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("dtype", ["fp32", "amp_bf16", "bf16", "amp_fp16"])
def test_in_low_precision_caching_differs_by_no_more_than_regrouping(dtype: str) -> None:
    spec = clip_spec(dtype=dtype, accum=4, loss_scale=16.0)
    session, regrouped = session_of(spec), dataclasses.replace(spec, control="regroup")
    found = gradients(session, cut(session, [4] * 4))
    control = gradients(session, session.task.split(session.task.batch(1), partition(regrouped, 1)))
    assert 0 < difference(found, one_batch(dtype=dtype, loss_scale=16.0)) < 3 * difference(control, found)


@pytest.mark.parametrize("accumulator", ["bf16", "fp64"])
def test_the_gradient_buffer_has_the_accumulators_dtype(accumulator: str) -> None:
    session = session_of(clip_spec(dtype="fp32", accumulator=accumulator))
    off = difference(gradients(session, cut(session, [4] * 4)), one_batch(dtype="fp32"))
    assert (off > 1e-4) == (accumulator == "bf16")


def test_padding_to_the_micro_batch_changes_shapes_and_nothing_else() -> None:
    settings = {"dtype": "fp64", "model.dropout": 0.2}
    fixed, cropped = (session_of(clip_spec(**settings, **{"subject.padding": padding})) for padding in ("fixed", "micro_batch"))
    sizes = [2] * 8
    assert {part.ids.shape for part in cut(fixed, sizes)} == {(2, 22)}
    assert len({part.ids.shape for part in cut(cropped, sizes)}) > 1
    assert difference(gradients(cropped, cut(cropped, sizes)), gradients(fixed, cut(fixed, sizes))) < EXACT


def content(samples: Samples) -> list[Any]:
    return [samples.pairs.images.tolist(), samples.pairs.ids.tolist()]


def test_a_batch_is_a_function_of_step_and_data_seed_alone() -> None:
    task = ContrastiveTask(clip_spec())
    expected = content(task.batch(5))
    for changes in ({"accum": 4}, {"seed_init": 3, "seed_dropout": 4}, {"subject.accumulation": "plain", "dtype": "bf16"}):
        assert content(ContrastiveTask(clip_spec(**changes)).batch(5)) == expected
    assert content(task.batch(6)) != expected and content(task.batch(5)) == expected
    assert content(ContrastiveTask(clip_spec(seed_data=1)).batch(5)) != expected


def test_an_epoch_in_the_order_of_the_data_ends_with_a_short_window() -> None:
    settings = {"data.epoch_rows": 20, "data.shuffle": False, "data.last_window": "short", "global_batch": 8}
    task = ContrastiveTask(clip_spec(**settings))
    assert [task.rows(step) for step in (1, 2, 3, 4)] == [8, 8, 4, 8]
    first_epoch = np.concatenate([task.batch(step).pairs.ids for step in (1, 2, 3)])
    pairs = task._pairs
    assert first_epoch.tolist() == pairs.captions.ids[pairs.train[:20]].tolist()
    assert content(task.batch(4)) == content(task.batch(1))


def run(spec: RunSpec) -> list[StepRecord]:
    return list(session_of(spec).steps())


def test_a_run_with_a_short_last_window_has_the_same_losses_for_every_k() -> None:
    settings = {"data.epoch_rows": 20, "data.last_window": "short", "global_batch": 8, "steps": 3, "eval_every": 0, "dtype": "fp64"}
    one, four = (run(clip_spec(accum=k, **settings)) for k in (1, 4))
    assert [record.values["tokens"] for record in four] == [8, 16, 20]
    losses = [[record.values["train_loss"] for record in records] for records in (one, four)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-9)  # two AdamW steps amplify 1e-16; measured 1e-13


def test_the_evaluation_is_the_same_for_every_run() -> None:
    model = ContrastiveTask(clip_spec()).build().requires_grad_(False).eval()
    changes: list[dict[str, Any]] = [{}, {"accum": 8, "seed": 3}, {"subject.accumulation": "plain", "subject.padding": "micro_batch"}]
    losses = [ContrastiveTask(clip_spec(**change)).evaluate(model)["eval_loss"] for change in changes]
    assert losses[0] == losses[1] == pytest.approx(losses[2], rel=1e-6)
    assert np.log(8) < losses[0] < np.log(32) + 1  # blocks of 32 and 8 pairs, and a model that has not learned anything


def test_another_digits_file_than_the_planned_one_is_refused() -> None:
    with pytest.raises(UserError, match="changed since the sweep was planned"):
        session_of(clip_spec(**{"data.hash": "0" * 32}))


def as_values(records: list[StepRecord]) -> list[Any]:
    return [(r.step, r.values, r.weights_hash) for r in records]


@pytest.mark.parametrize("accumulation", ["plain", "cached"])
def test_a_resumed_run_is_bitwise_equal(accumulation: str, tmp_path: Path) -> None:
    settings = {"subject.accumulation": accumulation, "model.dropout": 0.1, "data.epoch_rows": 12, "data.last_window": "short"}
    spec = clip_spec(steps=4, eval_every=2, probe_steps=[1, 3], accum=2, global_batch=8, **settings)
    expected = as_values(run(spec))
    first, records = session_of(spec), []
    for record in first.steps():
        records.append(record)
        if record.step == 2:
            break
    first.save(tmp_path / "c.pt")
    second = session_of(spec)
    assert second.load(tmp_path / "c.pt") == 2
    assert as_values(records + list(second.steps())) == expected


def test_it_learns_to_tell_pairs_apart() -> None:
    records = run(clip_spec(steps=80, accum=2, eval_every=80, **{"optimizer.lr": 1e-3, "optimizer.warmup_steps": 5}))
    guessing = (32 * np.log(32) + 8 * np.log(8)) / 40  # all pairs of a block alike
    assert records[-1].values["eval_loss"] < guessing - 0.3


def steps_of(pairs: int) -> tuple[TrainingSession, list[MicroBatch], list[MicroBatch]]:
    """A session, its batch in micro-batches of 8, and in one."""
    session = session_of(clip_spec(global_batch=pairs, accum=pairs // 8))
    return session, cut(session, [8] * (pairs // 8)), cut(session, [pairs])


def test_caching_costs_one_more_forward_pass() -> None:
    session, parts, batch = steps_of(32)
    plain = session_of(clip_spec(**{"subject.accumulation": "plain", "global_batch": 32}))
    operations = []
    for each, micro_batches in ((session, parts), (plain, batch)):
        with FlopCounterMode(display=False) as counter:
            each.make_step(1, micro_batches)
        operations.append(counter.get_total_flops())
    # Forward 1, backward 2 (the images themselves need no gradient: a little less); so 4/3, and at most 1.34.
    assert 1.30 < operations[0] / operations[1] < 1.34


def peak_bytes(session: TrainingSession, micro_batches: list[MicroBatch]) -> int:
    """The largest number of bytes that a step's gradient takes at any moment beyond what is there before it."""
    gradients(session, micro_batches)  # whatever is allocated once
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        session.training.optimizer.zero_grad()
        session.make_step(1, micro_batches)
    assert profile.profiler is not None and profile.profiler.kineto_results is not None
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    return int(np.cumsum([event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]).max())


def test_twice_the_batch_takes_no_more_memory_than_its_embeddings_and_inputs() -> None:
    (small, small_parts, small_batch), (large, large_parts, large_batch) = steps_of(32), steps_of(64)
    inputs = sum(part.images.nbytes + part.ids.nbytes for part in large_parts[:4])
    embeddings = 32 * 2 * 32 * 4  # pairs, encoders, width, bytes
    assert peak_bytes(large, large_parts) - peak_bytes(small, small_parts) <= embeddings + inputs
    plain = clip_spec(**{"subject.accumulation": "plain"})
    grown = peak_bytes(session_of(plain), large_batch) - peak_bytes(session_of(plain), small_batch)
    assert grown > 50 * (embeddings + inputs)
