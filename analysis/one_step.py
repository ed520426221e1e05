"""The table of a sweep's single optimizer steps (measure=one_step), as plain text: by setup, accumulation factor and control."""

import textwrap

import pandas as pd

from accum_sweeps.analysis.words import WIDTH, aligned

_COLUMNS = {  # column of the results table, without _final -> heading
    "forward_difference": "outputs",
    "gradient_difference": "gradient",
    "update_difference": "update",
    "gain": "gain",
    "soft_share": "soft",
    "flip_share": "flips",
    "prediction": "closed form",
    "weights_tolerance": "atol",
    "weights_failing": "failing",
}
_SHARES = ("soft_share", "flip_share")
_LEGEND = (
    "One optimizer step against the same step in one batch, at the same weights, mean over seeds: relative differences (L2) of outputs, "
    "gradient and update; gain = that of the update over that of the clipped gradient; shares of the squared update difference from "
    "|g| < 10 eps (soft) and from sign flips; measured difference over the optimizer's closed form; the atol from which "
    "torch.allclose passes on the weights after the step, and how many elements fail at 1e-7."
)


def is_one_step(results: pd.DataFrame) -> "pd.Series[bool]":
    """Which rows of a results table measured one optimizer step."""
    if "measure" not in results:
        return pd.Series(False, index=results.index)
    return results["measure"] == "one_step"


def render_steps(results: pd.DataFrame) -> str:
    """The finished steps among ``results``, a table for each setup; says so where none is finished."""
    steps = results[is_one_step(results) & (results["status"] == "finished")]
    if steps.empty:
        return "No step is measured yet."
    known = {f"{name}_final": heading for name, heading in _COLUMNS.items() if f"{name}_final" in steps}
    blocks = [_block(str(label), rows, known) for label, rows in steps.groupby("setup", sort=False)]
    return "\n\n".join([textwrap.fill(_LEGEND, WIDTH), *blocks])


def _block(label: str, rows: pd.DataFrame, columns: dict[str, str]) -> str:
    means = rows.groupby(["accum", "control"], sort=True)[list(columns)].mean()
    cells = [("k", "control", *columns.values())]
    for (accum, control), values in zip(means.index, means.to_numpy(), strict=True):
        cells.append((str(accum), str(control), *map(_shown, columns, map(float, values))))
    return "\n".join([*textwrap.wrap(label, WIDTH), *aligned(cells)])


def _shown(name: str, value: float) -> str:
    if value != value:
        return ""
    if name.removesuffix("_final") in _SHARES:
        return f"{value:.1%}"
    return f"{value:.3g}"
