"""The verdict: its codes by known shifts, its numbers by hand, and what its sentence must say."""

import math
from dataclasses import FrozenInstanceError

import numpy as np
import pandas as pd
import pytest

from accum_sweeps.analysis.verdict import Verdict, verdict
from accum_sweeps.plan.errors import UserError
from tests.analysis.roots import table

NOISE = np.array([0.3, -0.5, 0.1, 0.4, -0.3])
BASE = 2.0 + np.array([0.00, 0.03, -0.02, 0.01, 0.05])


def judged(frame: pd.DataFrame, **options: object) -> Verdict:
    [found] = verdict(frame, **options)  # type: ignore[arg-type]
    return found


def arms(**shifts: float) -> pd.DataFrame:
    """Reference k=1 with the seeds of BASE, and for ``k4=0.1`` an arm k=4 shifted by that, with paired noise of 1e-3."""
    return table({1: BASE.tolist()} | {int(name[1:]): (BASE + shift + 1e-3 * NOISE).tolist() for name, shift in shifts.items()})


def with_controls(frame: pd.DataFrame, spread: float, kind: str = "regroup") -> pd.DataFrame:
    """``frame`` and a control for each accumulated run: the same value with noise of ``spread`` of its own."""
    drawn = np.random.default_rng(0)
    twins = frame[frame["accum"] > 1]
    noise = spread * drawn.standard_normal(len(twins))
    return pd.concat([frame.assign(control="none"), twins.assign(control=kind, eval_loss_final=twins["eval_loss_final"] + noise)])


def test_no_shift_is_equivalent_and_says_what_is_excluded() -> None:
    found = judged(arms(k2=0.0, k4=0.0))
    assert found.code == "equivalent"
    assert found.sentence.startswith(
        "equivalent within margin: no shift detected at k=2 and 4; the 95 % intervals, each by itself, exclude "
    )
    assert "sigma_tot as estimated (" in found.sentence and "nats)" in found.sentence
    assert found.margin.source == "0.5 x the lower 95 % limit of the SD of the reference arm (5 seeds)"
    assert found.sentence.endswith(f"every shift within the margin of {found.margin.value:.2g} nats; rounding not assessed (no controls)")


def test_with_controls_of_the_same_spread_it_is_indistinguishable_from_rounding() -> None:
    noisy = arms(k2=0.0, k4=0.0, k8=0.0)
    drawn = np.random.default_rng(3)
    noisy["eval_loss_final"] += 1e-4 * drawn.standard_normal(len(noisy))
    found = judged(with_controls(noisy, 1e-2))
    assert found.control == "regroup" and found.code == "indistinguishable"
    assert found.sentence.startswith("indistinguishable from rounding: no shift detected at k=2, 4 and 8; ")
    assert "variance over accumulated runs in units of that over regroup controls: lambda 0." in found.sentence
    assert "rounding not assessed" not in found.sentence
    row = found.to_frame().iloc[0]
    assert 0 < row["lambda_low"] < row["lambda"] < row["lambda_high"] and row["lambda"] < row["lambda_upper"] <= 4


def test_runs_that_vary_more_than_their_controls_are_an_effect_without_any_shift() -> None:
    """The scale of the paired noise stays far below the seeds', so that equivalence would hold: then it is negligible."""
    drawn = np.random.default_rng(5)
    frame = arms(k2=0.0, k4=0.0, k8=0.0)
    frame["eval_loss_final"] += np.where(frame["accum"] > 1, 1e-3, 0) * drawn.standard_normal(len(frame))
    found = judged(with_controls(frame, 0.0).assign(eval_loss_final=lambda t: t["eval_loss_final"]))
    assert found.control == "regroup", "controls that equal their twins have the twins' variance"
    twins = frame[frame["accum"] > 1]
    calm = twins.assign(control="regroup", eval_loss_final=BASE[twins["seed"]] + 1e-5 * drawn.standard_normal(len(twins)))
    varied = judged(pd.concat([frame.assign(control="none"), calm]))
    assert varied.code == "negligible" and "accumulated runs vary more than their regroup controls do: lambda " in varied.sentence
    assert varied.decision is not None and varied.decision.dispersion_p < 0.05 and not any(a.is_detected for a in varied.compared.arms)  # type: ignore[union-attr]


