"""measure=one_step as a run: what it records, that it tells rounding from its amplification, and what it refuses."""

from pathlib import Path
from typing import Any

import pytest

from accum_sweeps import subjects
from accum_sweeps.execute import Limits, execute
from accum_sweeps.ladder.one_step import OneStepSession
from accum_sweeps.plan.errors import ConfigError
from accum_sweeps.plan.parts import StandardLibrary
from accum_sweeps.plan.spec import RunSpec
from accum_sweeps.record.metrics import FINAL_UNITS, INTERVENTIONS, ONE_STEP_UNITS, UNITS
from accum_sweeps.record.store import open_root
from accum_sweeps.training.data import corpus
from accum_sweeps.training.loop import TrainingSession
from tests.specs import make_spec
from tests.training.toy import ToyTask

STEP: dict[str, Any] = {
    **{"measure": "one_step", "steps": 1, "probe_steps": [], "global_batch": 8, "data.lengths": "fixed", "data.seq_len": 16},
    **{"optimizer.max_norm": None, "optimizer.schedule": "constant", "optimizer.warmup_steps": 0, "optimizer.weight_decay": 0.033},
}


def step_spec(**change: Any) -> RunSpec:
    data = corpus.identify(make_spec().setup.data, 256)
    assert isinstance(data, StandardLibrary)
    return make_spec(**{**STEP, "data.hash": data.hash, **change})


def measured(spec: RunSpec) -> dict[str, float]:
    *signs, record = OneStepSession(spec).steps()
    assert all(sign.step == 0 and not sign.values for sign in signs) and record.step == 1
    return dict(record.values)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subjects, "session", lambda spec, folder, attempt: TrainingSession(spec, ToyTask(spec)))


@pytest.fixture(scope="module")
def adamw() -> dict[str, float]:
    return measured(step_spec(accum=4))


def test_every_metric_has_a_name_with_its_unit(adamw: dict[str, float]) -> None:
    assert set(adamw) <= {*ONE_STEP_UNITS, *UNITS}
    missing = set(ONE_STEP_UNITS) - set(adamw)
    # Two equal updates have no ratio to a prediction; this model has no buffers.
    assert missing == {"buffers_difference", "prediction_fp64_gradients"}


def test_adamw_amplifies_rounding_as_its_closed_form_says(adamw: dict[str, float]) -> None:
    assert 1e-8 < adamw["gradient_difference"] < 1e-6  # a few unit roundoffs of float32, 6e-8
    assert adamw["gain"] == adamw["update_difference"] / adamw["clipped_difference"] > 5
    assert adamw["soft_share"] > 0.9 and adamw["flip_share"] < 0.05
    assert adamw["prediction"] == pytest.approx(1, abs=0.05)  # the rest is the rounding of the updated weights
    assert (adamw["terms_difference"], adamw["tokens"], adamw["tensors"], adamw["parameters"]) == (0, 128, 15, 270_816)


@pytest.mark.parametrize("mean", ["sample", "micro_batch"])
def test_tokens_are_target_tokens_whatever_the_loss_is_a_mean_over(mean: str) -> None:
    assert measured(step_spec(accum=4, **{"subject.mean": mean}))["tokens"] == 128


def test_interventions_remove_the_amplification_or_its_cause(adamw: dict[str, float]) -> None:
    base = adamw["update_difference"]
    assert adamw["update_difference_eps_1e_4"] < base / 3
    assert adamw["update_difference_eps_1e_15"] < base / 3
    assert adamw["update_difference_frozen_tensor"] < base
    assert adamw["update_difference_fp64_accumulation"] > base / 3
    assert adamw["gradient_difference_fp64_gradients"] < 1e-14 and adamw["update_difference_fp64_gradients"] == 0
    assert all(f"gain_{name}" in adamw for name in INTERVENTIONS)


def test_accumulation_is_not_less_accurate_against_float64(adamw: dict[str, float]) -> None:
    # Both round differently: neither is the other's error. Measured ratio of the two 0.9 to 1.1, k up to 8.
    assert 0.5 < adamw["gradient_error"] / adamw["gradient_error_one_batch"] < 2
    assert adamw["gradient_difference"] < adamw["gradient_error"] + adamw["gradient_error_one_batch"]


def test_sgd_has_no_eps_to_intervene_on_and_passes_the_test_that_adamw_fails() -> None:
    sgd = {"kind": "sgd", "name": "sgd", "lr": 1e-3, "momentum": 0.0, "nesterov": False, "weight_decay": 0.0}
    found = measured(step_spec(accum=4, optimizer={**sgd, "max_norm": None, "schedule": "constant", "warmup_steps": 0}))
    assert found["weights_failing"] == 0 and found["weights_tolerance"] < 1e-7 and found["gradient_difference"] > 0
    assert not any(name.endswith(tuple(INTERVENTIONS)) for name in found)


def test_the_one_batch_against_itself_is_equal_to_the_last_bit() -> None:
    found = measured(step_spec())
    names = ("forward_moved", "gradient_moved", "weights_moved", "loss_difference", "update_difference", "gain")
    assert [found[name] for name in names] == [0] * len(names)


