"""The single optimizer steps of the study of open_lm: which tolerance they pass, how far they differ, what the optimizer makes of it."""

import math
from collections.abc import Hashable, Iterator, Mapping

import pandas as pd

from accum_sweeps.analysis.one_step import is_one_step
from accum_sweeps.analysis.studies.markdown import number, power_of_ten, share, table, thread_figures
from accum_sweeps.record.metrics import INTERVENTIONS

DTYPES = ("fp32", "bf16", "fp16")
_SETTINGS = ("dtype", "model.layers", "model.norm")
_WORDS = {"forward": "outputs", "backward": "gradient", "weights_after_one_step": "weights after the step"}
_METRIC = {"forward": "forward", "backward": "gradient", "weights_after_one_step": "weights"}


def finished_steps(results: pd.DataFrame) -> pd.DataFrame:
    """The finished one-step rows with their metrics under the metrics' own names; ``cut`` says what was done to the batch."""
    rows = results[is_one_step(results) & (results["status"] == "finished")]
    steps = rows.rename(columns={name: str(name).removesuffix("_final") for name in rows.columns})
    return steps.assign(cut=[_cut(k, control) for k, control in zip(steps["accum"], steps["control"], strict=True)])


def _cut(accum: int, control: str) -> str:
    words = {"none": "", "permute": "rows permuted", "ulp_weights": "weights moved by one ULP"}.get(control, control)
    return ", ".join(part for part in (f"k={accum}" if accum > 1 or not words else "", words) if part)


def of_test(steps: pd.DataFrame) -> pd.DataFrame:
    """The steps of the model that most steps were made of, with full rows and the token mean: those of open_lm's test."""
    if steps.empty:
        return steps
    full = steps[(steps["subject.mean"] == "token") & (steps["data.lengths"] == "fixed")]
    return pd.DataFrame(full[full["model"] == steps["model"].mode()[0]])


def cuts(steps: pd.DataFrame) -> pd.DataFrame:
    """The steps with accumulation, without a control."""
    return steps[(steps["accum"] > 1) & (steps["control"] == "none")]


def base(steps: pd.DataFrame) -> pd.DataFrame:
    """All layers, norm on."""
    return pd.DataFrame(steps[(steps["model.layers"] == steps["model.layers"].max()) & (steps["model.norm"] != "none")])


def passing(steps: pd.DataFrame, metric: str) -> str:
    """The smallest power of ten at which all ``steps`` pass torch.allclose."""
    if steps.empty or steps[f"{metric}_tolerance"].isna().all():
        return ""
    return power_of_ten(float(steps[f"{metric}_tolerance"].max()), bool((steps[f"{metric}_moved"] == 0).all()))


def thread_rows(steps: pd.DataFrame) -> str:
    """The thread's claims beside what is measured: in the dtype they name, and in float32, which those rows may have been."""
    rows = []
    for claim in thread_figures("open_lm_tolerances.csv").to_dict("records"):
        chosen = steps if claim["optimizer"] == "" else steps[steps["optimizer"] == claim["optimizer"]]
        layers = steps["model.layers"].max() if claim["layers"] == "all" else int(claim["layers"])
        chosen = chosen[(chosen["model.layers"] == layers) & ((chosen["model.norm"] != "none") == (claim["norm"] == "on"))]
        metric, own = _METRIC[claim["what"]], chosen[chosen["dtype"] == claim["dtype"]]
        uncast = chosen[chosen["dtype"] == "fp32"] if claim["dtype"] != "fp32" else chosen[:0]
        controls = [passing(own[own["control"] == control], metric) for control in ("permute", "ulp_weights")]
        words = f"{claim['dtype']}, {claim['layers']} layers, norm {claim['norm']}, {claim['optimizer']}".removesuffix(", ")
        rows.append([_WORDS[claim["what"]], words, _claimed(claim), passing(cuts(own), metric), passing(cuts(uncast), metric), *controls])
    head = [
        "what",
        "setting",
        "the thread",
        "measured: passes from",
        "uncast reading (fp32)",
        "rows permuted, k=1",
        "one ULP on the weights, k=1",
    ]
    return table(head, rows)


def _claimed(claim: Mapping[Hashable, object]) -> str:
    parts = [f"passes {claim['passes_at']}" if claim["passes_at"] else "", f"fails {claim['fails_at']}" if claim["fails_at"] else ""]
    return ", ".join(part for part in parts if part)


def ladder(steps: pd.DataFrame) -> str:
    """The whole ladder: a row for each dtype, depth and norm; the smallest passing power of ten over all k."""
    rows = []
    for (dtype, layers, norm), chosen in _settings(cuts(steps)):
        by_optimizer = [passing(chosen[chosen["optimizer"] == name], "weights") for name in ("sgd", "adamw")]
        ks = ", ".join(map(str, sorted(chosen["accum"].unique())))
        rows.append([dtype, str(layers), norm, ks, passing(chosen, "forward"), passing(chosen, "gradient"), *by_optimizer])
    return table(["dtype", "layers", "norm", "k", "outputs", "gradient", "weights after SGD", "weights after AdamW"], rows)


def _settings(steps: pd.DataFrame) -> Iterator[tuple[tuple[str, int, str], pd.DataFrame]]:
    found = {(str(d), int(layers), str(norm)) for d, layers, norm in zip(*(steps[name] for name in _SETTINGS), strict=True)}
    for dtype, layers, norm in sorted(found, key=lambda key: (DTYPES.index(key[0]) if key[0] in DTYPES else len(DTYPES), -key[1], key[2])):
        is_it = (steps["dtype"] == dtype) & (steps["model.layers"] == layers) & (steps["model.norm"] == norm)
        yield (dtype, layers, norm), steps[is_it]


