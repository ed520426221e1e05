"""Every fault in a training: it runs, differs from the correct run where it acts, and goes on from a checkpoint with the same bits."""

from collections.abc import Callable
from pathlib import Path

import pytest

from accum_sweeps.plan.errors import UserError
from accum_sweeps.plan.faults import FAULTS
from accum_sweeps.plan.spec import RunSpec
from accum_sweeps.subjects import second_rank
from accum_sweeps.training.loop import TrainingSession
from tests.faults.subjects import RANKS, cached_spec, lm_spec, session
from tests.faults.toy import changed
from tests.specs import make_spec

ALONE = [name for name in FAULTS if name not in RANKS]
UNTOUCHED = ("reporting", "reporting_scaled", "resume_inside_window", "state_per_micro_batch_ema")  # weights of a run in one go are right
Record = tuple[int, str, str]


def spec_of(fault: str) -> RunSpec:
    return cached_spec(fault) if fault == "replay_randomness" else lm_spec(fault)


def trained(run: TrainingSession) -> list[Record]:
    """Step, values (as text: a norm may be no number) and weights of what is left of the run."""
    return [(record.step, str(dict(record.values)), record.weights_hash) for record in run.steps()]


def eval_loss(records: list[Record]) -> float:
    """That of the last record."""
    return float(records[-1][1].split("'eval_loss': ")[1].split(",")[0].rstrip("}"))


@pytest.mark.parametrize("fault", ALONE)
def test_a_run_with_the_fault_trains_differs_and_resumes(fault: str, tmp_path: Path) -> None:
    spec = spec_of(fault)
    whole, correct = trained(session(spec)), trained(session(changed(spec, fault="none")))
    assert [step for step, _, _ in whole] == list(range(1, spec.setup.steps + 1))
    assert (whole == correct) == (fault == "resume_inside_window")
    assert (whole[-1][2] == correct[-1][2]) == (fault in UNTOUCHED)
    assert (eval_loss(whole) == pytest.approx(eval_loss(correct), rel=1e-9)) == (fault in UNTOUCHED)  # fp64 rounds at 1e-16
    first, second = session(spec), session(spec)
    begun = [record for _, record in zip(range(2), first.steps(), strict=False)]
    first.save(tmp_path / "checkpoint.pt")
    assert second.load(tmp_path / "checkpoint.pt") == begun[-1].step == 2
    assert (trained(second) == whole[2:]) == (fault != "resume_inside_window")


def test_only_the_first_update_after_a_resume_lacks_micro_batches(tmp_path: Path) -> None:
    spec = lm_spec("resume_inside_window")
    states = {}
    for name in ("resume_inside_window", "none"):
        run = session(changed(spec, fault=name))
        next(iter(run.steps()))
        run.save(tmp_path / f"{name}.pt")
        again = session(changed(spec, fault=name))
        again.load(tmp_path / f"{name}.pt")
        states[name] = [record.values["grad_norm"] for record in again.steps()]
    assert states["resume_inside_window"][0] != pytest.approx(states["none"][0], rel=1e-2)


@pytest.mark.parametrize("fault", RANKS)
def test_faults_of_two_ranks_run_in_two_processes(fault: str) -> None:
    spec = lm_spec(fault, steps=2)
    try:
        whole, correct = trained(session(spec)), trained(session(changed(spec, fault="none")))
    finally:
        second_rank.end()
    assert [step for step, _, _ in whole] == [1, 2]
    assert whole[-1][2] != correct[-1][2]


HOOK = """
import torch


class Setup:
    def build(self, config, seeds):
        return torch.nn.Linear(2, 1)

    def batch(self, step, seed):
        return torch.ones(4, 2)

    def loss(self, model, samples):
        return model(samples).sum(), len(samples)


class OwnStep(Setup):
    def step(self, model, optimizer, micro_batches):
        return 1.0, 1


class OwnOptimizer(Setup):
    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.1)


class OwnAdam(Setup):
    def optimizer(self, model):
        return torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)
"""


@pytest.fixture
def hook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], RunSpec]:
    """The specification of a user's class, with a fault."""
    (tmp_path / "a_users_training.py").write_text(HOOK)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    none = {"kind": "none", "name": "none"}

    def spec(name: str, fault: str) -> RunSpec:
        subject = {"kind": "python", "name": "python", "target": f"a_users_training:{name}"}
        return make_spec(subject=subject, model=none, data=none, global_batch=4, accum=2, steps=2, fault=fault)

    return spec


def test_a_step_of_the_users_own_is_not_replaced(hook: Callable[[str, str], RunSpec]) -> None:
    with pytest.raises(UserError, match="fault=missing_division: the subject's class has a step of its own"):
        session(hook("OwnStep", "missing_division"))
    assert len(trained(session(hook("OwnStep", "none")))) == 2
    assert len(trained(session(hook("Setup", "missing_division")))) == 2


@pytest.mark.parametrize(
    ("name", "fault", "lacks"),
    [
        ("OwnOptimizer", "clip_each_micro_batch", "clipping"),
        ("OwnAdam", "missing_division+clip_per_micro_batch", "clipping"),
        ("OwnAdam", "mean_of_means+schedule_per_micro_batch", "a schedule"),
        ("OwnOptimizer", "state_per_micro_batch", "weight decay"),
        ("OwnOptimizer", "double_division+state_per_micro_batch", "weight decay"),
        ("OwnOptimizer", "state_per_micro_batch_count", "Adam's count"),
        ("OwnAdam", "state_per_micro_batch", ""),
        ("OwnAdam", "state_per_micro_batch_count", ""),
        ("OwnOptimizer", "lost_micro_batches", ""),
    ],
)
def test_a_fault_of_the_optimizer_needs_one_that_has_what_goes_wrong(
    name: str, fault: str, lacks: str, hook: Callable[[str, str], RunSpec]
) -> None:
    spec = hook(name, fault)
    if not lacks:
        assert trained(session(spec)) != trained(session(changed(spec, fault="none")))
        return
    with pytest.raises(UserError, match=f"the subject's class has an optimizer of its own, without {lacks}"):
        session(spec)
