"""The study page of open_lm: the thread's claims, what is measured, what explains it. Every number is the sweep's or the thread's."""

import math

import numpy as np
import pandas as pd

from accum_sweeps.analysis.pair_tables import PairTables
from accum_sweeps.analysis.studies import open_lm_steps as steps_of
from accum_sweeps.analysis.studies import perplexities
from accum_sweeps.analysis.studies.markdown import number, share


def page(results: pd.DataFrame, tables: PairTables | None = None) -> str:
    """The study as Markdown, from the sweep's results. What the sweep lacks is left out, and so is what would follow from it.

    Differences of losses are in nats per token; relative differences are L2 norms of the difference over that of the one batch.
    """
    steps = steps_of.finished_steps(results)
    test = steps_of.of_test(steps)
    parts = ["# AdamW with accumulation against one batch: what do open_lm's tests see?\n"]
    parts += _section("The thread's tests", _TESTS, steps_of.thread_rows(test)) if len(test) else []
    parts += _section("The whole ladder of tolerances", "", steps_of.ladder(test)) if len(test) else []
    parts += _section("The same differences, free of scale", _scale(test), steps_of.relative(test)) if len(test) else []
    parts += _section("What the optimizer makes of it", _verdict(test), steps_of.amplification(test)) if len(test) else []
    parts += _section("Interventions (AdamW)", _INTERVENTIONS, steps_of.interventions(test)) if len(test) else []
    parts += _section("Which gradient is the more accurate?", _ERRORS, steps_of.errors(test)) if len(test) else []
    parts += _section("Rows of different lengths", _RAGGED, steps_of.ragged(steps)) if len(steps) else []
    parts += _section("The larger model", "", steps_of.large(steps)) if len(steps) else []
    parts += _section("Perplexities", "", perplexities.perplexity_table(results))
    parts += _section("How far apart equal runs end", _power(results), perplexities.differences(results))
    return "\n".join(parts)


_TESTS = (
    "`torch.allclose` at its default rtol of 1e-5: the smallest power of ten for atol that passes, over all k. The two last columns do "
    "not accumulate: they take the rows of the one batch in another order, or move every weight by one unit in the last place. "
    "open_lm's half-precision flags cast nothing outside FSDP, so that its rows may have been float32: both readings are given. The "
    "thread's word backward is read as the gradient."
)
_INTERVENTIONS = (
    "Each change alone, at the same weights, fed with what the two steps gave the optimizer. Where eps up and eps down both shrink the "
    "difference, the soft region |g| < 10 eps makes it; where eps down does not, sign flips of gradients below the noise do. Gradients "
    "in float64 remove the cause. Summing the micro-batches in float64 does not: each was rounded before."
)
_ERRORS = (
    "Relative difference of the whole gradient from the one-batch gradient in float64. A ratio near 1 says that accumulation is as "
    "accurate as one batch, below 1 that it is more so: neither side of the comparison is the truth."
)
_RAGGED = (
    "With full rows both means are the same. With ragged rows the mean of micro-batches' means weighs tokens by the micro-batch they "
    "stand in: another gradient, whatever the precision."
)


def _section(title: str, words: str, body: str) -> list[str]:
    return [f"## {title}\n", *([f"{words}\n"] if words else []), body] if body else []


def _scale(test: pd.DataFrame) -> str:
    """Why an absolute tolerance ranks outputs, gradient and weights: their sizes."""
    rows = steps_of.base(test)
    rows = rows[rows["dtype"] == "fp32"]
    if rows.empty:
        return ""
    row = rows.iloc[0]
    sizes = [number(row[f"{name}_size"], 2) for name in ("forward", "gradient", "weights")]
    return (
        f"An absolute tolerance compares quantities of different size: outputs are {sizes[0]}, gradients {sizes[1]}, weights {sizes[2]} "
        "(root mean squares, fp32). A gradient passes a smaller atol because it is smaller, not because it is more precise; the relative "
        "differences tell. A cut that leaves a row out of the table leaves all bits equal."
    )


def _verdict(test: pd.DataFrame) -> str:
    """Who fails the test, accumulation or not."""
    rows = steps_of.base(test)
    rows = rows[rows["dtype"] == "fp32"]
    adam, sgd = (rows[rows["optimizer"] == name] for name in ("adamw", "sgd"))
    cut, permuted = steps_of.cuts(adam), adam[adam["control"] == "permute"]
    parts = []
    if len(cut):
        soft, missed = float(cut["soft_share"].min()), float((cut["prediction"] - 1).abs().max())
        parts.append(
            f"fp32, AdamW: {_span(cut['weights_failing'])} elements fail at atol 1e-7 with accumulation; {share(soft)} or more of the "
            "squared difference is from |g| < 10 eps, and lr x [h(g) - h(g')] with h(x) = x / (|x| + eps) predicts its size to within "
            f"{share(missed)}."
        )
    if len(permuted):
        parts.append(
            f"The rows of the one batch in another order, without accumulation: {_span(permuted['weights_failing'])} elements fail."
        )
    if len(permuted) and float(permuted["weights_failing"].min()) > 0:
        parts.append("The test rejects a change of summation order, so that its failure says nothing about accumulation.")
    if len(sgd):
        parts.append(
            f"SGD: {_span(steps_of.cuts(sgd)['weights_failing'])} elements fail; lr x |g - g'| is below the last place of a weight, "
            "so that the updates differ by the rounding of the new weights: the closed form, which leaves that out, is far too small."
        )
    return " ".join(parts)


def _span(values: "pd.Series[float]") -> str:
    if values.empty:
        return "no"
    low, high = float(values.min()), float(values.max())
    return f"{low:.0f}" if low == high else f"{low:.0f} to {high:.0f}"


def _power(results: pd.DataFrame) -> str:
    """What the thread's four numbers can show, and what the trainings here do."""
    thread = perplexities.thread_losses()
    across = max(thread[k, "a"] for k in (1, 2, 4)) - min(thread[k, "a"] for k in (1, 2, 4))
    rerun = abs(thread[4, "b"] - thread[4, "a"])
    parts = [
        f"Nats per token. The thread has one run for each k: {number(across, 2)} nats apart at most, against {number(rerun)} between two "
        "runs of k = 4 that are called identical. One run each gives no variance: no evidence of an effect of k, and no power to see one "
        "below the size of that rerun."
    ]
    runs = perplexities.by_kind(results)
    ks = sorted({k for k, control, replicate in runs if control == "none" and replicate == 0})
    losses = np.array(list(runs[ks[0], "none", 0].values())) if ks else np.zeros(0)
    if len(losses) > 1 and len(ks) > 1:
        apart = [np.sqrt(np.mean(perplexities.apart_by_seed(runs, (k, "none", 0), (ks[0], "none", 0)) ** 2)) for k in ks[1:]]
        shares = float(np.max(apart)) / float(losses.std(ddof=1)) if losses.std(ddof=1) else math.nan
        parts.append(
            f"Here, on a small model, accumulation moves the final loss by up to {share(shares)} of the SD over seeds (root mean square "
            "over seeds, largest over k); the controls change nothing but rounding and are the scale to hold that against."
        )
    if any(replicate for _, _, replicate in runs):
        parts.append("A rerun of one program on one CPU repeats every bit; the thread's rerun, on GPUs, did not.")
    return " ".join(parts)
