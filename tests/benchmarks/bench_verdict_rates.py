"""How often the rules come to each verdict when the truth is known; writes analysis/verdict_rates.csv, which the report prints.

    python tests/benchmarks/bench_verdict_rates.py [SWEEPS]

SWEEPS simulated sweeps a row, 4000 by default: some minutes on one core. The numbers depend on SEED alone.
"""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from accum_sweeps.analysis.rates import FILE, rates_table

SEED = 20_250_101
TARGET = Path(__file__).resolve().parents[2] / "analysis" / FILE


def main(sweeps: int = 4000) -> None:
    """Simulate, write and print the table."""
    start = time.perf_counter()
    table = rates_table(np.random.default_rng(SEED), sweeps)
    table.to_csv(TARGET, index=False)
    print(table.to_string())
    print(f"{len(table)} truths of {sweeps} sweeps in {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:]))
