"""acs.audit: what it takes, what it gives back, and that it fails a test suite on wrong code and on nothing else."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import accum_sweeps as acs
from accum_sweeps.auditing import AccumulationError, Audits
from accum_sweeps.plan.errors import ConfigError, UserError
from tests.faults.subjects import lm_spec

CALLS: list[str] = []


class Right:
    """Eight rows of a regression, of which each counts as many terms as its last column says; trained by the product's own step."""

    def __init__(self, rows: int = 8) -> None:
        self.rows = rows
        CALLS.append("made")

    def build(self, config: Any, seeds: Any) -> nn.Module:
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))

    def batch(self, step: int, seed: int) -> Any:
        generator = torch.Generator().manual_seed(1000 * seed + step)
        return torch.randn(self.rows, 4, generator=generator), torch.arange(self.rows) + 1

    def loss(self, model: Any, samples: Any) -> tuple[Tensor, Any]:
        rows, terms = samples
        return (terms * (model(rows[:, :3]) - rows[:, 3:]).squeeze(-1) ** 2).sum(), terms.sum()


class MeanOfMeans(Right):
    """A loop as many people write it: right where all micro-batches hold as many terms, wrong on these."""

    def step(self, model: Any, optimizer: Any, micro_batches: list[Any]) -> tuple[float, float]:
        optimizer.zero_grad()
        losses, terms = 0.0, 0.0
        for micro_batch in micro_batches:
            total, count = self.loss(model, micro_batch)
            (total / count / len(micro_batches)).backward()
            losses, terms = losses + float(total.detach()), terms + float(count)
        optimizer.step()
        return losses, terms


class OutOfReach(Right):
    """A loop that never calls the optimizer: there is no update to compare."""

    def step(self, model: Any, optimizer: Any, micro_batches: list[Any]) -> tuple[float, float]:
        return 1.0, 1.0


class NeedsArguments(Right):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width


class WithoutLoss:
    build, batch = Right.build, Right.batch


class Broken(Right):
    def build(self, config: Any, seeds: Any) -> nn.Module:
        raise RuntimeError("no network today")


@pytest.fixture(scope="module")
def right() -> Audits:
    return acs.audit(Right(), accum=[1, 4])


@pytest.fixture(scope="module")
def wrong() -> Audits:
    return acs.audit(MeanOfMeans(), accum=(1, 2, 4))


# --- what it gives back --------------------------------------------------------------------------------------------------


def test_right_code_passes_and_the_audit_comes_back(right: Audits) -> None:
    assert right.raise_for_fault() is right
    assert (right.faults, right.answers) == ((), {1: "rounding", 4: "rounding"})
    assert [each["label"] for each in right.found] == ["Right", "Right"]


def test_a_fault_is_found_at_the_factors_at_which_it_acts(wrong: Audits) -> None:
    assert wrong.answers == {1: "rounding", 2: "mean_of_means", 4: "mean_of_means"}
    assert wrong.faults == ("mean_of_means",), "each class once"


def test_the_error_is_an_assertion_whose_message_is_the_page_of_all_factors(wrong: Audits) -> None:
    with pytest.raises(AccumulationError) as raised:
        wrong.raise_for_fault()
    assert isinstance(raised.value, AssertionError) and str(raised.value) == f"\n{wrong}"
    lines = [line.strip() for line in str(wrong).splitlines()]
    assert [line for line in lines if line.startswith("MeanOfMeans, k=")] == [
        f"MeanOfMeans, k={k} against one batch, fp32" for k in (1, 2, 4)
    ]
    assert (
        lines.count("Wrong: mean_of_means.") == 2
        and "each micro-batch's own mean counts 1/4 although their numbers of terms differ" in lines
    )


def test_a_loop_whose_update_cannot_be_seen_does_not_pass() -> None:
    audits = acs.audit(OutOfReach(), accum=2)
    assert (audits.answers, audits.faults) == ({2: "not_observable"}, ())
    with pytest.raises(AccumulationError, match="makes no update by the optimizer"):
        audits.raise_for_fault()
    assert audits.to_frame().empty and "value" in audits.to_frame(), "no rung was reached, and the columns are there"


