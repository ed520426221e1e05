"""A sweep's results, judged as its plan says: the reference arm, and a margin fixed before the runs."""

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from accum_sweeps.plan.judging import read_judging
from accum_sweeps.plan.spec import canonical
from accum_sweeps.record.sweep import SweepDir, open_sweep

if TYPE_CHECKING:
    import pandas as pd

    from accum_sweeps.analysis.judged import Judged
    from accum_sweeps.analysis.margin import MarginSource


def judge_sweep(sweep: SweepDir, results: "pd.DataFrame", asked: Mapping[str, Any]) -> "Judged":
    """``results``, rows of the sweep, judged by the keys of ``analysis`` that its newest plan holds, ``asked`` in their place.

    Raises ConfigError for a reference that is no arm, UserError for a column that is not there, an earlier sweep that is not there or
    shares seeds with this one.
    """
    # Imported here: whoever only starts a process for the tables needs no pandas.
    from accum_sweeps.analysis.judged import judge_table
    from accum_sweeps.analysis.load import load

    planned = sweep.read_plan().header.get("judging") or {}
    arms = sorted({int(k) for k in results["accum"]})
    judging = read_judging({**planned, **asked}, arms)
    earlier = None
    if judging.margin_from is not None:
        earlier = load(sweep.root.path, sweep=open_sweep(sweep.root, judging.margin_from).name)
    return judge_table(results, judging, earlier=earlier, margin_source=_source(sweep, planned, asked), root=sweep.root.path)


def _source(sweep: SweepDir, planned: Mapping[str, Any], asked: Mapping[str, Any]) -> "MarginSource":
    """When a margin of the configuration was fixed: only one of the first plan was chosen before its sweep had a result.

    The digits are a hash of all that the plan says on judging; whoever wrote them down beforehand can prove that nothing was changed.
    """
    from accum_sweeps.analysis.margin import MarginSource

    if "margin" in asked and asked["margin"] != planned.get("margin"):
        return MarginSource(words="given after the runs, so not fixed in advance", is_late=True)
    first = sweep.revisions()[0]
    was_first = (sweep.read_plan(first).header.get("judging") or {}).get("margin") == planned.get("margin")
    digest = hashlib.sha256(canonical(planned).encode()).hexdigest()[:12]
    where = "in the plan's first revision" if was_first else "in a later revision of the plan, so not in advance of all runs"
    return MarginSource(words=f"fixed {where} (judging {digest})", is_late=not was_first)
