"""One optimizer step seen from inside: it is the training's own, and what is changed on purpose is all that changes."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from accum_sweeps import subjects
from accum_sweeps.ladder import interventions
from accum_sweeps.ladder.interventions import Pair
from accum_sweeps.ladder.observation import State
from accum_sweeps.ladder.oracle import Oracle
from accum_sweeps.plan.errors import UserError
from accum_sweeps.plan.spec import RunSpec
from accum_sweeps.training.loop import TrainingSession
from accum_sweeps.training.task import Rows
from tests.specs import make_spec
from tests.training.toy import ToyTask


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run trains the toy: a linear regression, 16 rows, clipped at a norm of 1 by a warmed-up AdamW."""
    monkeypatch.setattr(subjects, "session", lambda spec, folder, attempt: TrainingSession(spec, ToyTask(spec)))


def same(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    "change", [{}, {"accum": 4}, {"accum": 4, "control": "regroup"}, {"control": "ulp_weights"}, {"control": "ulp_grads"}]
)
def test_the_step_is_the_trainings_own_first_step(change: dict[str, Any]) -> None:
    spec = make_spec(**change)
    run = TrainingSession(spec, ToyTask(spec))
    record = next(run.steps())
    seen = Oracle(spec).observe()
    assert same(seen.after, {name: p.detach() for name, p in run.training.model.named_parameters()})
    assert (seen.loss, seen.terms, seen.lr) == (record.values["train_loss"], 16, record.values["lr"])
    norm = torch.stack([g.norm() for g in seen.gradient.values()]).norm()
    assert float(norm) == pytest.approx(record.values["grad_norm"], rel=1e-6)  # a float32 norm of six numbers


def test_asking_again_gives_the_same_bits() -> None:
    oracle = Oracle(make_spec(accum=2))
    first, again = oracle.observe(), oracle.observe()
    assert same(first.after, again.after) and same(first.gradient, again.gradient)
    assert same(first.before, {name: oracle.start.model[name] for name in first.before})


def test_the_optimizer_is_given_the_clipped_gradient_and_the_other_is_kept() -> None:
    seen = Oracle(make_spec(**{"optimizer.max_norm": 0.5})).observe()
    norms = [float(torch.stack([g.norm() for g in part.values()]).norm()) for part in (seen.gradient, seen.clipped)]
    assert norms[0] > 1 and norms[1] == pytest.approx(0.5, rel=1e-5)
    unclipped = Oracle(make_spec(**{"optimizer.max_norm": None})).observe()
    assert same(unclipped.gradient, seen.gradient) and same(unclipped.clipped, seen.gradient)


def test_a_step_can_start_from_the_weights_and_state_of_another_precision() -> None:
    start = Oracle(make_spec()).start
    wide = Oracle(make_spec(dtype="fp64"), start).observe()
    assert all(t.dtype == torch.float64 for t in wide.before.values())
    assert same({name: t.float() for name, t in wide.before.items()}, {name: start.model[name] for name in wide.before})


def test_a_later_step_goes_on_from_the_optimizers_state() -> None:
    spec = make_spec(steps=3, eval_every=0, probe_steps=[])
    run = TrainingSession(spec, ToyTask(spec))
    steps = run.steps()
    next(steps)
    state = State(model={k: v.clone() for k, v in run.training.model.state_dict().items()}, optimizer={}, step=2)
    kept = {key: {k: v.clone() for k, v in value.items()} for key, value in run.training.optimizer.state_dict()["state"].items()}
    next(steps)
    seen = Oracle(spec, dataclasses.replace(state, optimizer=kept)).observe()
    assert same(seen.after, {name: p.detach() for name, p in run.training.model.named_parameters()})
    assert not same(seen.after, Oracle(spec, state).observe().after)


def test_one_ulp_is_put_on_the_weights_that_are_given() -> None:
    start = Oracle(make_spec()).start
    moved = Oracle(make_spec(control="ulp_weights"), start).observe()
    plain = Oracle(make_spec(), start).observe()
    for name, before in moved.before.items():
        distance = (before.view(torch.int32) - plain.before[name].view(torch.int32)).abs()
        assert distance.eq((plain.before[name] != 0).int()).all()
    assert same(moved.before, Oracle(make_spec(control="ulp_weights")).observe().before)


def test_outputs_come_with_their_rows_in_the_order_of_the_cut() -> None:
    seen: list[tuple[list[int], Tensor]] = []
    parts: list[Rows] = [np.array([3, 1], dtype=np.intp), np.array([0, 2], dtype=np.intp)]
    oracle = Oracle(make_spec())
    oracle.observe(parts=parts, on_outputs=lambda rows, tensors: seen.append((rows.tolist(), tensors[0])))
    x, _ = ToyTask(oracle.spec).batch(1)
    weight, bias = oracle.start.model["1.weight"], oracle.start.model["1.bias"]
    assert [rows for rows, _ in seen] == [[3, 1], [0, 2]]
    for rows, output in seen:
        expected = torch.from_numpy(x[rows]).float() @ weight.T + bias
        assert torch.allclose(output, expected, rtol=1e-5, atol=1e-6)  # float32, five products of order 1


