"""What a training step costs beside a hand-written PyTorch loop with the same model, and what recording it costs.

    python tests/benchmarks/bench_step.py [pairs of steps]

Both loops run alternately, step by step, on one thread; a ratio is the median over pairs of neighbours. Budgets: step at
most 1.03 times the hand-written one, recording at most 1 % of a step. Figures are of one run on one machine.
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from accum_sweeps import subjects
from accum_sweeps.plan.parts import Decoder, StandardLibrary
from accum_sweeps.plan.spec import RunSpec
from accum_sweeps.record.events import EventWriter
from accum_sweeps.record.metrics import StepRecord
from accum_sweeps.training.data import corpus
from accum_sweeps.training.models import decoder
from accum_sweeps.training.sketch import sketch, weights_hash
from tests.specs import make_spec

STEP_BUDGET = 1.03
RECORDING_BUDGET = 0.01
SKIPPED = 5  # the first steps allocate memory


def hand_written(spec: RunSpec, text: np.ndarray[Any, Any]) -> Iterator[float]:
    """What one would write for this model: windows of bytes, k micro-batches, clipping, AdamW, cosine with warmup."""
    part, seq_len, k = spec.setup.model, 64, spec.accum
    assert isinstance(part, Decoder)
    model = decoder.build(part, seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 * (1 + np.cos(np.pi * step / spec.setup.steps)))
    rng = np.random.default_rng(0)
    for _ in range(spec.setup.steps):
        starts = rng.integers(0, text.size - seq_len, size=spec.setup.global_batch)
        rows = torch.from_numpy(text[starts[:, None] + np.arange(seq_len + 1)].astype(np.int64))
        optimizer.zero_grad()
        logged = 0.0
        for part_rows in rows.chunk(k):
            with torch.autocast("cpu", torch.bfloat16, enabled=spec.setup.dtype == "amp_bf16"):
                logits = model(part_rows[:, :-1])
                loss = cross_entropy(logits.float().flatten(0, 1), part_rows[:, 1:].flatten()) / k
            loss.backward()
            logged += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        yield logged


def timed(step: Callable[[], object]) -> float:
    started = time.perf_counter()
    step()
    return time.perf_counter() - started


def compare(spec: RunSpec, pairs: int) -> tuple[float, float]:
    """(median seconds of a hand-written step, median ratio of ours to its neighbour)."""
    data = spec.setup.data
    assert isinstance(data, StandardLibrary)
    ours = subjects.session(spec, Path(), 1).steps()
    theirs = hand_written(spec, corpus.load(data).train.tokens)
    times = []
    for number in range(pairs):
        loops = [lambda: next(theirs), lambda: next(ours)]
        order = (0, 1) if number % 2 else (1, 0)  # whoever comes second finds a cold cache
        pair = {which: timed(loops[which]) for which in order}
        times.append((pair[0], pair[1]))
    kept = times[SKIPPED:]
    return statistics.median(a for a, _ in kept), statistics.median(b / a for a, b in kept)


def recording_cost(lines: int = 2000) -> float:
    """Seconds to make one step's record and to write it to an event file, flushes included."""
    with tempfile.TemporaryDirectory() as folder, EventWriter(Path(folder) / "events.1.jsonl", 1) as writer:
        writer.start(None, 0)
        started = time.perf_counter()
        for step in range(1, lines + 1):
            values = {"train_loss": 2.5 / step, "lr": 1e-3 / step, "tokens": 1024.0 * step, "grad_norm": 1.0 / step}
            record = StepRecord(step=step, values=values)
            writer.metrics(record.step, record.values)
        writer.flush()
        return (time.perf_counter() - started) / lines


def main(pairs: int) -> None:
    """Print the figures."""
    torch.set_num_threads(1)
    identified = corpus.identify(StandardLibrary(name="stdlib", seq_len=64, lengths="fixed", eval_rows=64))
    assert isinstance(identified, StandardLibrary)
    common = {"data.hash": identified.hash, "data.lengths": "fixed", "data.eval_rows": 64, "probe_steps": [], "eval_every": 0}
    recording, is_within = recording_cost(), True
    print(f"{'dtype':9} {'k':>2} {'hand-written':>13} {'ours':>7} {'recording':>10}")
    for dtype in ("fp32", "amp_bf16"):
        for k in (1, 4):
            spec = make_spec(dtype=dtype, accum=k, steps=pairs + 1, **common)
            seconds, ratio = compare(spec, pairs)
            is_within &= ratio <= STEP_BUDGET and recording <= RECORDING_BUDGET * seconds
            print(f"{dtype:9} {k:2} {seconds * 1e3:10.1f} ms {ratio:6.3f}x {100 * recording / seconds:9.3f} %", flush=True)
    model = decoder.build(spec.setup.model, 0)  # type: ignore[arg-type]
    sketch(model)
    print(f"sketch: {1e3 * statistics.median(timed(lambda: sketch(model)) for _ in range(20)):.2f} ms")
    print(f"weights_hash: {1e3 * statistics.median(timed(lambda: weights_hash(model)) for _ in range(20)):.2f} ms")
    print(f"budgets: step {STEP_BUDGET}x, recording {RECORDING_BUDGET:.0%}: {'kept' if is_within else 'EXCEEDED'}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 120)