def relative(steps: pd.DataFrame) -> str:
    """Absolute tolerance, size and relative difference of outputs, gradient and weights, of one cut a dtype."""
    rows = []
    for dtype in DTYPES:
        for cut, chosen in base(steps)[base(steps)["dtype"] == dtype].groupby("cut", sort=False):
            sgd = chosen[chosen["optimizer"] == "sgd"]
            row = (sgd if len(sgd) else chosen).iloc[0]
            if row["weights_moved"] == 0:
                continue
            for metric in ("forward", "gradient", "weights"):
                values = (row[f"{metric}_{part}"] for part in ("tolerance", "size", "difference"))
                rows.append([dtype, str(cut), {"forward": "outputs"}.get(metric, metric), *map(number, values)])
    return table(["dtype", "cut", "what", "atol needed", "root mean square", "relative difference"], rows)


def amplification(steps: pd.DataFrame) -> str:
    """What each optimizer makes of the difference between two gradients."""
    rows = []
    for (optimizer, dtype, cut), chosen in base(steps).groupby(["optimizer", "dtype", "cut"], sort=False):
        row = chosen.iloc[0]
        shares = [share(row["soft_share"]), share(row["flip_share"])] if optimizer != "sgd" else ["", share(row["flip_share"])]
        failing = f"{row['weights_failing']:.0f} in {row['weights_failing_tensors']:.0f} of {row['tensors']:.0f}"
        if row.get("weights_not_finite", 0) > 0:
            failing = f"{row['weights_not_finite']:.0f} weights are not finite after the step"
        values = (number(row[name]) for name in ("clipped_difference", "update_difference", "gain"))
        rows.append([str(optimizer), str(dtype), str(cut), *values, *shares, _ratio(row.get("prediction", math.nan)), failing])
    head = ["optimizer", "dtype", "cut", "gradient", "update", "gain", "soft region", "sign flips", "measured / closed form"]
    return table([*head, "elements that fail at 1e-7, in tensors"], rows)


def _ratio(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.2f}"


def interventions(steps: pd.DataFrame) -> str:
    """What each change makes of the update's difference; means over the cuts with k above 1."""
    rows = []
    adam = cuts(base(steps))
    for dtype, chosen in adam[adam["optimizer"] == "adamw"].groupby("dtype", sort=False):
        before = float(chosen["update_difference"].mean())
        rows.append([str(dtype), "as it is", number(before), "", number(float(chosen["gain"].mean())), _failing(chosen, "")])
        for name, words in INTERVENTIONS.items():
            column = f"update_difference_{name}"
            if column in chosen and chosen[column].notna().any():
                after = float(chosen[column].mean())
                factor = number(before / after, 2) if after else "difference gone"
                rows.append(
                    [str(dtype), words, number(after), factor, number(float(chosen[f"gain_{name}"].mean())), _failing(chosen, f"_{name}")]
                )
    return table(["dtype", "change", "relative difference of the update", "times smaller", "gain", "elements that fail at 1e-7"], rows)


def _failing(chosen: pd.DataFrame, suffix: str) -> str:
    values = chosen[f"weights_failing{suffix}"].dropna()
    return f"{values.min():.0f} to {values.max():.0f}" if values.min() < values.max() else f"{values.max():.0f}"


def errors(steps: pd.DataFrame) -> str:
    """How far each gradient is from the one in float64, of the AdamW steps, where that was computed."""
    if "gradient_error" not in steps:
        return ""
    rows = []
    for _, row in steps.dropna(subset=["gradient_error"]).iterrows():
        words = f"{row['dtype']}, {row['model.layers']} layers, norm {row['model.norm']}, {row['cut']}"
        own, one = float(row["gradient_error"]), float(row["gradient_error_one_batch"])
        rows.append([words, number(own), number(one), number(own / one, 2) if one else ""])
    return table(["step", "this cut's error", "the one batch's error", "ratio"], rows)


def ragged(steps: pd.DataFrame) -> str:
    """Rows of different lengths: the mean over tokens, and open_lm's mean of micro-batches' means."""
    chosen = cuts(steps[steps["data.lengths"] != "fixed"])
    rows = []
    for (lengths, mean, k), group in chosen.groupby(["data.lengths", "subject.mean", "accum"], sort=False):
        rows.append([str(lengths), str(mean), str(k), number(float(group["gradient_difference"].mean())), passing(group, "weights")])
    return table(["lengths", "loss is a mean over", "k", "relative difference of the gradient", "weights after SGD pass from"], rows)


def large(steps: pd.DataFrame) -> str:
    """The steps of models other than the test's."""
    chosen = steps[~steps["model"].isin(of_test(steps)["model"])]
    rows = []
    for _, row in chosen.iterrows():
        words = f"{row['model']}, {row['dtype']}, {row['cut']}, {row['global_batch']} x {row['data.seq_len']} tokens"
        values = [number(row[name]) for name in ("gradient_difference", "update_difference", "gain")]
        shares = [share(row["soft_share"]), share(row["flip_share"]), _ratio(row.get("prediction", math.nan))]
        rows.append([words, *values, *shares, f"{row['weights_failing']:.0f}", f"{row['peak_mem_gb']:.1f} GiB"])
    head = [
        "step",
        "gradient",
        "update",
        "gain",
        "soft region",
        "sign flips",
        "measured / closed form",
        "elements that fail at 1e-7",
        "memory",
    ]
    return table(head, rows)
