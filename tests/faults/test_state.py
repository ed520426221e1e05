"""Weight decay, moving average and Adam's count once per micro-batch: right gradients, wrong weights or state."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from accum_sweeps.faults import faulty_step
from accum_sweeps.training import optimizers
from accum_sweeps.training.average import moving_average
from accum_sweeps.training.step import train_step
from accum_sweeps.training.task import Training
from tests.faults.toy import apart, batches, both, case, flat, observed, training
from tests.specs import make_spec

LR, DECAY, K = 0.1, 0.05, 4


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=LR, weight_decay=DECAY)


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=LR, weight_decay=DECAY, betas=(0.9, 0.95), eps=1e-12)


@pytest.mark.parametrize("name", ["state_per_micro_batch", "double_division+state_per_micro_batch"])
@pytest.mark.parametrize("make", [sgd, adamw])
def test_the_weights_decay_k_times_as_much(name: str, make: Callable[[Any], torch.optim.Optimizer]) -> None:
    state = training(make)
    faulty = observed(state, faulty_step(case(name)), batches((1, 2, 5, 4)))
    # Coupled decay of SGD and decoupled decay of AdamW shrink the weights alike; what else moved them is the update without decay.
    plain = training(lambda p: make([{"params": list(p), "weight_decay": 0.0}]))
    bare = observed(plain, faulty_step(case(name)), batches((1, 2, 5, 4)))
    assert apart(faulty.update - bare.update, -K * LR * DECAY * faulty.before) < 1e-12
    assert state.optimizer.param_groups[0]["weight_decay"] == DECAY


@pytest.mark.parametrize("make", [sgd, adamw])
def test_the_gradient_is_perfect_and_without_decay_the_step_is(make: Callable[[Any], torch.optim.Optimizer]) -> None:
    faulty, correct = both("state_per_micro_batch", make=make)
    assert faulty.gradient.equal(correct.gradient) and apart(faulty.after, correct.after) > 1e-3
    faulty, correct = both("state_per_micro_batch", make=lambda p: make([{"params": list(p), "weight_decay": 0.0}]))
    assert faulty.after.equal(correct.after)


def test_twelve_rows_against_four_times_three_as_in_keras() -> None:
    # keras#19990: equal under plain SGD; SGD with decay and Adam differ.
    def apart_from_one_batch(name: str, make: Callable[[Any], torch.optim.Optimizer]) -> float:
        twelve = observed(training(make), faulty_step(case(name, 1)), batches((12,)))
        return apart(observed(training(make), faulty_step(case(name)), batches((3, 3, 3, 3))).after, twelve.after)

    def plain_sgd(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=LR)

    def adam(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=LR)

    assert apart_from_one_batch("state_per_micro_batch", plain_sgd) < 1e-14
    assert apart_from_one_batch("state_per_micro_batch_count", plain_sgd) < 1e-14
    assert apart_from_one_batch("state_per_micro_batch", sgd) > 1e-3
    assert apart_from_one_batch("state_per_micro_batch_count", adam) > 1e-3


def test_adams_first_update_has_the_corrections_of_step_k() -> None:
    faulty, correct = both("state_per_micro_batch_count", make=lambda p: adamw([{"params": list(p), "weight_decay": 0.0}]))
    factor = (1 - 0.9) / (1 - 0.9**K) * ((1 - 0.95**K) / (1 - 0.95)) ** 0.5
    assert faulty.gradient.equal(correct.gradient)
    assert apart(faulty.update, factor * correct.update) < 1e-9  # eps is 1e-12 of what the entries are


def test_the_count_goes_on_by_k_and_moments_are_those_of_the_right_step() -> None:
    states = [training(adamw), training(adamw)]
    for state, step in zip(states, (faulty_step(case("state_per_micro_batch_count")), train_step), strict=True):
        step(state, batches((1, 2, 5, 4)))
        step(state, batches((1, 2, 5, 4), seed=1)[:3])
    kept = [next(iter(state.optimizer.state.values())) for state in states]
    assert [float(state["step"]) for state in kept] == [7, 2]
    assert sorted(kept[0]) == sorted(kept[1])


def test_muons_matrices_have_no_count() -> None:
    part = make_spec(
        optimizer={"kind": "muon", "name": "muon", "lr": 0.02, "momentum": 0.95, "nesterov": True, "ns_steps": 5, "adamw_lr": 1e-3}
        | {"betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.0, "max_norm": None, "schedule": "constant", "warmup_steps": 0}
    ).setup.optimizer
    model = torch.nn.Sequential(*(torch.nn.Linear(3, 3) for _ in range(3))).double()
    optimizer = optimizers.make(part, model)
    state = Training(model=model, optimizer=optimizer, loss=lambda x: ((model(x) ** 2).sum(), len(x)))
    faulty_step(case("state_per_micro_batch_count"))(state, [torch.ones(2, 3, dtype=torch.float64)] * K)
    counts = [float(found["step"]) for found in optimizer.state.values() if "step" in found]
    assert counts == [float(K)] * 5  # two outer matrices and three biases; the inner matrix is Muon's


def averaging(decay: float) -> Training:
    state = training()
    state.average = moving_average(state.model, decay)
    return state


def test_the_average_moves_k_times() -> None:
    state, d = averaging(0.5), 0.5
    step = faulty_step(case("state_per_micro_batch_ema"))
    first = observed(state, step, batches((1, 2, 5, 4)))
    assert state.average is not None
    # It begins with the weights that it sees first: here those before the update, three times, then once the new ones.
    expected = d * first.before + (1 - d) * first.after
    assert apart(flat(list(state.average.module.parameters())), expected) < 1e-14
    second = observed(state, step, batches((1, 2, 5, 4), seed=1))
    expected = d * (d**3 * expected + (1 - d**3) * second.before) + (1 - d) * second.after
    assert apart(flat(list(state.average.module.parameters())), expected) < 1e-14


def test_the_average_is_all_that_the_faulty_one_touches() -> None:
    faulty, correct = averaging(0.9), averaging(0.9)
    seen = observed(faulty, faulty_step(case("state_per_micro_batch_ema")), batches((1, 2, 5, 4)))
    right = observed(correct, train_step, batches((1, 2, 5, 4)))
    assert seen.after.equal(right.after) and faulty.average is not None and correct.average is not None
    averages = [flat(list(state.average.module.parameters())) for state in (faulty, correct) if state.average]
    assert averages[1].equal(right.after) and apart(averages[0], averages[1]) > 1e-3
    assert both("state_per_micro_batch_ema")[0].after.equal(right.after)  # without an average nothing is touched
