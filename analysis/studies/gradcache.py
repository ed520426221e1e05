"""The study page of gradient caching: the thread's four distances, the measured ones, and what can explain them.

Every number comes from the sweep's tables, except the thread's, which lie beside this file.
"""

import math

import pandas as pd

from accum_sweeps.analysis.pair_tables import PairTables
from accum_sweeps.analysis.studies import markdown
from accum_sweeps.analysis.studies.weight_distances import (
    CLAIM,
    FOUR,
    ONE,
    PLAIN,
    SMALL,
    TWO,
    by_kind,
    by_tensor,
    described,
    first_condition,
    full_step,
    is_comparison,
    norm,
)

_ROUNDING = 1e-4  # in float64 rounding is 1.9e-9 of what it is in float32: a distance that falls below this share was rounding
_TITLE = "# Gradient caching against one batch: how far apart are the weights?\n"
THREADS_MODEL = "clip_vit_b32"
_MOST = 8  # kinds of tensors in a table


def page(results: pd.DataFrame, tables: PairTables) -> str:
    """The study as Markdown, from the sweep's results and its tables of pairs.

    Norms are sums over parameter tensors, in the unit of the weights, means over pairs of runs. A comparison that the sweep lacks is
    left out, and so is what would follow from it.
    """
    if tables.pairs.empty:
        return f"{_TITLE}\nNo pair of runs that is to be compared is finished.\n"
    table, tensors = described(results, tables.pairs), tables.tensors
    parts = [
        _TITLE,
        _model(results),
        _distances(table),
        _steps(table, tensors),
        _causes(table),
        _by_tensor(table, tensors),
        _thread(table),
    ]
    return "\n".join(part for part in parts if part)


def _model(results: pd.DataFrame) -> str:
    """A warning where the model is not the thread's."""
    models = sorted(set(results["model"])) if "model" in results else []
    if models in ([], [THREADS_MODEL]):
        return ""
    return (
        f"Measured with model {', '.join(models)}; the thread's was CLIP ViT-B/32 ({THREADS_MODEL}): its figures are no scale for these.\n"
    )


def _published(left: str, right: str, same_steps: bool = True) -> float:
    """The thread's figure, whose batches of 8 took more steps; NaN where it has none."""
    rows = markdown.thread_figures("gradcache.csv").to_dict("records")
    known = {(str(row["left"]), str(row["right"])): float(row["sum_of_norms"]) for row in rows}
    return known.get((left, right), math.nan) if same_steps == (left != SMALL) else math.nan


def _plain(value: float) -> str:
    return "" if math.isnan(value) else "0" if value == 0 else f"{value:.4g}"


_COLUMNS = {  # comparison, and whether both sides take equally many optimizer steps -> heading
    (PLAIN, TWO, True): "16 against 2 x 8",
    (PLAIN, ONE, True): "16 against 1 x 16",
    (FOUR, TWO, True): "4 x 4 against 2 x 8",
    (SMALL, TWO, False): "plain 8 against 2 x 8",
    (SMALL, TWO, True): "plain 8 against 2 x 8, equal steps",
}


def _distances(table: pd.DataFrame) -> str:
    rows = [["the thread", *(_plain(_published(*key)) for key in _COLUMNS)]]
    rows += [[condition, *(_measured(table, condition, *key) for key in _COLUMNS)] for condition in table["condition"].unique()]
    return (
        "Sum over parameter tensors of the norm of the difference of final weights. 16 and 8 are plain batches, a x b is gradient "
        "caching with a micro-batches of b.\n\n" + markdown.table(["", *_COLUMNS.values()], rows)
    )


def _measured(table: pd.DataFrame, condition: str, left: str, right: str, same_steps: bool) -> str:
    rows = table[is_comparison(table, left, right, same_steps) & (table["condition"] == condition)]
    is_equal = len(rows) > 0 and bool(rows["is_equal"].all())
    return _plain(norm(table, left, right, condition, same_steps)) + (", every bit equal" if is_equal else "")