def test_an_update_with_a_given_gradient_is_the_steps_second_half() -> None:
    oracle = Oracle(make_spec())
    seen = oracle.observe()
    again = oracle.update(seen.gradient, seen.loss, seen.terms)
    assert same(again.after, seen.after) and again.loss == pytest.approx(seen.loss, rel=1e-15)
    frozen = oracle.update({"1.weight": seen.gradient["1.weight"]}, seen.loss, seen.terms)
    assert torch.equal(frozen.after["1.bias"], seen.before["1.bias"]) and "1.bias" not in frozen.gradient


def test_a_subject_that_keeps_its_step_to_itself_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subjects, "session", lambda spec, folder, attempt: object())
    with pytest.raises(UserError, match="subject=lm keeps its weights"):
        Oracle(make_spec())


# --- interventions -----------------------------------------------------------------------------------------------


def pair(**change: Any) -> tuple[Pair, State]:
    spec = make_spec(accum=4, **{"optimizer.max_norm": None, **change})
    oracle = Oracle(interventions.reference_of(spec))
    return Pair(spec=spec, arm=Oracle(spec, oracle.start).observe(), reference=oracle.observe()), oracle.start


def spec_with(spec: RunSpec, **optimizer: Any) -> RunSpec:
    return interventions.changed(spec, optimizer=dataclasses.replace(spec.setup.optimizer, **optimizer))


def test_another_eps_makes_the_updates_that_a_training_with_it_makes() -> None:
    given, start = pair()
    found = interventions.eps(given, start, 1e-4)
    spec = spec_with(given.spec, eps=1e-4)
    assert found.spec.setup.optimizer.eps == 1e-4  # type: ignore[union-attr]
    assert same(found.arm.after, Oracle(spec, start).observe().after)
    assert same(found.reference.after, Oracle(interventions.reference_of(spec), start).observe().after)
    assert not same(found.arm.after, given.arm.after)


def test_gradients_computed_in_float64_and_cast_make_the_two_updates_equal() -> None:
    given, start = pair()
    found = interventions.fp64_gradients(given, start)
    assert not same(given.arm.gradient, given.reference.gradient)
    assert all(g.dtype == torch.float64 for g in found.arm.gradient.values())
    assert same(found.arm.after, found.reference.after) and found.arm.after["1.weight"].dtype == torch.float32


def test_float64_accumulation_keeps_the_roundings_of_the_micro_batches() -> None:
    given, start = pair()
    found = interventions.fp64_accumulation(given, start)
    expected = Oracle(interventions.changed(given.spec, accumulator="fp64"), start).observe()
    assert same(found.arm.after, expected.after) and found.reference is given.reference


def test_a_frozen_tensor_stays_and_the_others_move_as_before() -> None:
    given, start = pair()
    found = interventions.frozen_tensor(given, start, "1.weight")
    assert torch.equal(found.arm.after["1.weight"], given.arm.before["1.weight"])
    assert torch.equal(found.arm.after["1.bias"], given.arm.after["1.bias"])


def test_clipping_and_one_ulp_noise_are_not_put_on_a_second_time() -> None:
    given, start = pair(control="ulp_grads", **{"optimizer.max_norm": 0.5})
    found = interventions.eps(given, start, 1e-8)  # the eps that it has
    assert same(found.arm.after, given.arm.after) and same(found.reference.after, given.reference.after)


def test_users_own_steps_show_what_their_optimizer_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def own(training: Any, micro_batches: list[Any]) -> Any:
        from accum_sweeps.training.task import StepOutcome

        loss, terms = training.loss(micro_batches[0])
        loss.backward()
        training.optimizer.step()
        return StepOutcome(loss=float(loss.detach()) / terms, terms=terms)

    monkeypatch.setattr(subjects, "session", lambda spec, folder, attempt: TrainingSession(spec, ToyTask(spec, own_lr=0.1), own))
    oracle = Oracle(make_spec())
    seen = oracle.observe()
    assert not oracle.has_settings_optimizer and seen.lr == 0.1
    assert same(seen.gradient, seen.clipped) and set(seen.gradient) == {"1.weight", "1.bias"}
    expected = seen.before["1.weight"] - 0.1 * seen.gradient["1.weight"]
    assert torch.allclose(seen.after["1.weight"], expected, rtol=0, atol=1e-6)  # float32 on weights of order 1 that move by order 1