def test_controls_of_two_kinds_are_never_mixed() -> None:
    frame = with_controls(arms(k2=0.0, k4=0.0, k8=0.0), 1e-3)
    some = with_controls(arms(k2=0.0, k4=0.0, k8=0.0), 9.0, "ulp_weights").query("control == 'ulp_weights' and seed < 4")
    both = judged(pd.concat([frame, some]))
    assert both.control == "regroup" and both.to_frame()["lambda"].equals(judged(frame).to_frame()["lambda"])
    assert judged(pd.concat([frame, some]), control="ulp_weights").to_frame()["lambda"].iloc[0] < 1e-3
    with pytest.raises(UserError, match=r"control='ulp_weight'.*did you mean ulp_weights"):
        verdict(frame, control="ulp_weight")


def test_chaos_asks_for_a_shorter_horizon_and_few_seeds_for_more() -> None:
    drawn = np.random.default_rng(1)
    chaotic = table({k: (2 + 0.02 * drawn.standard_normal(8)).tolist() for k in (1, 2, 4)})
    found = judged(with_controls(chaotic, 0.02))
    assert found.code == "inconclusive" and found.sentence.startswith("inconclusive: shorten the horizon: ")
    assert "differ by rounding alone differ by" in found.sentence
    alone = judged(chaotic)
    assert alone.code == "inconclusive" and "shorten" not in alone.sentence, "without controls it may be the accumulation that scatters"
    few = judged(table({1: BASE[:3].tolist(), 2: (BASE[:3] + 1e-3 * NOISE[:3]).tolist()}))
    assert few.code == "inconclusive" and few.sentence.startswith("inconclusive: 2 more seeds: ")
    assert "equivalence not judged (no margin: 3 finished runs in the reference arm, 5 are needed)" in few.sentence


def test_a_margin_from_an_earlier_sweep_of_other_seeds() -> None:
    earlier = arms(k2=0.0).assign(seed=lambda t: t["seed"] + 100)
    found = judged(arms(k2=0.0), earlier=earlier)
    assert found.margin.source.startswith("0.5 x the lower 95 % limit of the SD of an earlier sweep's reference arm")
    assert (
        judged(arms(k2=0.0), earlier=earlier.assign(setup_id="x")).margin.source == "no margin: the earlier sweep has no run of this setup"
    )
    with pytest.raises(UserError, match="seeds 0, 1, 2, 3, 4 are in both"):
        judged(arms(k2=0.0), earlier=arms(k2=0.0))


def test_q_is_adjusted_over_the_setups_that_are_judged_together() -> None:
    one = arms(k2=0.001)
    alone = judged(one).q
    [*_, last] = verdict(pd.concat([*(arms(k2=0.0).assign(setup_id=str(n)) for n in range(9)), one]))
    assert alone < 0.1 and last.q == pytest.approx(10 * alone) and last.code == judged(one).code


def test_sign_flip_replaces_t_where_it_can_reject() -> None:
    drawn = np.random.default_rng(2)
    base = 2 + 0.02 * drawn.standard_normal(10)
    frame = table({1: base.tolist(), 2: (base + 0.05 + 1e-3 * drawn.standard_normal(10)).tolist()})
    found = judged(frame, sign_flip=True)
    assert found.code == "effect" and found.to_frame()["p"].tolist() == [2**-9]
    with pytest.raises(UserError, match="can never reject"):
        judged(arms(k2=0.0), sign_flip=True)


def test_numbers_of_the_frame_by_hand() -> None:
    found = judged(table({1: [1.0, 2.0, 4.0], 2: [2.0, 2.5, 6.5]}))
    row = found.to_frame().iloc[0]
    half = 4.302652729749462 * math.sqrt(13 / 12 / 3)
    sigma = math.sqrt(7 / 3)
    assert row["shift"] == pytest.approx(4 / 3, rel=1e-14)
    assert row["shift_low"] == pytest.approx(4 / 3 - half, rel=1e-11) and row["shift_high"] == pytest.approx(4 / 3 + half, rel=1e-11)
    assert row["sigma_tot"] == pytest.approx(sigma, rel=1e-14)
    assert row["shift_sigma_high"] == pytest.approx((4 / 3 + half) / sigma, rel=1e-11)
    assert (row["reference"], row["accum"], row["pairs"], row["finished"], row["diverged"]) == (1, 2, 3, 3, 0)
    assert row["p_holm"] == pytest.approx(3 * row["p"]), "one shift, lambda, one divergence"


def test_a_shift_is_an_effect_that_names_its_arm() -> None:
    found = judged(arms(k2=0.0, k8=0.02))
    assert found.code == "effect"
    assert found.sentence.startswith("accumulation effect detected: shift against k=1 at k=8 (+0.020")
    assert "; no shift detected at k=2; " in found.sentence


