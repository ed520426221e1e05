"""How often the rules of analysis.rules come to each verdict when the truth is known: simulated from a seeded generator.

The stored table, verdict_rates.csv, is written by tests/benchmarks/bench_verdict_rates.py. K = 4 arms, all in units of sigma_tot, the total
SD of the reference arm.
"""

import importlib.resources
from collections import Counter
from dataclasses import asdict, dataclass

import numpy as np
import pandas as pd
from numpy.random import Generator

from accum_sweeps.analysis.equivalence import MARGIN_IN_SD
from accum_sweeps.analysis.margin import Margin, absolute_margin, margin_of_earlier_sweep, margin_of_reference_arm
from accum_sweeps.analysis.paired import Floats
from accum_sweeps.analysis.rules import CODES, Statistics, decide, measure

ARMS = 4
EARLIER_SEEDS = 8
FILE = "verdict_rates.csv"


@dataclass(frozen=True, kw_only=True)
class Truth:
    """A truth and a design: y[s,k] = seed_s + path_sk, with a control of its own for each accumulated run.

    The last arm is shifted by ``shift`` margins (0.5 sigma_tot each). Accumulated runs have ``lambda_`` times the path variance of the
    reference arm and of the controls, which is ``path_share`` of sigma_tot^2. ``scale_spread`` is the ratio of the largest to the
    smallest path SD among seeds. A real ``dependence`` on the micro-batch adds so many path variances to each accumulated run, the same to
    its control. A run diverges with probability ``diverging_last`` in the last arm and ``diverging`` in the others.
    ``margin`` is fixed (0.5 sigma_tot), reference (of the sweep itself) or earlier (of an earlier sweep of EARLIER_SEEDS seeds).
    """

    seeds: int
    path_share: float
    shift: float = 0.0
    lambda_: float = 1.0
    margin: str = "fixed"
    has_controls: bool = True
    scale_spread: float = 1.0
    dependence: float = 0.0
    diverging: float = 0.0
    diverging_last: float = 0.0


TRUTHS = (
    *(Truth(seeds=seeds, path_share=share) for seeds in (3, 5, 8) for share in (0.02, 0.2, 0.9)),
    *(Truth(seeds=seeds, path_share=share, margin="reference") for seeds in (5, 8) for share in (0.02, 0.2)),
    *(Truth(seeds=seeds, path_share=0.02, margin="earlier") for seeds in (3, 8)),
    *(Truth(seeds=seeds, path_share=0.02, has_controls=False) for seeds in (3, 8)),
    *(Truth(seeds=seeds, path_share=share, shift=1.0) for seeds in (3, 5, 8) for share in (0.02, 0.2)),
    *(Truth(seeds=seeds, path_share=0.02, shift=1.0, margin="reference") for seeds in (5, 8)),
    *(Truth(seeds=seeds, path_share=0.02, lambda_=4.0) for seeds in (3, 5, 8, 10)),
    *(Truth(seeds=seeds, path_share=0.02, lambda_=16.0) for seeds in (5, 8)),
    *(Truth(seeds=seeds, path_share=0.02, scale_spread=10.0) for seeds in (3, 5, 8)),
    *(Truth(seeds=seeds, path_share=0.0002, dependence=100.0) for seeds in (3, 5, 8)),
    Truth(seeds=10, path_share=0.02, diverging=0.2, diverging_last=0.2),
    *(Truth(seeds=seeds, path_share=0.02, diverging_last=0.5) for seeds in (5, 8, 20)),
    Truth(seeds=12, path_share=0.02, diverging_last=0.9),
)


def draw(truth: Truth, generator: Generator) -> Statistics:
    """The statistics of one sweep drawn from ``truth``; the reference arm is column 0."""
    seed = np.sqrt(1 - truth.path_share) * generator.standard_normal((truth.seeds, 1))
    scale = np.sqrt(truth.path_share) * _scales(truth, generator)
    paths, rounding = scale * generator.standard_normal((2, truth.seeds, ARMS))
    shift = np.zeros(ARMS)
    shift[-1] = truth.shift * MARGIN_IN_SD
    paths[:, 1:] *= np.sqrt(truth.lambda_)
    shared = shift + np.sqrt(truth.dependence) * scale * generator.standard_normal((truth.seeds, ARMS)) * (np.arange(ARMS) > 0)
    y = seed + shared + paths
    probability = np.full(ARMS, truth.diverging)
    probability[-1] = truth.diverging_last
    diverged = generator.random(y.shape) < probability
    finished = np.where(diverged, np.nan, y)
    return measure(
        y,
        0,
        _margin(truth, finished[:, 0], generator),
        controls=seed + shared + rounding if truth.has_controls else None,
        diverged=diverged,
    )


def _scales(truth: Truth, generator: Generator) -> Floats:
    """Each seed's path SD (S, 1), log-uniform, with mean square 1 over seeds."""
    width = np.log(truth.scale_spread)
    if width == 0:
        return np.ones((truth.seeds, 1))
    return np.asarray(np.exp(width * (generator.random((truth.seeds, 1)) - 0.5)) / np.sqrt(np.sinh(width) / width))


def _margin(truth: Truth, reference_arm: Floats, generator: Generator) -> Margin:
    if truth.margin == "fixed":
        return absolute_margin(MARGIN_IN_SD)
    if truth.margin == "reference":
        return margin_of_reference_arm(reference_arm)
    return margin_of_earlier_sweep(generator.standard_normal(EARLIER_SEEDS), (), range(truth.seeds))


def verdict_rates(truth: Truth, generator: Generator, sweeps: int) -> dict[str, float]:
    """By code: the share of so many simulated ``sweeps`` that get this verdict."""
    counts = Counter(decide(draw(truth, generator)).code for _ in range(sweeps))
    return {code: counts[code] / sweeps for code in CODES}


def rates_table(generator: Generator, sweeps: int) -> pd.DataFrame:
    """One row for each of TRUTHS: its fields, ``sweeps`` and the rate of each code. Each row has a generator of its own."""
    streams = generator.spawn(len(TRUTHS))
    rows = [
        {**asdict(truth), "sweeps": sweeps, **verdict_rates(truth, stream, sweeps)} for truth, stream in zip(TRUTHS, streams, strict=True)
    ]
    return pd.DataFrame(rows)


def stored_rates() -> pd.DataFrame:
    """The stored table, as ``rates_table`` makes it."""
    with importlib.resources.files("accum_sweeps.analysis").joinpath(FILE).open(encoding="utf-8") as file:
        return pd.read_csv(file)
