"""Components of variance of every setup of a results table: how much of the spread is the seed's, how much is accumulation's."""

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from accum_sweeps.analysis.cells import Cells, setups
from accum_sweeps.analysis.components import (
    Component,
    Ratio,
    SeedComponents,
    one_way_component,
    seed_components,
    variance_component,
)
from accum_sweeps.analysis.mean_squares import one_way
from accum_sweeps.analysis.verdict import in_unit
from accum_sweeps.analysis.words import aligned, percent
from accum_sweeps.plan.judging import RESPONSE
from accum_sweeps.plan.words import counted

COLUMNS = ["setup", "setup_id", "response", "unit", "method", "component", "estimate", "raw", "low", "high", "sd", "share"]


@dataclass(frozen=True, kw_only=True)
class Nested:
    """Initial weights nested within the order of the data: the variance over seeds of the arm of the smallest k, in its two parts."""

    data: Component
    init: Component


@dataclass(frozen=True, kw_only=True)
class SetupComponents:
    """The components of one setup's ``response``, or ``why_not``.

    ``reruns``: cells that were done twice or more, and those of them whose values are equal to the last bit. ``nested`` is None unless
    several seeds share their data seed.
    """

    setup: str
    setup_id: str
    response: str
    unit: str
    found: SeedComponents | None
    why_not: str
    reruns: tuple[int, int]
    nested: Nested | None = None

    def to_frame(self) -> pd.DataFrame:
        """One row a component (seed, seed:k, rerun, total; data seed and init seed where nested), and one for the ratio seed:k / seed.

        ``estimate``, ``raw``, ``low`` and ``high`` are variances in the squared unit (the ratio has none), ``sd`` is the square root of
        the estimate, ``share`` its part of the sum of the estimates, which are never negative (the total is that of the raw ones).
        """
        if self.found is None:
            return pd.DataFrame(columns=COLUMNS)
        rows = [self._row(name, part, self.found.parts_sum) for name, part in parts(self.found)]
        if self.nested:
            both = self.nested.data.estimate + self.nested.init.estimate
            rows += [self._row("data seed", self.nested.data, both), self._row("init seed in data seed", self.nested.init, both)]
        return pd.DataFrame(rows, columns=COLUMNS)

    def __str__(self) -> str:
        """For a terminal: what was found, a line a component, as standard deviations with 95 % intervals; or why there is nothing."""
        if self.found is None:
            return f"{self.setup}: no components of variance of {self.response}: {self.why_not}"
        repeated, equal = self.reruns
        reruns = f"; reruns identical in {equal} of {counted(repeated, 'cell')}" if repeated else ""
        head = f"{self.setup}: components of variance of {self.response} ({self.found.method}{reruns})"
        frame = self.to_frame()
        rows = [_in_words(row) for row in frame[frame["unit"] != "1"].to_dict("records")]
        return "\n".join([head, *aligned([("", f"SD ({self.unit})", "95 % interval", "share"), *rows])])

    def _row(self, name: str, part: Component | Ratio, total: float) -> dict[str, object]:
        is_variance = isinstance(part, Component)
        return {
            "setup": self.setup,
            "setup_id": self.setup_id,
            "response": self.response,
            "unit": f"({self.unit})^2" if is_variance else "1",
            "method": self.found.method if self.found else "",
            "component": name,
            "estimate": part.estimate,
            "raw": part.raw if isinstance(part, Component) else np.nan,
            "low": part.interval.low,
            "high": part.interval.high,
            "sd": np.sqrt(part.estimate) if is_variance else np.nan,
            "share": part.estimate / total if is_variance and name != "total" and total > 0 else np.nan,
        }


def parts(found: SeedComponents) -> list[tuple[str, Component | Ratio]]:
    """The components with their names, then the ratio."""
    rerun = [("rerun", found.rerun)] if found.rerun is not None else []
    return [("seed", found.seed), ("seed:k", found.seed_k), *rerun, ("total", found.total), ("seed:k / seed", found.seed_k_ratio)]


class ComponentTables(tuple[SetupComponents, ...]):
    """The components of a table's setups, in its order; printed, a small table for each."""

    __slots__ = ()

    def to_frame(self) -> pd.DataFrame:
        """All setups' rows."""
        frames = [each.to_frame() for each in self]
        return pd.concat([frame for frame in frames if len(frame)] or [pd.DataFrame(columns=COLUMNS)], ignore_index=True)

    def __str__(self) -> str:
        return "\n\n".join(map(str, self))


def _in_words(row: Mapping[Hashable, Any]) -> tuple[str, ...]:
    """A component's name, SD, limits of the SD and share."""
    low, high = (math.sqrt(max(row[end], 0.0)) if row[end] == row[end] else math.nan for end in ("low", "high"))
    limits = "" if math.isnan(low) else f"[{low:.3g}, {'unbounded' if math.isinf(high) else f'{high:.3g}'}]"
    share = "" if math.isnan(row["share"]) else percent(row["share"], 1.0)
    return str(row["component"]), f"{row['sd']:.3g}", limits, share


def components(results: pd.DataFrame, *, response: str = RESPONSE) -> ComponentTables:
    """Components of variance of ``response`` (a perplexity is taken as its logarithm) for each setup of a results table.

    Controls and runs without a finished value are left out. Closed forms where the table is balanced, REML elsewhere. Raises UserError
    for a missing column.
    """
    table, unit = in_unit(results, response)
    return ComponentTables(of_cells(cells, response, unit) for cells in setups(table, response))


def of_cells(cells: Cells, response: str, unit: str) -> SetupComponents:
    """The components of one setup."""
    rows = cells.replicates
    found, why_not = None, ""
    try:
        found = seed_components(rows.value, rows.seed, rows.k)
    except ValueError as error:
        why_not = str(error)
    return SetupComponents(
        setup=cells.setup,
        setup_id=cells.setup_id,
        response=response,
        unit=unit,
        found=found,
        why_not=why_not,
        reruns=rows.reruns(),
        nested=_nested(cells),
    )


def _nested(cells: Cells) -> Nested | None:
    """One-way layout of the reference arm by data seed; None where every seed has data of its own, or all share theirs."""
    values = cells.y[:, 0]
    finite = np.isfinite(values)
    groups = np.unique(np.array([str(seed) for seed in cells.data_seeds])[finite], return_inverse=True)[1]
    if not 1 < len(np.unique(groups)) < len(groups):
        return None
    layout = one_way(values[finite], groups)
    within = variance_component(layout.within)
    return Nested(data=one_way_component(layout.between, layout.within, layout.group_size), init=within)
