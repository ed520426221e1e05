"""The language model: pure batches, a fixed evaluation, exact accumulation, resumable, and it learns."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from accum_sweeps import subjects
from accum_sweeps.plan.errors import UserError
from accum_sweeps.plan.parts import StandardLibrary
from accum_sweeps.plan.spec import RunSpec
from accum_sweeps.record.metrics import StepRecord
from accum_sweeps.subjects.lm import LanguageModelTask, MicroBatch
from accum_sweeps.training.controls import partition
from accum_sweeps.training.data import corpus
from accum_sweeps.training.data.rows import IGNORED
from accum_sweeps.training.loop import TrainingSession
from tests.specs import BASE, make_spec

SGD = {"kind": "sgd", "name": "sgd", "lr": 0.1, "momentum": 0.9, "nesterov": False, "weight_decay": 0.0}
SGD |= {"max_norm": 1.0, "schedule": "cosine", "warmup_steps": 2}


@pytest.fixture(scope="module")
def data_hash() -> str:
    made = corpus.identify(StandardLibrary(name="stdlib", seq_len=64, lengths="documents", eval_rows=32))
    return made.hash  # type: ignore[union-attr]


@pytest.fixture(name="spec")
def make(data_hash: str) -> Any:
    return lambda **changes: make_spec(**({"data.hash": data_hash} | changes))


def micro_batches(spec: RunSpec, step: int = 1) -> list[MicroBatch]:
    task = LanguageModelTask(spec)
    return task.split(task.batch(step), partition(spec, step))


def joined(parts: list[MicroBatch]) -> tuple[list[Any], list[Any]]:
    return torch.cat([p.inputs for p in parts]).tolist(), torch.cat([p.targets for p in parts]).tolist()


def test_the_batch_of_a_step_does_not_know_k_nor_what_was_asked_before(spec: Any) -> None:
    expected = joined(micro_batches(spec(accum=1), 5))
    for k in (2, 4, 16):
        assert joined(micro_batches(spec(accum=k), 5)) == expected
    task = LanguageModelTask(spec())
    for step in (9, 5, 1, 5):
        batch = task.batch(step)
        assert ((batch.inputs.tolist(), batch.targets.tolist()) == expected) == (step == 5)


def test_the_batch_depends_on_the_data_seed_alone(spec: Any) -> None:
    expected = joined(micro_batches(spec()))
    assert joined(micro_batches(spec(seed_init=4, seed_dropout=5, dtype="bf16"))) == expected
    assert joined(micro_batches(spec(seed_data=6))) != expected


def test_rows_are_ragged_and_x_are_counted(spec: Any) -> None:
    parts = micro_batches(spec(accum=4))
    assert [p.tokens for p in parts] == [int((p.targets != IGNORED).sum()) for p in parts]
    assert len({p.tokens for p in parts}) > 1
    assert {p.inputs.shape for p in parts} == {(4, 64)}


def test_the_loss_is_summed_over_real_targets_and_blind_to_padding(spec: Any) -> None:
    task = LanguageModelTask(spec())
    model = task.build().double().requires_grad_(False)
    (part,) = micro_batches(spec())
    total, terms = task.loss(model, part)
    log_probabilities = model(part.inputs).log_softmax(-1)
    expected = sum(-log_probabilities[r, t, part.targets[r, t]] for r, t in (part.targets != IGNORED).nonzero().tolist())
    assert float(total) == pytest.approx(float(expected), rel=1e-12)
    scribbled = torch.where(part.targets == IGNORED, 7, part.inputs)
    assert float(task.loss(model, dataclasses.replace(part, inputs=scribbled))[0]) == pytest.approx(float(total), rel=1e-14)
    assert terms == part.tokens


def test_the_evaluation_set_is_the_same_for_every_run(spec: Any) -> None:
    model = LanguageModelTask(spec()).build().requires_grad_(False)
    losses = {LanguageModelTask(spec(seed=seed, accum=k)).evaluate(model)["eval_loss"] for seed in (0, 1) for k in (1, 8)}
    assert len(losses) == 1


def test_an_untrained_model_is_near_the_loss_of_guessing(spec: Any) -> None:
    task = LanguageModelTask(spec())
    assert np.log(256) < task.evaluate(task.build().requires_grad_(False))["eval_loss"] < np.log(256) + 1.0


def test_another_corpus_than_the_planned_one_is_refused(spec: Any) -> None:
    with pytest.raises(UserError, match="planned with another content"):
        subjects.session(spec(**{"data.hash": "0" * 32}), Path(), 1)


def run(spec: RunSpec) -> tuple[TrainingSession, list[StepRecord]]:
    session = subjects.session(spec, Path(), 1)
    assert isinstance(session, TrainingSession)
    return session, list(session.steps())


def as_values(records: list[StepRecord]) -> list[Any]:
    return [(r.step, r.values, r.weights_hash, None if r.sketch is None else r.sketch.tolist()) for r in records]


def flattened(state: Any) -> list[Any]:
    if isinstance(state, torch.Tensor):
        return state.flatten().tolist()
    if isinstance(state, dict):
        return [item for value in state.values() for item in flattened(value)]
    return [state]


@pytest.mark.parametrize("optimizer", [BASE["optimizer"], SGD], ids=["adamw", "sgd"])
@pytest.mark.parametrize("dtype", ["fp32", "amp_bf16", "bf16"])
def test_a_resumed_run_is_bitwise_equal(spec: Any, optimizer: dict[str, Any], dtype: str, tmp_path: Path) -> None:
    small = spec(steps=6, eval_every=2, probe_steps=[2, 4], accum=2, global_batch=4, dtype=dtype, optimizer=optimizer)
    whole, expected = run(small)
    first, records = subjects.session(small, Path(), 1), []
    for record in first.steps():
        records.append(record)
        if record.step == 3:
            break
    first.save(tmp_path / "c.pt")
    second = subjects.session(small, Path(), 2)
    assert isinstance(second, TrainingSession) and second.load(tmp_path / "c.pt") == 3
    assert as_values(records + list(second.steps())) == as_values(expected)
    assert flattened(second.training.optimizer.state_dict()) == flattened(whole.training.optimizer.state_dict())


@pytest.mark.parametrize("control", ["regroup", "order", "permute", "ulp_weights", "ulp_grads"])
def test_a_control_changes_the_weights_by_rounding_only(spec: Any, control: str) -> None:
    def weights(**changes: Any) -> torch.Tensor:
        session, _ = run(spec(steps=2, eval_every=0, accum=4, global_batch=8, dtype="fp64", **changes))
        return torch.cat([p.detach().flatten() for p in session.training.parameters])

    plain, changed = weights(), weights(control=control)
    assert 0 < float((changed - plain).norm() / plain.norm()) < 1e-9


def unigram_loss() -> float:
    """Nats per byte of the evaluation text under the byte frequencies of the training text."""
    made = corpus.identify(StandardLibrary(name="stdlib", seq_len=64, lengths="documents", eval_rows=32))
    loaded = corpus.load(made)
    train, evaluation = (np.bincount(text.tokens, minlength=256) for text in (loaded.train, loaded.evaluation))
    return float(-(evaluation / evaluation.sum()) @ np.log((train + 1) / (train + 1).sum()))


@pytest.mark.parametrize("dtype", ["fp32", "amp_bf16"])
def test_the_model_learns_more_than_the_frequencies_of_bytes(spec: Any, dtype: str) -> None:
    changes = {"optimizer.lr": 3e-3, "optimizer.warmup_steps": 5, "model.norm": "layernorm"}
    _, records = run(spec(steps=60, eval_every=0, accum=2, dtype=dtype, **changes))
    assert 3.0 < unigram_loss() < 3.6
    assert records[-1].values["eval_loss"] < unigram_loss() - 0.5


def test_an_epoch_shows_every_row_once_and_its_rows_are_the_same_for_every_seed(spec: Any) -> None:
    epoch = {"data.epoch_rows": 40, "data.last_window": "short"}

    def rows(step: int, **changes: Any) -> list[tuple[int, ...]]:
        task = LanguageModelTask(spec(**epoch, **changes))
        batch = task.batch(step)
        assert (task.rows(step), batch.step) == (len(batch.inputs), step)
        return [tuple(row) for row in batch.inputs.tolist()]

    first, second = [rows(step) for step in (1, 2, 3)], [rows(step) for step in (4, 5, 6)]
    other = [rows(step, seed=1) for step in (1, 2, 3)]
    assert [len(window) for window in first] == [16, 16, 8]
    contents = [sorted(row for window in windows for row in window) for windows in (first, second, other)]
    assert contents[0] == contents[1] == contents[2] and len(set(contents[0])) == 40
    assert first != second and first != other


def test_the_evaluation_rows_of_drawn_lengths_are_the_same_for_every_seed_and_ragged(spec: Any) -> None:
    parts = [LanguageModelTask(spec(**{"data.lengths": "uniform", "seed": seed}))._evaluation_rows() for seed in (0, 1)]
    assert joined(parts[0]) == joined(parts[1])
    assert 32 * 64 * 0.3 < sum(part.tokens for part in parts[0]) < 32 * 64 * 0.7


@pytest.mark.parametrize(("seq_len", "vocabulary", "rows"), [(64, 256, 16), (2048, 50432, 1), (300, 50432, 8), (2048, 200_000, 1)])
def test_the_logits_of_an_evaluation_pass_are_bounded(spec: Any, seq_len: int, vocabulary: int, rows: int) -> None:
    task = LanguageModelTask(spec(**{"data.seq_len": seq_len, "model.vocabulary": vocabulary, "data.lengths": "fixed"}))
    parts = task._evaluation_rows()
    assert {len(part.inputs) for part in parts} == {rows} and len(parts) * rows == 32