def test_float64_shows_that_only_rounding_differs() -> None:
    found = measured(step_spec(accum=4, dtype="fp64"))
    assert 0 < found["gradient_difference"] < 1e-14 and found["loss_difference"] < 1e-14
    assert "gain_eps_1e_4" in found and "gain_fp64_gradients" not in found


def test_a_mean_over_micro_batches_of_ragged_rows_is_another_gradient_in_float64_too() -> None:
    ragged = {"dtype": "fp64", "data.lengths": "uniform", "accum": 4}
    assert measured(step_spec(**ragged))["gradient_difference"] < 1e-14
    assert measured(step_spec(**ragged, subject={"kind": "lm", "name": "lm", "mean": "micro_batch"}))["gradient_difference"] > 0.01


def test_a_control_is_compared_with_the_plain_batch() -> None:
    found = measured(step_spec(control="permute"))
    assert found["gradient_difference"] > 0 and found["terms_difference"] == 0
    moved = measured(step_spec(control="ulp_weights"))
    assert 0 < moved["forward_difference"] < 1e-5


def test_a_key_bias_without_positions_counts_as_zero_but_for_rounding() -> None:
    found = measured(step_spec(accum=4, **{"model.attention_bias": True, "model.positions": "none"}))
    assert found["gradient_worst_tensor"] < 1e-5  # against its own norm the rounding of such a bias is of order 1


def test_clipping_makes_the_optimizers_gradient_another_one(toy: None) -> None:
    found = measured(make_spec(measure="one_step", accum=4, **{"optimizer.max_norm": 1e-3}))
    assert found["grad_norm"] > 1 and found["clipped_difference"] == pytest.approx(found["gradient_difference"], rel=1)
    assert found["gain"] == found["update_difference"] / found["clipped_difference"]


def test_large_models_get_no_float64_pass(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("accum_sweeps.ladder.one_step.LARGEST_IN_FP64", 5)
    found = measured(step_spec(accum=4))
    assert "gain_fp64_gradients" not in found and "gain_eps_1e_4" in found
    assert "no gradients in float64: they are for models of up to 5 parameters" in capsys.readouterr().out


def test_an_eps_that_half_precision_cannot_hold_is_told_as_weights_that_are_not_finite(capsys: pytest.CaptureFixture[str]) -> None:
    found = measured(step_spec(accum=2, dtype="fp16"))  # 1e-8 is 0 in float16, and rows of absent tokens have gradient 0: 0 / 0
    assert found["weights_not_finite"] > 0 and "gain" not in found
    assert found["update_difference_eps_1e_4"] > 0 and found["gradient_difference"] > 0
    assert "weights are not finite after the step" in capsys.readouterr().out


def test_users_own_optimizers_are_measured_without_closed_form_and_interventions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subjects, "session", lambda spec, folder, attempt: TrainingSession(spec, ToyTask(spec, own_lr=0.1)))
    found = measured(make_spec(measure="one_step", accum=4))
    assert found["lr"] == 0.1 and found["gradient_difference"] > 0
    assert "prediction" not in found and "gain_eps_1e_4" not in found


def test_it_is_a_run_with_final_values_and_a_log(tmp_path: Path) -> None:
    root = open_root(tmp_path, create=True)
    spec = step_spec(accum=4)
    run_dir = root.run_dir(spec.run_id, "0" * 12)
    assert execute(spec, run_dir, 1, {}, Limits()) == "finished"
    newest = run_dir.history().newest
    assert newest is not None and newest.final["steps"] == 1
    [point] = run_dir.history().points()
    assert {f"{name}_final" for name in point.values if name in ONE_STEP_UNITS} <= set(newest.final)
    assert newest.final["train_loss_final"] == point.values["train_loss"] and "eval_loss_final" not in newest.final
    assert set(newest.final) & set(FINAL_UNITS) >= {"steps", "wall_s", "tokens", "train_loss_final"}
    assert "the optimizer's eps at 1e-4: relative difference" in run_dir.log_path(1).read_text()


def test_stopped_before_its_end_it_starts_over_and_gives_the_same(toy: None, tmp_path: Path) -> None:
    root = open_root(tmp_path, create=True)
    spec = make_spec(measure="one_step", accum=4)
    run_dir = root.run_dir(spec.run_id, "0" * 12)
    answers = iter(["asked to", None])
    assert execute(spec, run_dir, 1, {}, Limits(stop=lambda: next(answers, None))) == "released"
    assert execute(spec, run_dir, 2, {}, Limits()) == "finished"
    [point] = run_dir.history().points()
    assert point.values == measured(spec)


def test_a_finished_steps_checkpoint_leaves_nothing_to_do(toy: None, tmp_path: Path) -> None:
    session = OneStepSession(make_spec(measure="one_step", accum=4))
    list(session.steps())
    session.save(tmp_path / "c.pt")
    again = OneStepSession(make_spec(measure="one_step", accum=4))
    assert again.load(tmp_path / "c.pt") == 1 and list(again.steps()) == []


def test_a_program_cannot_be_asked_for_one_step() -> None:
    with pytest.raises(ConfigError, match="weights and gradients"):
        make_spec(measure="one_step", subject={"kind": "command", "name": "command", "argv": ["x"]}, model={"kind": "none", "name": "none"})
