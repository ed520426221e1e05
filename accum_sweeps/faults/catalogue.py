"""The faulty steps by name; what the names mean and need is in ``plan.faults``."""

import functools

from accum_sweeps.faults import auxiliary, clipping, division, logs, lost, low_precision, over_ranks, pairs, schedule, state, windows
from accum_sweeps.faults.case import Case, Faulty, Maker
from accum_sweeps.training.task import Step

STEPS: dict[str, Faulty] = {
    "mean_of_means": division.mean_of_means,
    "mean_of_means_over_ranks": over_ranks.mean_of_means_over_ranks,
    "missing_division": division.missing_division,
    "double_division": division.double_division,
    "wrong_divisor": division.wrong_divisor,
    "wrong_divisor_terms": division.wrong_divisor_terms,
    "clip_per_micro_batch": clipping.clip_per_micro_batch,
    "clip_each_micro_batch": clipping.clip_each_micro_batch,
    "schedule_per_micro_batch": schedule.schedule_per_micro_batch,
    "short_window": windows.short_window,
    "dropped_window": windows.dropped_window,
    "lost_micro_batches": lost.lost_micro_batches,
    "lost_micro_batches_first": lost.lost_micro_batches_first,
    "lost_micro_batches_gated": lost.lost_micro_batches_gated,
    "reweighted_buffer": lost.reweighted_buffer,
    "wrong_sync": over_ranks.wrong_sync,
    "replay_randomness": auxiliary.replay_randomness,
    "auxiliary_scale": auxiliary.auxiliary_scale,
    "accumulator_dtype": low_precision.accumulator_dtype,
    "loss_scaling": low_precision.loss_scaling,
    "loss_scaling_clip": low_precision.loss_scaling_clip,
    "loss_scaling_overflow": low_precision.loss_scaling_overflow,
    "state_per_micro_batch": state.state_per_micro_batch,
    "state_per_micro_batch_ema": state.state_per_micro_batch_ema,
    "state_per_micro_batch_count": state.state_per_micro_batch_count,
    "reporting": logs.reporting,
    "reporting_scaled": logs.reporting_scaled,
    "missing_division+clip_per_micro_batch": pairs.missing_division_clip_per_micro_batch,
    "missing_division+schedule_per_micro_batch": pairs.missing_division_schedule_per_micro_batch,
    "missing_division+reporting": pairs.missing_division_reporting,
    "mean_of_means+reporting": pairs.mean_of_means_reporting,
    "mean_of_means+clip_per_micro_batch": pairs.mean_of_means_clip_per_micro_batch,
    "mean_of_means+schedule_per_micro_batch": pairs.mean_of_means_schedule_per_micro_batch,
    "mean_of_means+short_window": pairs.mean_of_means_short_window,
    "double_division+state_per_micro_batch": pairs.double_division_state_per_micro_batch,
    "lost_micro_batches+reporting": pairs.lost_micro_batches_reporting,
    "accumulator_dtype+wrong_divisor_terms": pairs.accumulator_dtype_wrong_divisor_terms,
}
# Steps that remember something between two optimizer steps.
MAKERS: dict[str, Maker] = {
    "merged_window": windows.MergedWindow,
    "early_step": windows.EarlyStep,
    "resume_inside_window": logs.ResumeInsideWindow,
}


def faulty_step(case: Case) -> Step:
    """The optimizer step with the fault that ``case.spec`` names. Raises KeyError for a name that is not in the catalogue."""
    name = case.spec.setup.fault
    return MAKERS[name](case) if name in MAKERS else functools.partial(STEPS[name], case)
