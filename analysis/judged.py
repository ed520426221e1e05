"""A results table, judged: the verdicts on each response, the components of variance, and what was left out and why."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from accum_sweeps.analysis.cells import NO_VALUE, Cells
from accum_sweeps.analysis.component_tables import ComponentTables, of_cells
from accum_sweeps.analysis.ladders import SetupLadder, is_ladder, setup_ladders
from accum_sweeps.analysis.margin import Margin, MarginSource, absolute_margin
from accum_sweeps.analysis.verdict import Verdict, Verdicts, verdict
from accum_sweeps.analysis.weight_ratios import COLUMNS, weight_ratios
from accum_sweeps.analysis.words import listed
from accum_sweeps.plan.errors import UserError
from accum_sweeps.plan.judging import Judging
from accum_sweeps.plan.words import be, counted
from accum_sweeps.record.events import DONE

RESPONSES = ("eval_loss_final", "train_loss_area")  # judged in every sweep; perplexity is the loss's exponential, so it has its verdict
MOST = 5


@dataclass(frozen=True, kw_only=True)
class Judged:
    """``verdicts`` and ``components`` by response, that of the judging's response first.

    ``weights`` is the table of analysis.weight_ratios, empty without sketches or controls. ``ladders`` are by setup_id those of the setups
    that have one. ``left_out`` says what was not used and why, a sentence each.
    """

    results: pd.DataFrame
    judging: Judging
    verdicts: Mapping[str, Verdicts]
    components: Mapping[str, ComponentTables]
    weights: pd.DataFrame
    left_out: tuple[str, ...]
    ladders: Mapping[str, SetupLadder] = field(default_factory=dict)

    @property
    def opening(self) -> Verdicts:
        """The verdicts on the response that opens the report."""
        return self.verdicts[self.judging.response]


def judge_table(
    results: pd.DataFrame,
    judging: Judging,
    *,
    earlier: pd.DataFrame | None = None,
    margin_source: MarginSource | None = None,
    root: Path | None = None,
    seed: int = 0,
) -> Judged:
    """Judge each setup of ``results`` on the judging's response and on all of RESPONSES that the table has values of; its ladder, where
    it has one, stands beside the verdict.

    ``earlier`` is the results table that margins come from where none is given; ``margin_source`` says where a given one was fixed.
    ``root`` holds the runs' sketches, for the distances of their weights. ``seed`` is that of the generator for sign-flip tests of many
    seeds. Raises UserError as :func:`accum_sweeps.analysis.verdict.verdict`.
    """
    found = setup_ladders(results)
    results = results[~is_ladder(results)]
    responses = dict.fromkeys([judging.response, *(name for name in (*RESPONSES, *judging.margins) if _has_values(results, name))])
    generator = np.random.default_rng(seed)
    verdicts = {
        response: verdict(
            results,
            response=response,
            reference=judging.reference,
            margin=_given(judging, response, margin_source),
            earlier=earlier,
            sign_flip=judging.sign_flip,
            generator=generator,
        )
        for response in responses
    }
    weights, problems = _weights(root, results, judging.reference)
    return Judged(
        results=results,
        judging=judging,
        verdicts=verdicts,
        components={name: ComponentTables(of_cells(v.cells, name, v.unit) for v in found) for name, found in verdicts.items()},
        weights=weights,
        left_out=(*_left_out(results, verdicts[judging.response]), *problems),
        ladders=found,
    )


def _weights(root: Path | None, results: pd.DataFrame, reference: int | None) -> tuple[pd.DataFrame, list[str]]:
    """The table of weight ratios, and what kept it from being made: a damaged file of sketches is no reason to be without a verdict."""
    if root is not None:
        try:
            return weight_ratios(root, results, reference=reference), []
        except UserError as error:
            return pd.DataFrame(columns=COLUMNS), [f"distances of final weights: {str(error).splitlines()[0]}"]
    return pd.DataFrame(columns=COLUMNS), []


def _has_values(results: pd.DataFrame, name: str) -> bool:
    return name in results and pd.api.types.is_numeric_dtype(results[name].dtype) and bool(results[name].notna().any())


def _given(judging: Judging, response: str, source: MarginSource | None) -> Margin | None:
    value = judging.margins.get(response)
    if value is None:
        return None
    margin = absolute_margin(value)
    return Margin(value=margin.value, source=source.words, is_late=source.is_late) if source else margin


def _left_out(results: pd.DataFrame, verdicts: Sequence[Verdict]) -> list[str]:
    """Runs of ``results`` that the opening verdicts do not rest on, and why."""
    statuses = Counter(str(status) for status in results["status"] if status not in DONE)
    found = [f"{status} runs: {number}" for status, number in sorted(statuses.items())]
    for each in verdicts:
        found += [f"{each.setup}: {words}" for words in _of_setup(each.cells, each)]
    return found


def _of_setup(cells: Cells, each: Verdict) -> list[str]:
    found = []
    missing = int((cells.outcome == NO_VALUE).sum())
    if missing:
        found.append(f"{counted(missing, 'finished run')} without a finite {each.response}")
    if cells.mixed:
        found.append(f"{_were_run(cells.mixed)} in several environments; only the one with most arms is compared")
    repeated, equal = cells.replicates.reruns()
    finished = int((cells.outcome == "finished").sum())
    if repeated and repeated < finished and equal < repeated:
        found.append(f"reruns of {repeated} of {finished} cells count for the components; the paired tests use each cell's first run")
    unused = [kind for kind in cells.controls if kind != each.control]
    if unused:
        found.append(f"{listed(unused)} controls are not mixed with those of kind {each.control}, so they are not used")
    gaps = np.isin(cells.outcome, DONE).sum() < cells.outcome.size
    if gaps:
        some = int((~cells.complete).sum())
        seeds = counted(len(cells.seeds), "seed")
        found.append(f"{some} of {seeds} {be(some)} incomplete; a shift rests on those with both runs")
    return found


def _were_run(seeds: Sequence[str]) -> str:
    return f"seed {seeds[0]} was run" if len(seeds) == 1 else f"seeds {listed(seeds[:MOST])} were run"