def _steps(table: pd.DataFrame, tensors: pd.DataFrame) -> str:
    """Plain batch 8 takes more optimizer steps: what that alone can move."""
    rows = table[is_comparison(table, SMALL, TWO, False)]
    if rows.empty or tensors.empty:
        return ""
    row, move = rows.iloc[0], full_step(table, tensors)
    apart, equal = norm(table, SMALL, TWO, same_steps=False), norm(table, SMALL, TWO)
    text = (
        f"## Steps\n\nPlain batch 8 takes {row['left_steps']} optimizer steps over the samples, batch 16 and the cached runs take "
        f"{row['right_steps']}. One Adam step in which every weight moves by the full learning rate moves this sum by "
        f"lr x sum of sqrt(n) = {_plain(move)}; the distance {_plain(apart)} is {apart / move:.2g} such steps."
    )
    return text + (f" With equal steps it is {_plain(equal)}: other gradients, not other rounding.\n" if equal == equal else "\n")


def _causes(table: pd.DataFrame) -> str:
    """Each condition against the first, for the comparison that the thread asks about; and a mere reordering of the batch."""
    base = norm(table, *CLAIM)
    if not base > 0:
        return ""
    rows = []
    for condition in table["condition"].unique()[1:]:
        value = norm(table, *CLAIM, condition)
        if value == value:
            rows.append([condition, _plain(value), f"{value / base:.2g}", _reading(condition, value / base)])
    reordered = table[(table["left_control"] != "none") & (table["left"] == PLAIN) & (table["right"] == PLAIN)]
    for control, group in reordered.groupby("left_control", sort=False):
        value = float(pd.to_numeric(group["sum_of_norms"]).mean())
        name, reading = f"16 against itself, control {control}", "rounding alone, without any micro-batch"
        rows.append([name, _plain(value), f"{value / base:.2g}", reading])
    head = ["condition", "16 against 2 x 8", f"times that of {first_condition(table)}", "reading"]
    return "## What the distance comes from\n\n" + markdown.table(head, rows)


def _reading(condition: str, ratio: float) -> str:
    if "fp64" in condition:
        return (
            "falls to float64's rounding, to where sketches end (1e-14 relative): no fault"
            if ratio < _ROUNDING
            else "does not fall with the rounding: more than rounding"
        )
    if ratio < 0.1:
        return "removes most of the distance: what it changes is a cause"
    return "larger: one cause of a larger distance" if ratio > 3 else "about the same: does not decide"


def _by_tensor(table: pd.DataFrame, tensors: pd.DataFrame) -> str:
    if tensors.empty or not norm(table, *CLAIM) > 0:
        return ""
    kinds = by_kind(table, tensors)
    keys = kinds["kind"].str.endswith("k_proj.bias")
    shown = pd.concat([kinds[:_MOST], kinds[_MOST:][keys[_MOST:]]])
    columns = (shown["kind"], shown["tensors"], shown["share"], shown["in_lr"])
    rows = [[str(kind), str(number), f"{100 * share:.3g} %", f"{in_lr:.2g}"] for kind, number, share, in_lr in zip(*columns, strict=True)]
    text = "## By tensor\n\n" + markdown.table(["kind of tensor", "tensors", "share of 16 against 2 x 8", "per weight, in lr"], rows)
    largest = by_tensor(table, tensors).iloc[0]
    text += f"\nThe largest single tensor is {largest['tensor']} with {100 * largest['share']:.3g} % of the sum.\n"
    if keys.any():
        share = 100 * float(kinds.loc[keys, "share"].sum())
        text += (
            "\nThe gradient of a key bias is zero by structure (a softmax does not see a shift of all its inputs): what Adam makes a "
            f"step of there is rounding. These tensors hold {share:.3g} % of the sum.\n"
        )
    return text


def _thread(table: pd.DataFrame) -> str:
    """How near each condition comes to the thread's figure."""
    published = _published(*CLAIM)
    values = {condition: norm(table, *CLAIM, condition) for condition in table["condition"].unique()}
    known = {condition: value for condition, value in values.items() if value > 0}
    if not known:
        return ""
    near = [f"{name} ({_plain(value)})" for name, value in known.items() if 1 / 3 <= value / published <= 3]
    far = [f"{name} ({_plain(value)}, {published / value:.2g} times less)" for name, value in known.items() if 3 * value < published]
    lines = [f"## The thread's {published:g}\n"]
    lines += [f"Within a factor of three of it: {'; '.join(near) or 'no condition that was measured here'}.\n"]
    lines += [f"Too small: {'; '.join(far)}.\n"] if far else []
    return "\n".join([*lines, "Not measured here: the pretrained weights, the pictures and the kernels of the thread's GPU.\n"])
