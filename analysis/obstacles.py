"""Why a setup cannot be judged: what is missing, by arm and by seed."""

import numpy as np

from accum_sweeps.analysis.cells import Cells
from accum_sweeps.analysis.rules import MIN_COMPLETE_SEEDS
from accum_sweeps.analysis.words import arms
from accum_sweeps.plan.words import counted
from accum_sweeps.record.events import DONE

MOST_GAPS = 3


def obstacles(cells: Cells, reference: int) -> tuple[str, ...]:
    """One sentence for each obstacle; empty where the setup can be judged against the arm k = ``reference``."""
    if reference not in cells.accum:
        return (f"no run at the reference k={reference} (there are {arms(cells.accum)})",)
    if len(cells.accum) == 1:
        return (f"all runs have k={reference}, there is nothing to compare",)
    reasons: list[str] = []
    for k, finished, outcomes in zip(cells.accum, cells.count("finished"), cells.outcome.T, strict=True):
        if finished == 0:
            words, numbers = np.unique(outcomes, return_counts=True)
            reasons.append(f"k={k} has no finished run ({', '.join(f'{n} {word}' for word, n in zip(words, numbers, strict=True))})")
    if len(reasons) > MOST_GAPS:
        reasons = [*reasons[:MOST_GAPS], f"no finished run in {counted(len(reasons) - MOST_GAPS, 'more arm')}"]
    complete = int(cells.complete.sum())
    if complete < MIN_COMPLETE_SEEDS:
        reasons.append(f"complete seeds: {complete} of {len(cells.seeds)}, at least {MIN_COMPLETE_SEEDS} are needed{_gaps(cells)}")
    return tuple(reasons)


def _gaps(cells: Cells) -> str:
    gaps = [
        f"seed {seed} k={k} {outcome}"
        for seed, outcomes in zip(cells.seeds, cells.outcome, strict=True)
        for k, outcome in zip(cells.accum, outcomes, strict=True)
        if outcome not in DONE
    ]
    shown = gaps[:MOST_GAPS] + ([f"{len(gaps) - MOST_GAPS} more"] if len(gaps) > MOST_GAPS else [])
    return f" ({', '.join(shown)})" if shown else ""
