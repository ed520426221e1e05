"""Do accumulated runs end with other weights than rounding alone gives? One ratio of distances a seed and accumulation factor.

w[s, k] = log(d(run k, run of the reference arm) / d(control of k, its uncontrolled twin)), d the L2 distance of the final weights
(from sketches). Tested against 0 by a paired t test over seeds; it gets no components, as it is no response of a single run.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from accum_sweeps.analysis.cells import KINDS, NONE
from accum_sweeps.analysis.distances import Reader, last_distance, reader
from accum_sweeps.analysis.paired import PairedShift, holm, paired_shift

UNIT = ("seed", "seed_init", "seed_data", "seed_dropout", "env_id")  # what two compared runs of a setup share
NEEDED = ("setup", "setup_id", "accum", "control", "run_id", *UNIT)
COLUMNS = ["setup", "setup_id", "reference", "accum", "control", "seeds", "identical", "ratio", "low", "high", "p", "p_holm"]
Run = Mapping[str, Any]  # what NEEDED says of it
Logs = Mapping[int, list[float]]  # by accumulation factor w of each seed


def weight_ratios(root: str | Path, results: pd.DataFrame, *, reference: int | None = None, control: str | None = None) -> pd.DataFrame:
    """One row for each setup with controls and each accumulation factor but the reference arm's.

    ``ratio`` is the geometric mean over ``seeds`` of d(run, reference arm) / d(control, twin) with its 95 % limits: 1 means that
    accumulation moves the weights as far as rounding does. ``identical`` seeds have a distance of exactly 0 and are left out. ``p_holm``
    is adjusted over the setup's factors. Raises UserError if there is no root or a sketch file is damaged.
    """
    rows: list[dict[str, object]] = []
    done = results[(results["status"] == "finished") & (results["replicate"] == 0)].drop_duplicates(["run_id", "env_id"])
    read = reader(root, done, tensors=False)
    by_setup: dict[str, list[Run]] = {}  # plain rows: thousands of small tables would take longer than the files
    for run in done[list(NEEDED)].to_dict("records"):
        by_setup.setdefault(run["setup_id"], []).append({str(name): value for name, value in run.items()})
    for setup_id, runs in by_setup.items():
        kind = control or _usual(runs)
        plain = [run for run in runs if run["control"] == NONE]
        if kind and plain:
            chosen = min(int(run["accum"]) for run in plain) if reference is None else reference
            logs = _logs(read, plain, [run for run in runs if run["control"] == kind], chosen)
            label = {"setup": plain[0]["setup"], "setup_id": setup_id, "reference": chosen, "control": kind}
            rows += [{**label, **row} for row in _tests(logs)]
    return pd.DataFrame(rows, columns=COLUMNS)


def _usual(runs: Sequence[Run]) -> str:
    """The kind of most controls; of equally many the first of KINDS."""
    counts = Counter(run["control"] for run in runs)
    return max((kind for kind in KINDS if kind in counts), key=lambda kind: counts[kind], default="")


def _logs(read: Reader, plain: Sequence[Run], controls: Sequence[Run], reference: int) -> Logs:
    """w of each seed with both distances, NaN where one of them is exactly 0."""
    base = {_unit(run): run for run in plain if run["accum"] == reference}
    twins = {(_unit(run), run["accum"]): run for run in controls}
    logs: dict[int, list[float]] = {}
    for run in plain:
        unit, k = _unit(run), int(run["accum"])
        if k != reference and unit in base and (unit, k) in twins:
            apart, rounding = _distance(read, run, base[unit]), _distance(read, twins[unit, k], run)
            if apart is not None and rounding is not None:
                logs.setdefault(k, []).append(float(np.log(apart / rounding)) if apart > 0 and rounding > 0 else np.nan)
    return logs


def _unit(run: Run) -> tuple[object, ...]:
    return tuple(run[name] for name in UNIT)


def _distance(read: Reader, run: Run, other: Run) -> float | None:
    return last_distance(read(run["run_id"], run["env_id"]), read(other["run_id"], other["env_id"]))


def _tests(logs: Logs) -> Iterator[dict[str, object]]:
    by_k = {k: np.array(logs[k], dtype=np.float64) for k in sorted(logs)}
    shifts: dict[int, PairedShift] = {k: paired_shift(w) for k, w in by_k.items()}
    for (k, shift), p_holm in zip(shifts.items(), holm([shift.p for shift in shifts.values()]), strict=True):
        identical = int(np.isnan(by_k[k]).sum())
        ratio, low, high = (float(np.exp(value)) for value in (shift.mean, shift.low, shift.high))
        row = {"accum": k, "seeds": shift.pairs, "identical": identical, "ratio": ratio, "low": low, "high": high}
        yield {**row, "p": shift.p, "p_holm": float(p_holm) if shift.pairs > 1 else np.nan}
