"""Components of variance of every setup of a results table: how much of the spread is the seed's, how much is accumulation's."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from accum_sweeps.analysis.cells import Cells, setups
from accum_sweeps.analysis.components import Component, Ratio, SeedComponents, seed_components
from accum_sweeps.analysis.verdict import RESPONSE, in_unit

COLUMNS = ["setup", "setup_id", "response", "unit", "method", "component", "estimate", "raw", "low", "high", "sd", "share"]


@dataclass(frozen=True, kw_only=True)
class SetupComponents:
    """The components of one setup's ``response``, or ``why_not``. ``reruns``: cells that were done twice or more, and those of them whose
    values are equal to the last bit.
    """

    setup: str
    setup_id: str
    response: str
    unit: str
    found: SeedComponents | None
    why_not: str
    reruns: tuple[int, int]

    def to_frame(self) -> pd.DataFrame:
        """One row a component (seed, seed:k, rerun, total), and one for the ratio seed:k / seed; none where there are no components.

        ``estimate``, ``raw``, ``low`` and ``high`` are variances in the squared unit (the ratio has none), ``sd`` is the square root of
        the estimate, ``share`` its part of the total.
        """
        if self.found is None:
            return pd.DataFrame(columns=COLUMNS)
        total = self.found.total.estimate
        rows = [self._row(name, part, total) for name, part in parts(self.found)]
        return pd.DataFrame(rows, columns=COLUMNS)

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
            "share": part.estimate / total if is_variance and total > 0 else np.nan,
        }


def parts(found: SeedComponents) -> list[tuple[str, Component | Ratio]]:
    """The components with their names, then the ratio."""
    rerun = [("rerun", found.rerun)] if found.rerun is not None else []
    return [("seed", found.seed), ("seed:k", found.seed_k), *rerun, ("total", found.total), ("seed:k / seed", found.seed_k_ratio)]


class ComponentTables(tuple[SetupComponents, ...]):
    """The components of a table's setups, in its order."""

    __slots__ = ()

    def to_frame(self) -> pd.DataFrame:
        """All setups' rows."""
        frames = [each.to_frame() for each in self]
        return pd.concat([frame for frame in frames if len(frame)] or [pd.DataFrame(columns=COLUMNS)], ignore_index=True)


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
    )
