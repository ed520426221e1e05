"""What gradient caching costs: a cached step's gradient beside forward and backward of the whole batch in one pass.

    python tests/benchmarks/bench_gradcache.py [rounds]

Both are computed alternately on one thread and timed in CPU seconds; a ratio is the median over rounds. The forward pass comes once
more, so 4/3 is what the algorithm asks for; budget: at most 1.45 at micro-batches of 8 pairs or more. Beside it the ratio to plain
accumulation of the same micro-batches, whose gradient is another one. Figures are of one run on one machine.
"""

import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import torch

from accum_sweeps.subjects.clip import ContrastiveTask
from accum_sweeps.training.accumulate import accumulate
from accum_sweeps.training.gradcache import accumulate_cached
from tests.contrastive import clip_spec

BUDGET = 1.45
SKIPPED = 1  # the first rounds allocate memory
# Wide enough that arithmetic, and not the calling of operations, takes the time: 3.3 million parameters.
MODEL = {"image_size": 64, "patch": 8, "vision_width": 256, "text_width": 256}


def cpu_seconds(call: Callable[[], object]) -> float:
    started = time.process_time()
    call()
    return time.process_time() - started


def compare(micro_batch: int, k: int, rounds: int) -> tuple[float, float, float]:
    """(median seconds in one pass, median ratio of caching to it, median ratio of caching to plain accumulation)."""
    pairs = micro_batch * k
    task = ContrastiveTask(clip_spec(global_batch=pairs, **{f"model.{key}": value for key, value in MODEL.items()}))
    model, samples = task.build().train(), task.batch(1)
    parameters = list(model.parameters())
    (whole,) = task.split(samples, [np.arange(pairs)])
    parts = task.split(samples, list(np.arange(pairs).reshape(k, micro_batch)))
    calls = [
        lambda: accumulate(parameters, [whole], lambda part: task.loss(model, part)),
        lambda: accumulate_cached(parameters, parts, lambda part: task.encode(model, part), lambda *e: task.contrast(model, *e)),
        lambda: accumulate(parameters, parts, lambda part: task.loss(model, part)),
    ]
    times = [[cpu_seconds(call) for call in calls] for _ in range(rounds + SKIPPED)][SKIPPED:]
    one_pass = statistics.median(one for one, _, _ in times)
    return one_pass, statistics.median(c / one for one, c, _ in times), statistics.median(c / plain for _, c, plain in times)


def main(rounds: int) -> None:
    """Print the figures."""
    torch.set_num_threads(1)
    is_within = True
    print(f"{'micro-batch':>11} {'k':>2} {'one pass':>9} {'cached':>7} {'cached / plain accumulation':>28}")
    for micro_batch, k in ((8, 2), (8, 4), (16, 2)):
        seconds, ratio, to_plain = compare(micro_batch, k, rounds)
        is_within &= ratio <= BUDGET
        print(f"{micro_batch:11} {k:2} {seconds:7.2f} s {ratio:6.2f}x {to_plain:27.2f}x", flush=True)
    print(f"budget {BUDGET}x: {'kept' if is_within else 'EXCEEDED'}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
