"""Do accumulated runs end with other weights than rounding alone gives? One ratio of distances a seed and accumulation factor.

w[s, k] = log(d(run k, run of the reference arm) / d(control of k, its uncontrolled twin)), d the L2 distance of the final weights
(from sketches). Tested against 0 by a paired t test over seeds; it gets no components, as it is no response of a single run.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from accum_sweeps.analysis.cells import KINDS, NONE
from accum_sweeps.analysis.distances import Reader, final_distances, reader
from accum_sweeps.analysis.paired import PairedShift, holm, paired_shift

UNIT = ["setup_id", "seed", "seed_init", "seed_data", "seed_dropout", "env_id"]  # what two compared runs share
COLUMNS = ["setup", "setup_id", "reference", "accum", "control", "seeds", "identical", "ratio", "low", "high", "p", "p_holm"]
PAIR = ["run_id", "env_id", "other_run_id", "other_env_id"]


def weight_ratios(root: str | Path, results: pd.DataFrame, *, reference: int | None = None, control: str | None = None) -> pd.DataFrame:
    """One row for each setup with controls and each accumulation factor but the reference arm's.

    ``ratio`` is the geometric mean over ``seeds`` of d(run, reference arm) / d(control, twin) with its 95 % limits: 1 means that
    accumulation moves the weights as far as rounding does. ``identical`` seeds have a distance of exactly 0 and are left out. ``p_holm``
    is adjusted over the setup's factors. Raises UserError if there is no root or a sketch file is damaged.
    """
    rows: list[dict[str, object]] = []
    runs = results[(results["status"] == "finished") & (results["replicate"] == 0)].drop_duplicates(["run_id", "env_id"])
    read = reader(root, runs)
    for setup_id, found in runs.groupby("setup_id", sort=False, observed=True):
        kind = control or _usual(found)
        plain = found[found["control"] == NONE]
        if kind and len(plain):
            chosen = int(plain["accum"].min()) if reference is None else reference
            logs = _logs(root, read, plain, found[found["control"] == kind], chosen)
            label = {"setup": plain["setup"].iloc[0], "setup_id": setup_id, "reference": chosen, "control": kind}
            rows += [{**label, **row} for row in _tests(logs)]
    return pd.DataFrame(rows, columns=COLUMNS)


def _usual(found: pd.DataFrame) -> str:
    """The kind of most controls; of equally many the first of KINDS."""
    counts = found["control"].value_counts()
    return max((kind for kind in KINDS if kind in counts.index), key=lambda kind: int(counts[kind]), default="")


def _logs(root: str | Path, read: Reader, plain: pd.DataFrame, controls: pd.DataFrame, reference: int) -> pd.DataFrame:
    """accum and w of each seed with both distances; w is NaN where one of them is exactly 0."""
    accumulated = plain[plain["accum"] != reference]
    base = _distances(root, read, accumulated, plain[plain["accum"] == reference], UNIT)
    rounding = _distances(root, read, controls, accumulated, [*UNIT, "accum"])
    both = base.merge(rounding, on=[*UNIT, "accum"], suffixes=("", "_rounding"))
    usable = (both["distance"] > 0) & (both["distance_rounding"] > 0)
    ratio = both["distance"].where(usable) / both["distance_rounding"].where(usable)
    return both[["accum"]].assign(w=np.log(ratio))


def _distances(root: str | Path, read: Reader, runs: pd.DataFrame, others: pd.DataFrame, same: list[str]) -> pd.DataFrame:
    """The distance of each of ``runs`` to the one of ``others`` that has the ``same`` settings: UNIT, accum, distance."""
    partners = others[[*same, "run_id"]].rename(columns={"run_id": "other_run_id"})
    pairs = runs[[*UNIT, "accum", "run_id"]].merge(partners, on=same)
    pairs["other_env_id"] = pairs["env_id"]
    found = final_distances(root, pairs[PAIR].itertuples(index=False, name=None), read)
    return pairs.merge(found[[*PAIR, "distance"]].astype({"distance": "float64"}), on=PAIR)[[*UNIT, "accum", "distance"]]


def _tests(logs: pd.DataFrame) -> Iterator[dict[str, object]]:
    by_k = {k: logs.loc[logs["accum"] == k, "w"].to_numpy(dtype=np.float64) for k in sorted(set(logs["accum"].tolist()))}
    shifts: dict[int, PairedShift] = {k: paired_shift(w) for k, w in by_k.items()}
    for (k, shift), p_holm in zip(shifts.items(), holm([shift.p for shift in shifts.values()]), strict=True):
        identical = int(np.isnan(by_k[k]).sum())
        ratio, low, high = (float(np.exp(value)) for value in (shift.mean, shift.low, shift.high))
        row = {"accum": k, "seeds": shift.pairs, "identical": identical, "ratio": ratio, "low": low, "high": high}
        yield {**row, "p": shift.p, "p_holm": float(p_holm) if shift.pairs > 1 else np.nan}
