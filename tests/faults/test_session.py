"""Every fault in a training: it runs, differs from the correct run where it acts, and goes on from a checkpoint with the same bits."""

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


def test_a_step_of_the_users_own_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_step_of_a_user.py").write_text(
        "import torch\n\n\nclass Setup:\n"
        "    def build(self, config, seeds):\n        return torch.nn.Linear(2, 1)\n\n"
        "    def batch(self, step, seed):\n        return torch.ones(4, 2)\n\n"
        "    def loss(self, model, samples):\n        return model(samples).sum(), len(samples)\n\n"
        "    def step(self, model, optimizer, micro_batches):\n        return 1.0, 1\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    none = {"kind": "none", "name": "none"}
    subject = {"kind": "python", "name": "python", "target": "own_step_of_a_user:Setup"}
    spec = make_spec(subject=subject, model=none, data=none, global_batch=4, accum=2, fault="missing_division")
    with pytest.raises(UserError, match="fault=missing_division: the subject's class has a step of its own"):
        session(spec)
    assert len(trained(session(changed(spec, fault="none", steps=1)))) == 1
