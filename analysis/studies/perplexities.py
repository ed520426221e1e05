"""The trainings of the study of open_lm: how far apart runs end that are the same in algebra."""

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd

from accum_sweeps.analysis.one_step import is_one_step
from accum_sweeps.analysis.paired import Floats
from accum_sweeps.analysis.studies.markdown import number, table, thread_figures

_NAMES = {"permute": "rows permuted", "regroup": "regrouped", "ulp_weights": "first weights moved by one ULP", "order": "other order"}
Kind = tuple[int, str, int]  # accum, control, replicate


def by_kind(results: pd.DataFrame) -> dict[Kind, dict[int, float]]:
    """Final evaluation loss, nats per token, of the finished trainings: (accum, control, replicate) -> seed -> loss."""
    rows = results[~is_one_step(results) & (results["status"] == "finished")].dropna(subset=["eval_loss_final"])
    found: dict[Kind, dict[int, float]] = {}
    columns = ("accum", "control", "replicate", "seed", "eval_loss_final")
    for accum, control, replicate, seed, loss in zip(*(rows[name] for name in columns), strict=True):
        found.setdefault((int(accum), str(control), int(replicate)), {})[int(seed)] = float(loss)
    return found


def thread_losses() -> dict[tuple[int, str], float]:
    """The thread's four perplexities as nats per token: (accum, run) -> log perplexity."""
    rows = thread_figures("open_lm_perplexity.csv")
    return {
        (int(k), str(run)): math.log(float(value))
        for k, run, value in zip(rows["accum"], rows["run"], rows["eval_perplexity"], strict=True)
    }


def perplexity_table(results: pd.DataFrame) -> str:
    """Perplexities by kind of run: the thread's, and here the mean and range over seeds."""
    thread, rows = thread_losses(), []
    for kind, losses in sorted(by_kind(results).items()):
        accum, control, replicate = kind
        published = thread.get((accum, "ab"[replicate])) if control == "none" and replicate < 2 else None
        values = np.exp(np.array(list(losses.values())))
        spread = f"{values.min():.4f} to {values.max():.4f}"
        rows.append(
            [_words(kind), "" if published is None else f"{math.exp(published):.4f}", f"{values.mean():.4f}", spread, str(len(values))]
        )
    return table(["run", "the thread's perplexity (160m)", "measured: mean", "range over seeds", "seeds"], rows)


def _words(kind: Kind) -> str:
    accum, control, replicate = kind
    parts = [f"accum {accum}", _NAMES.get(control, "") if control != "none" else "", "rerun" if replicate else ""]
    return ", ".join(part for part in parts if part)


def differences(results: pd.DataFrame) -> str:
    """How far apart two runs of one seed end, in nats per token, beside the thread's single differences and the SD over seeds."""
    runs, thread = by_kind(results), thread_losses()
    ks = sorted({k for k, control, replicate in runs if control == "none" and replicate == 0})
    if not ks:
        return ""
    pairs = [((k, "none", 0), (ks[0], "none", 0), thread.get((k, "a"), math.nan) - thread.get((ks[0], "a"), math.nan)) for k in ks[1:]]
    for kind in sorted(runs):
        if kind[1] != "none" or kind[2]:
            published = thread.get((kind[0], "b"), math.nan) - thread.get((kind[0], "a"), math.nan) if kind[1] == "none" else math.nan
            pairs.append((kind, (kind[0], "none", 0), published))
    rows = [_pair(runs, left, right, published) for left, right, published in pairs]
    losses = np.array(list(runs[ks[0], "none", 0].values()))
    if len(losses) > 1:
        rows.append(
            [f"another seed (SD of accum {ks[0]})", "", number(float(losses.std(ddof=1))), number(float(np.ptp(losses))), str(len(losses))]
        )
    return table(["two runs", "the thread (n = 1)", "measured: root mean square", "largest", "seeds"], rows)


def _pair(runs: Mapping[Kind, Mapping[int, float]], left: Kind, right: Kind, published: float) -> list[str]:
    apart = apart_by_seed(runs, left, right)
    words = "" if math.isnan(published) else number(abs(published))
    if not len(apart):
        return [f"{_words(left)} against {_words(right)}", words, "", "", "0"]
    size = "bits equal" if not apart.any() else number(float(np.sqrt(np.mean(apart**2))))
    return [f"{_words(left)} against {_words(right)}", words, size, number(float(np.abs(apart).max())), str(len(apart))]


def apart_by_seed(runs: Mapping[Kind, Mapping[int, float]], left: Kind, right: Kind) -> Floats:
    """left - right for each seed that both have, nats per token."""
    one, other = runs.get(left, {}), runs.get(right, {})
    return np.array([one[seed] - other[seed] for seed in sorted(one) if seed in other])