def test_holm_guards_the_family() -> None:
    """All tests of a setup and response are one family: K - 1 shifts, lambda (made or not), K - 1 divergences."""
    frame = table({1: BASE.tolist(), 2: (BASE + 1e-3 * (NOISE + 0.8)).tolist()})
    [alone] = judged(frame).to_frame()["p"]
    assert judged(frame).to_frame()["p_holm"].tolist() == pytest.approx([3 * alone]) and alone < 0.05 / 3
    assert judged(frame).code == "negligible"
    family = pd.concat([frame, *(table({k: (BASE + 1e-3 * NOISE).tolist()}) for k in (4, 8))])
    assert 7 * alone > 0.05 and judged(family).code == "equivalent"


def test_identical_arms_are_said_to_be_identical() -> None:
    found = judged(table({k: BASE.tolist() for k in (1, 2, 4)}))
    assert found.code == "equivalent"
    assert found.sentence.startswith("equivalent within margin: exactly the value of k=1 at k=2 and 4 in all 5 pairs of runs; ")
    frame = found.to_frame()
    assert (frame[["shift", "shift_low", "shift_high", "shift_sigma", "shift_sigma_low", "shift_sigma_high"]] == 0).all(axis=None)


def test_seeds_that_change_nothing_give_no_unit_but_exact_zeros() -> None:
    found = judged(table({1: [2.0] * 3, 2: [2.0] * 3, 4: [2.0, 2.0, 2.5]}))
    zero, other = found.to_frame().to_dict("records")
    assert zero["sigma_tot"] == 0 and zero["shift_sigma"] == 0
    assert np.isnan(other["shift_sigma"]) and other["shift"] == pytest.approx(0.5 / 3)


def test_fewer_than_three_complete_seeds_are_not_assessable() -> None:
    found = judged(table({1: [1.0, 2.0, 3.0], 2: [1.0, 2.0, "running"]}))
    assert found.code == "not_assessable"
    assert found.reasons == ("complete seeds: 2 of 3, at least 3 are needed (seed 2 k=2 running)",)
    assert found.sentence == f"not assessable: {found.reasons[0]}"
    assert found.to_frame()["pairs"].tolist() == [2]


def test_an_arm_without_a_finished_run_is_not_assessable() -> None:
    found = judged(table({1: BASE.tolist(), 2: ["diverged"] * 5}))
    assert found.code == "not_assessable" and found.reasons == ("k=2 has no finished run (5 diverged)",)


def test_a_diverged_run_makes_its_seed_complete_and_is_reported() -> None:
    found = judged(table({1: BASE[:3].tolist(), 2: [2.0, 2.1, "diverged"]}))
    assert found.code == "inconclusive"
    assert "diverged of 3 seeds: 0 at k=1, 1 at k=2" in found.sentence
    assert found.to_frame()["pairs"].tolist() == [2]


def test_the_published_perplexities_of_one_seed_are_not_assessable() -> None:
    """One run each at accum 1, 2, 4 (open_lm pull request 125): the difference is a number, the verdict is not."""
    frame = table({1: [13.26832732791897], 2: [13.302758042158114], 4: [13.271497238202906]})
    found = judged(frame.rename(columns={"eval_loss_final": "eval_perplexity_final"}), response="eval_perplexity_final")
    assert found.code == "not_assessable" and found.unit == "nats"
    assert found.to_frame()["shift"].tolist() == pytest.approx([0.002592, 0.000239], abs=1e-6)


def test_one_accumulation_factor_leaves_nothing_to_compare() -> None:
    found = judged(table({4: BASE.tolist()}))
    assert found.reasons == ("all runs have k=4, there is nothing to compare",)
    assert found.to_frame().empty and found.compared is None


def test_the_reference_is_the_smallest_unless_told() -> None:
    assert judged(arms(k2=0.0)).reference == 1
    found = judged(arms(k4=0.1), reference=4)
    assert found.reference == 4 and found.to_frame()["shift"].tolist() == pytest.approx([-0.1], abs=1e-3)
    assert judged(arms(k4=0.1), reference=3).reasons == ("no run at the reference k=3 (there are k=1 and 4)",)


def test_with_a_margin_small_shifts_are_equivalent_or_negligible() -> None:
    assert judged(arms(k2=0.0, k4=0.0), margin=0.01).code == "equivalent"
    found = judged(arms(k2=0.0, k4=0.004), margin=0.01)
    assert found.code == "negligible" and "every shift within the margin of 0.01 nats" in found.sentence
    assert judged(arms(k2=0.0, k4=0.02), margin=0.01).code == "effect"
    wide = judged(arms(k2=0.0, k4=0.0), margin=1e-4)
    assert wide.code == "inconclusive" and "not shown to be within the margin of 0.0001 nats at k=2 and 4" in wide.sentence


