"""Does gradient accumulation change what is trained? Designed sweeps with rounding controls, and a verdict with numbers.

In a notebook: ``import accum_sweeps as acs``, then ``acs.load(root)``, ``acs.verdict(results)``. The names below are imported
when first used, so that planning and dispatching never wait for pandas or torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accum_sweeps.analysis.compare_cells import compare
    from accum_sweeps.analysis.component_tables import components
    from accum_sweeps.analysis.distances import distances, reference_pairs
    from accum_sweeps.analysis.ladders import ladders
    from accum_sweeps.analysis.load import load, trajectories
    from accum_sweeps.analysis.verdict import verdict
    from accum_sweeps.analysis.weight_ratios import weight_ratios
    from accum_sweeps.auditing import audit

_HOMES = {
    "audit": "accum_sweeps.auditing",
    "compare": "accum_sweeps.analysis.compare_cells",
    "components": "accum_sweeps.analysis.component_tables",
    "distances": "accum_sweeps.analysis.distances",
    "ladders": "accum_sweeps.analysis.ladders",
    "load": "accum_sweeps.analysis.load",
    "reference_pairs": "accum_sweeps.analysis.distances",
    "trajectories": "accum_sweeps.analysis.load",
    "verdict": "accum_sweeps.analysis.verdict",
    "weight_ratios": "accum_sweeps.analysis.weight_ratios",
}

__all__ = ["audit", "compare", "components", "distances", "ladders", "load", "reference_pairs", "trajectories", "verdict", "weight_ratios"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
