"""Faults in the built-in subjects: what needs their loss, their padding or their gradient caching, in float64."""

import dataclasses
from typing import Any

import pytest

from accum_sweeps.plan.parts import LanguageModel
from accum_sweeps.plan.spec import RunSpec
from tests.faults.subjects import cached_spec, first_step, lm_spec
from tests.faults.toy import Seen, apart, changed

ROUNDING = 1e-13  # sums over some thousand float64 products in another order: measured 2e-15


def seen(spec: RunSpec, **settings: Any) -> Seen:
    """The first step with these settings, which no plan has to allow."""
    return first_step(changed(spec, **settings))


def without_auxiliary(spec: RunSpec) -> LanguageModel:
    """The subject of ``spec`` at coefficient 0."""
    assert isinstance(spec.setup.subject, LanguageModel)
    return dataclasses.replace(spec.setup.subject, z_loss=0.0)


def test_padding_in_the_divisor_makes_the_gradient_too_short_at_every_k() -> None:
    for k in (1, 4):
        spec = lm_spec("wrong_divisor", accum=k)
        faulty, correct = seen(spec), seen(spec, fault="none")
        terms, places = correct.outcome.terms, 8 * 12
        assert 0 < terms < places  # ragged rows
        assert apart(faulty.gradient, correct.gradient * terms / places) < ROUNDING
        assert faulty.outcome.loss == pytest.approx(correct.outcome.loss * terms / places, rel=1e-12)
        half = seen(lm_spec("wrong_divisor", accum=k, fault_strength=0.5))
        assert apart(half.gradient, correct.gradient * terms / (0.5 * (terms + places))) < ROUNDING


def test_full_rows_have_no_padding_to_count() -> None:
    spec = lm_spec("none", **{"data.lengths": "fixed"})
    assert apart(seen(spec, fault="wrong_divisor").gradient, seen(spec).gradient) == 0


@pytest.mark.parametrize(("strength", "factor"), [(None, 4), (2.5, 2.5)])
def test_the_auxiliary_term_counts_k_times(strength: float | None, factor: float) -> None:
    spec = lm_spec("auxiliary_scale", fault_strength=strength)
    plain = without_auxiliary(spec)
    main, both = seen(spec, fault="none", subject=plain).gradient, seen(spec, fault="none").gradient
    faulty = seen(spec).gradient
    assert apart(faulty, main + factor * (both - main)) < ROUNDING
    assert apart(faulty, both) > 1e-2
    assert apart(faulty - both, (factor - 1) * (both - main)) < 1e-12  # it lies along the auxiliary gradient


def test_without_a_coefficient_or_in_one_batch_the_auxiliary_term_is_right() -> None:
    spec = lm_spec("auxiliary_scale")
    plain = without_auxiliary(spec)
    assert apart(seen(spec, subject=plain).gradient, seen(spec, fault="none", subject=plain).gradient) == 0
    one = lm_spec("auxiliary_scale", accum=1)
    assert apart(seen(one).gradient, seen(one, fault="none").gradient) == 0


def test_the_second_pass_of_gradient_caching_draws_other_masks() -> None:
    spec = cached_spec("replay_randomness")
    faulty, correct = seen(spec), seen(spec, fault="none")
    assert faulty.outcome.loss == pytest.approx(correct.outcome.loss, rel=1e-14)
    assert apart(faulty.gradient, correct.gradient) > 1e-2
    assert apart(seen(spec).gradient, faulty.gradient) == 0  # reruns are equal
    one = cached_spec("replay_randomness", accum=1)
    assert apart(seen(one).gradient, seen(one, fault="none").gradient) > 1e-2


def test_without_dropout_the_second_pass_is_the_first() -> None:
    spec = cached_spec("none", **{"model.dropout": 0.0})
    assert apart(seen(spec, fault="replay_randomness").gradient, seen(spec).gradient) < ROUNDING


@pytest.mark.parametrize(
    ("fault", "factor"), [("missing_division", 4), ("double_division", 0.25), ("wrong_divisor_terms", 8 / 9), ("reporting", 1)]
)
def test_with_gradient_caching_the_members_add_up_to_the_gradient_of_the_whole_loss(fault: str, factor: float) -> None:
    spec = cached_spec(fault)
    faulty, correct, one = seen(spec), seen(spec, fault="none"), seen(cached_spec("none", accum=1))
    assert apart(correct.gradient, one.gradient) < ROUNDING
    assert apart(faulty.gradient, factor * correct.gradient) < ROUNDING


def test_with_gradient_caching_lost_micro_batches_take_the_temperature_along() -> None:
    spec = cached_spec("lost_micro_batches")
    faulty, correct = seen(spec), seen(spec, fault="none")
    assert 0.3 < apart(faulty.gradient, correct.gradient) < 2
    # The first parameter; its gradient was there before the second pass began.
    assert float(faulty.gradient[0]) == 0 != float(correct.gradient[0])


def test_the_short_last_window_of_an_epoch_is_too_short_by_its_share() -> None:
    spec = lm_spec("short_window")
    correct = first_step(changed(spec, fault="none"), 2)
    assert apart(first_step(spec, 2).gradient, 0.75 * correct.gradient) < ROUNDING
    assert apart(first_step(spec, 1).gradient, first_step(changed(spec, fault="none"), 1).gradient) < 1e-15
    assert first_step(lm_spec("dropped_window"), 2).clipped == []