def test_an_arm_that_diverges_more_often_is_an_effect_and_one_run_is_only_told() -> None:
    frame = table({1: (2 + 0.01 * np.arange(12)).tolist(), 2: [*(2 + 0.01 * np.arange(3)).tolist(), *["diverged"] * 9]})
    found = judged(frame, margin=0.5)
    assert found.code == "effect" and "more or less often than k=1 at k=2" in found.sentence
    one = table({1: BASE.tolist(), 2: [*(BASE[:4] + 1e-3 * NOISE[:4]).tolist(), "diverged"]})
    told = judged(one, margin=0.01)
    assert (
        told.code == "inconclusive"
        and "diverged of 5 seeds: 0 at k=1, 1 at k=2; in some seeds at k=2 alone or at k=1 alone" in told.sentence
    )
    both = table({1: [*BASE[:4].tolist(), "diverged"], 2: [*(BASE[:4] + 1e-3 * NOISE[:4]).tolist(), "diverged"]})
    assert judged(both, margin=0.01).code == "equivalent", "in the same seed it is no difference"


def test_controls_in_the_table_are_not_taken_for_missing() -> None:
    frame = pd.concat([arms(k2=0.0).assign(control="none"), arms(k2=0.5).assign(control="regroup")])
    found = judged(frame)
    assert found.code == "equivalent"
    assert found.sentence.endswith("rounding not assessed (1 accumulated arm, at least 2 are needed (K >= 3))")


def test_controls_of_one_setup_are_not_those_of_another() -> None:
    controls = arms(k2=0.5).assign(control="regroup", setup="other", setup_id="other")
    runs = arms(k2=0.0).assign(control="none")
    plain, other = verdict(pd.concat([runs, runs.assign(setup="other", setup_id="other"), controls]))
    assert plain.sentence.endswith("rounding not assessed (no controls)") and (plain.control, other.control) == ("", "regroup")


def test_mixed_environments_are_said() -> None:
    frame = pd.concat([arms(k2=0.0).assign(env_id="a"), table({4: [2.0]}, env_id="b")])
    found = judged(frame[(frame["accum"] != 4) | (frame["seed"] == 0)])
    assert found.code == "not_assessable" and "k=4 has no finished run (4 absent, 1 other environment)" in found.sentence
    some = pd.concat([arms(k2=0.0).assign(env_id="a"), arms(k4=0.0).query("accum == 4 and seed < 4").assign(env_id="a")])
    other = arms(k4=0.0).query("accum == 4 and seed == 4").assign(env_id="b")
    assert "arms of seed 4 were run in several environments" in judged(pd.concat([some, other])).sentence


def test_adding_a_constant_to_every_loss_changes_no_difference() -> None:
    frame = arms(k2=0.0, k4=0.003)
    moved = frame.assign(eval_loss_final=frame["eval_loss_final"] + 8.0)
    columns = ["shift", "shift_low", "shift_high", "difference_sd", "sigma_tot", "shift_sigma"]
    np.testing.assert_allclose(judged(moved).to_frame()[columns], judged(frame).to_frame()[columns], atol=1e-13)
    assert judged(moved).code == judged(frame).code


def test_a_perplexity_is_judged_as_its_logarithm() -> None:
    frame = arms(k2=0.0, k4=0.02)
    as_perplexity = frame.assign(eval_perplexity_final=np.exp(frame["eval_loss_final"]))
    loss, perplexity = judged(frame), judged(as_perplexity, response="eval_perplexity_final")
    assert (perplexity.unit, perplexity.code) == ("nats", loss.code)
    np.testing.assert_allclose(perplexity.to_frame()["shift"], loss.to_frame()["shift"], atol=1e-14)


def test_each_setup_has_its_verdict() -> None:
    found = verdict(pd.concat([arms(k2=0.0), arms(k2=0.02).assign(setup="other", setup_id="other")]))
    assert [each.code for each in found] == ["equivalent", "effect"]
    assert found.to_frame()["setup"].tolist() == ["lm", "other"]
    assert str(found).splitlines()[1].startswith("other: accumulation effect detected: shift against k=1 at k=2")


def test_results_are_frozen() -> None:
    found = judged(arms(k2=0.0))
    with pytest.raises(FrozenInstanceError):
        found.code = "equivalent"  # type: ignore[misc]


@pytest.mark.parametrize("margin", [0.0, -1.0, float("nan"), float("inf")])
def test_a_margin_must_be_positive_and_finite(margin: float) -> None:
    with pytest.raises(UserError, match="margin"):
        verdict(arms(k2=0.0), margin=margin)
