"""How long grids take to expand, and the command to start.

    python tests/benchmarks/bench_grid.py

The budgets: 0.05 ms a run beyond the first of a setup; 3 s for 10,000 runs, composing included; 0.7 s until the action
starts. Figures are of one run on one machine, the best of some repetitions.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from accum_sweeps.plan.config import read_config

MANY_RUNS = "axes={seed:{range:2500},accum:[1,2,4,8]}"  # 10,000 runs of one setup
MANY_SETUPS = (  # 10,000 runs of 40 setups, 8 compositions
    "axes={seed:{range:125},optimizer:[adamw,sgd],dtype:[fp64,fp32,bf16,amp_bf16],optimizer.lr:[0.1,0.2,0.3,0.4,0.5],accum:[1,2]}"
)
START = "import sys, types; m = types.ModuleType('accum_sweeps.actions'); m.perform = lambda c: 0; sys.modules[m.__name__] = m\n"
START += "from accum_sweeps.__main__ import main; sys.exit(main(['+grid=adamw']))"


def best_s(work: Callable[[], object], repetitions: int) -> float:
    """Shortest wall time of ``work``, seconds."""
    times = []
    for _ in range(repetitions):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def whole_s(text: str, repetitions: int) -> tuple[int, float]:
    """Number of runs, and seconds for reading the configuration and expanding it."""
    return sum(1 for _ in read_config([text]).grid.expand()), best_s(lambda: list(read_config([text]).grid.expand()), repetitions)


def main() -> None:
    """Print the three figures beside their budgets."""
    grid = read_config([MANY_RUNS]).grid
    first_s = best_s(lambda: next(grid.expand()), 5)
    all_s = best_s(lambda: sum(1 for _ in grid.expand()), 5)
    print(f"a run beyond the first of its setup: {(all_s - first_s) / 9999 * 1e3:.4f} ms (budget 0.05)")
    for name, text in (("one setup", MANY_RUNS), ("40 setups, 8 compositions", MANY_SETUPS)):
        count, seconds = whole_s(text, 3)
        print(f"{count} runs, {name}: {seconds:.2f} s (budget 3)")
    start_s = best_s(lambda: subprocess.run([sys.executable, "-c", START], check=True), 5)
    print(f"from the start of the interpreter to the action of +grid=adamw: {start_s:.2f} s (budget 0.7)")


if __name__ == "__main__":
    main()
