"""What a sweep shows of its pairs of cells (``analysis.compare``): two tables and a text."""

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from accum_sweeps.analysis.compare_cells import matched, planned_pairs, with_distances
from accum_sweeps.analysis.distances import Pair, tensor_distances
from accum_sweeps.analysis.words import WIDTH
from accum_sweeps.plan.pairs import pair_name
from accum_sweeps.plan.words import counted
from accum_sweeps.record.files import write_text

PAIRS, TENSORS = "pairs.csv", "pair_tensors.csv"
LEGEND = (
    "Pairs of cells: runs that are equal in all else, seed by seed, each after its last optimizer step. Equal: to the last bit of "
    "every weight. Relative distance of the weights, sum over parameter tensors of the norm of their difference (with "
    "probe_tensors=true) and difference of the evaluation loss, left - right, are means over the pairs of runs."
)
_HEAD = ("pairs", "equal", "relative distance", "sum of norms", "eval loss", "setup")


@dataclass(frozen=True, kw_only=True)
class PairTables:
    """``pairs``: one row a pair of runs, with the columns of compare_cells.compare after pair (what is compared, in words).

    ``tensors``: one row a pair of runs and parameter tensor, with the columns of distances.tensor_distances after pair.
    ``missing``: by pair in words, how many more pairs of runs are planned: not finished, or done in different environments.
    """

    pairs: pd.DataFrame
    tensors: pd.DataFrame
    missing: Mapping[str, int]


def pair_tables(root: Path, results: pd.DataFrame, compared: Sequence[Mapping[str, Mapping[str, Any]]]) -> PairTables:
    """The tables of the pairs ``compared`` among ``results``, whose runs lie in ``root``."""
    pairs, tensors, missing = [], [], {}
    for pair in compared:
        name = pair_name(pair)
        table = with_distances(matched(results, pair), root)
        missing[name] = planned_pairs(results, pair) - len(table.drop_duplicates(["run_id", "other_run_id"]))
        by_tensor = tensor_distances(root, table[list(Pair._fields)].itertuples(index=False, name=None))
        pairs.append(table.assign(pair=name))
        tensors.append(by_tensor.assign(pair=name))
    return PairTables(pairs=_joined(pairs), tensors=_joined(tensors), missing=missing)


def _joined(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """One below the other, the column pair first; an empty one only gives its columns."""
    table = pd.concat([each for each in tables if len(each)] or [*tables[:1], pd.DataFrame({"pair": []})], ignore_index=True)
    return table[["pair", *(name for name in table.columns if name != "pair")]]


def write_pair_tables(folder: Path, tables: PairTables) -> dict[str, Path]:
    """Write pairs.csv and, where there are tensors, pair_tensors.csv into ``folder``; their paths by what they hold."""
    kinds = {"pairs": (PAIRS, tables.pairs)} | ({"by tensor": (TENSORS, tables.tensors)} if len(tables.tensors) else {})
    for name, table in kinds.values():
        write_text(folder / name, table.to_csv(index=False))
    return {label: folder / name for label, (name, _) in kinds.items()}


def render_pairs(tables: PairTables) -> str:
    """The pairs as text, at most 100 columns wide: for each pair of cells one line a setup and control."""
    blocks = [_block(name, tables.pairs[tables.pairs["pair"] == name], left) for name, left in tables.missing.items()]
    return "\n\n".join([textwrap.fill(LEGEND, WIDTH), *blocks])


def _block(name: str, pairs: pd.DataFrame, missing: int) -> str:
    lines = textwrap.wrap(name, WIDTH)
    rows = list(_rows(pairs))
    if rows:
        widths = [max(len(row[place]) for row in (_HEAD, *rows)) for place in range(len(_HEAD) - 1)]
        lines += [line for row in (_HEAD, *rows) for line in _lines(row, widths)]
    if missing:
        lines.append(f"  not finished, or done in different environments: {counted(missing, 'more pair')} of runs")
    return "\n".join(lines)


def _rows(pairs: pd.DataFrame) -> Iterator[tuple[str, ...]]:
    """By setups and control: number of pairs, how many are equal, the means, and what both setups' names share."""
    for _, group in pairs.groupby(["setup_id", "other_setup_id", "control"], sort=False, observed=True):
        first = group.iloc[0]
        known = group["is_equal"].dropna()
        others = str(first["other_setup"]).split()
        shared = [word for word in str(first["setup"]).split() if word in others]
        yield (
            str(len(group)),
            str(int(known.astype(bool).sum())) if len(known) else "?",
            _number(group["relative_distance"]),
            _number(group["sum_of_norms"]),
            _number(group["eval_loss_difference"], "+"),
            " ".join([*shared, *([f"ctl={first['control']}"] if first["control"] != "none" else [])]),
        )


def _mean(values: "pd.Series[Any]") -> float:
    present = pd.to_numeric(values.dropna())
    return float(present.mean()) if len(present) else math.nan


def _number(values: "pd.Series[Any]", sign: str = "") -> str:
    value = _mean(values)
    return "-" if math.isnan(value) else f"{value:{sign if value else ''}.3g}"


def _lines(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    """Numbers to the right of their columns, the setup's words after them, on as many lines as they need."""
    numbers = "  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=False)) + "  "
    return textwrap.wrap(row[-1], WIDTH, initial_indent=numbers, subsequent_indent=" " * len(numbers)) or [numbers.rstrip()]