def test_a_row_for_each_rung_and_factor_has_the_figures_of_the_page(right: Audits, wrong: Audits) -> None:
    frame = wrong.to_frame()
    assert list(frame.columns) == ["accum", "answer", "number", "name", "measure", "value", "floor"]
    assert len(frame) == sum(len(each["rungs"]) for each in wrong.found) and set(frame["number"]) == set(range(10))
    gradient = frame[frame["name"] == "gradient"]
    above = dict(zip(gradient["accum"], gradient["value"] > 1e3 * gradient["floor"], strict=True))
    assert above == {1: False, 2: True, 4: True}, "at k=1 it is one batch against one batch"
    assert dict(zip(gradient["accum"], gradient["answer"], strict=True)) == wrong.answers
    clean = right.to_frame()
    assert (clean["value"] <= clean["floor"]).all(), "nothing is above rounding where the code is right"


def test_the_same_audit_gives_the_same_figures(right: Audits) -> None:
    [again] = acs.audit(Right(), accum=4).found
    assert again == right.found[1]


# --- what it takes ---------------------------------------------------------------------------------------------------------


def test_a_class_is_made_once_an_object_is_taken_as_it_is_and_a_target_is_imported(
    wrong: Audits, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    CALLS.clear()
    assert acs.audit(MeanOfMeans).found == wrong.found[2:] and CALLS == ["made"], "accum is 4 unless given"
    code = "from tests.test_auditing import MeanOfMeans\n\n\nclass Theirs(MeanOfMeans):\n    pass\n"
    (tmp_path / "their_training.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    imported = acs.audit("their_training:Theirs", accum=2)
    del sys.modules["their_training"]
    assert imported.answers == {2: "mean_of_means"} and imported.found[0]["label"] == "Theirs"


def test_a_run_of_a_sweep_is_audited_with_its_own_settings_at_each_factor() -> None:
    audits = acs.audit(lm_spec("missing_division"), accum=[1, 2])
    assert (audits.answers, audits.faults) == ({1: "rounding", 2: "missing_division"}, ("missing_division",))
    assert {(each["label"], each["dtype"]) for each in audits.found} == {("lm", "fp64")}


def test_settings_reach_the_training_and_a_fault_among_them_the_code_under_test_alone() -> None:
    adam = {"kind": "adam", "name": "adam", "lr": 1e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.0}
    adam |= {"max_norm": 0.01, "schedule": "cosine", "warmup_steps": 2}
    [one] = acs.audit(Right(), accum=2, dtype="amp_bf16", optimizer=adam, seed=3, fault="missing_division+clip_per_micro_batch").found
    assert one["dtype"] == "amp_bf16"
    assert one["diagnosis"]["names"] == ["missing_division", "clip_per_micro_batch"], "clipped as the optimizer's settings say"


def test_a_factor_may_come_from_numpy_and_given_twice_is_audited_once() -> None:
    assert acs.audit(Right(), accum=np.array([2, 2])).answers == {2: "rounding"}


REFUSED_FACTORS: dict[str, Any] = {"none": [], "zero": 0, "negative": [2, -4], "text": "4", "real": 2.0, "truth": True}


@pytest.mark.parametrize("case", REFUSED_FACTORS)
def test_a_factor_that_is_no_count_is_refused(case: str) -> None:
    with pytest.raises(ConfigError) as raised:
        acs.audit(Right(), accum=REFUSED_FACTORS[case])
    assert raised.value.key == "accum" and raised.value.allowed.startswith(("must be a whole number of at least 1", "must hold"))


def test_a_factor_that_does_not_divide_is_told_with_those_that_do_before_any_other_climbs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accum_sweeps.ladder.audit.audit", lambda bench, label: pytest.fail("it climbs"))
    with pytest.raises(UserError, match=r"accum=4 does not divide the 6 samples of a batch\n.*: 1, 2, 3, 6\."):
        acs.audit(Right(rows=6), accum=[2, 4])
    with pytest.raises(UserError, match=r"accum=1 does not divide the 0 samples of a batch\n  Let batch return samples\."):
        acs.audit(Right(rows=0), accum=1)
    with pytest.raises(ConfigError, match="possible: 1, 2, 4, 8") as raised:
        acs.audit(lm_spec("none"), accum=[2, 3])
    assert (raised.value.key, raised.value.value) == ("accum", 3)


REFUSED_SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "dtype": ({"dtype": "fp33"}, "amp_bf16, amp_fp16, bf16, fp16, fp32, fp64.* did you mean fp32"),
    "seed": ({"seed": -1}, "at least 0"),
    "fault": ({"fault": "missing_divison"}, "did you mean missing_division"),
    "accumulatr": ({"accumulatr": "fp32"}, "there is no such key; .* did you mean accumulator"),
    "optimizer": ({"optimizer": "adamw"}, "must hold settings as in conf/optimizer, for example .*'kind': 'sgd'"),
    "optimizer.kind": ({"optimizer": {"kind": "adan"}}, "must be one of adam, adamw, .* did you mean adam"),
    "threads": ({"threads": 0}, "at least 1"),
}


@pytest.mark.parametrize("key", REFUSED_SETTINGS)
def test_a_setting_that_cannot_be_is_refused_with_its_key_and_what_is_allowed(key: str) -> None:
    settings, allowed = REFUSED_SETTINGS[key]
    with pytest.raises(ConfigError, match=allowed.replace(" did you", r" \(did you")) as raised:
        acs.audit(Right(), accum=2, **settings)
    assert raised.value.key == key


@pytest.mark.parametrize("settings", [{"dtype": "bf16"}, {"seed": 1}, {"optimizer": {}}, {"accumulator": "fp32"}])
def test_settings_beside_a_run_that_has_its_own_are_refused_and_not_forgotten(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="has no effect on a RunSpec") as raised:
        acs.audit(lm_spec("none"), accum=2, **settings)
    assert raised.value.key == next(iter(settings))


REFUSED_TRAININGS: dict[str, tuple[Any, str]] = {
    "no training": (3, "class int has no method build"),
    "no loss": (WithoutLoss, "class WithoutLoss has no method loss\n.*def loss"),
    "arguments": (NeedsArguments, "class NeedsArguments cannot be made without arguments: .*'width'\n.*Give an object of it"),
    "no target": ("tests.test_auditing", "must be module:Class"),
    "no module": ("tests.test_audition:Right", "there is no module tests.test_audition"),
    "no class": ("tests.test_auditing:Rigth", "Rigth is not there in .*\n.*did you mean Right"),
}


@pytest.mark.parametrize("case", REFUSED_TRAININGS)
def test_what_is_no_training_is_told_with_what_to_write_instead(case: str) -> None:
    training, words = REFUSED_TRAININGS[case]
    with pytest.raises(UserError, match=words):
        acs.audit(training)


def test_a_class_that_needs_arguments_is_audited_as_an_object() -> None:
    assert acs.audit(NeedsArguments(3), accum=2).raise_for_fault().answers == {2: "rounding"}


# --- what it leaves behind -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hook", [Right, Broken])
def test_torch_has_as_many_threads_afterwards_and_as_many_as_were_asked_for_meanwhile(hook: type, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    build = hook.build  # type: ignore[attr-defined]

    def counting(self: Any, config: Any, seeds: Any) -> nn.Module:
        seen.append(torch.get_num_threads())
        made: nn.Module = build(self, config, seeds)
        return made

    monkeypatch.setattr(hook, "build", counting)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        if hook is Broken:
            with pytest.raises(Exception, match="no network today"):
                acs.audit(hook(), accum=2, threads=2)
        else:
            acs.audit(hook(), accum=2, threads=2)
        assert set(seen) == {2} and torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
