"""What a training step costs beside the same written by hand in plain PyTorch, toggle by toggle, and what recording it costs.

    python tests/benchmarks/bench_step.py [seconds for each line]

Both loops run alternately, step by step, on one thread, and their CPU time is taken: others may compute beside them. A ratio
is the median over pairs of neighbours. Budgets: step at most 1.05 times the hand-written one, recording at most 1 % of a
step. Figures are of one run on one machine. The hand-written loop logs the loss, but no gradient norm unless it clips; its
dropout masks always come from torch's global stream.
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from accum_sweeps import subjects
from accum_sweeps.plan.parts import Decoder, StandardLibrary
from accum_sweeps.plan.spec import RunSpec
from accum_sweeps.record.events import EventWriter
from accum_sweeps.record.metrics import StepRecord
from accum_sweeps.training.data import corpus
from accum_sweeps.training.models import decoder
from accum_sweeps.training.sketch import sketch, weights_hash
from tests.benchmarks.peers import plain_lm
from tests.specs import BASE, make_spec

STEP_BUDGET = 1.05
RECORDING_BUDGET = 0.01
SKIPPED = 3  # the first steps allocate memory
PAIRS = 7  # at least so many are timed
SEQ_LEN = 64
COMMON: dict[str, Any] = {"steps": 10**6, "global_batch": 8, "accum": 2, "probe_steps": [], "eval_every": 0}

SGD = {"kind": "sgd", "name": "", "lr": 0.01, "momentum": 0.9, "nesterov": True, "weight_decay": 0.0}
MUON = {"kind": "muon", "name": "", "lr": 0.01, "momentum": 0.95, "nesterov": True, "ns_steps": 5, "adamw_lr": 1e-3}
MUON |= {key: BASE["optimizer"][key] for key in ("betas", "eps", "weight_decay")}
EVERY = {"max_norm": 1.0, "schedule": "cosine", "warmup_steps": 2}
SMALL = {"global_batch": 2}  # CPUs take their time in float16

TOGGLES: list[dict[str, Any]] = [
    *({"dtype": dtype, "accum": k, "global_batch": 16} for dtype in ("fp32", "amp_bf16") for k in (1, 4)),
    {"optimizer": BASE["optimizer"] | {"kind": "adam"}},
    {"optimizer": SGD | EVERY},
    {"optimizer": MUON | EVERY},
    {"optimizer.max_norm": None},
    {"dtype": "fp64"},
    {"dtype": "bf16"},
    {"dtype": "bf16", "accumulator": "fp32"},
    {"accumulator": "fp64"},
    {"dtype": "fp16", "optimizer.eps": 1e-4, **SMALL},
    {"dtype": "amp_fp16", **SMALL},
    {"ema": 0.99},
    *({"model.norm": norm} for norm in ("layernorm", "layernorm_gain", "layernorm_plain", "batchnorm", "groupnorm", "none")),
    {"model.qk_norm": True},
    {"model.ffn": "gelu"},
    {"model.positions": "learned"},
    {"model.positions": "none"},
    {"model.attention_bias": True},
    {"model.tied": True},
    {"model.dropout": 0.1, "model.dropout_masks": "stream"},
    {"model.dropout": 0.1, "model.dropout_masks": "sample"},
    {"subject.mean": "sample"},
    {"subject.mean": "micro_batch"},
    {"subject.label_smoothing": 0.1},
    {"subject.z_loss": 1e-4},
]


def timed(step: Callable[[], object]) -> float:
    """CPU seconds that ``step`` took."""
    started = time.process_time()
    step()
    return time.process_time() - started


def size(network: torch.nn.Module) -> int:
    """Number of parameters."""
    return sum(p.numel() for p in network.parameters())


def compare(spec: RunSpec, seconds: float) -> tuple[float, float]:
    """(median seconds of a hand-written step, median ratio of ours to its neighbour), timed for about ``seconds``."""
    data = spec.setup.data
    assert isinstance(data, StandardLibrary)
    part = spec.setup.model
    assert isinstance(part, Decoder)
    counts = [size(network) for network in (decoder.build(part, 0, SEQ_LEN), plain_lm.PlainDecoder(part, SEQ_LEN))]
    if counts[0] != counts[1]:
        raise SystemExit(f"{counts[0]} and {counts[1]} parameters: not the same network")
    ours = subjects.session(spec, Path(), 1).steps()
    theirs = plain_lm.train(spec.setup, spec.accum, corpus.load(data).train.tokens, SEQ_LEN)
    times: list[tuple[float, float]] = []
    started = time.perf_counter()
    while len(times) < SKIPPED + PAIRS or time.perf_counter() - started < seconds:
        loops = [lambda: next(theirs), lambda: next(ours)]
        order = (0, 1) if len(times) % 2 else (1, 0)  # whoever comes second finds a cold cache
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


def described(changes: dict[str, Any]) -> str:
    """The toggle in words."""
    return " ".join(f"{key}={value['kind'] if isinstance(value, dict) else value}" for key, value in changes.items())


def main(seconds: float) -> None:
    """Print the figures."""
    torch.set_num_threads(1)
    identified = corpus.identify(StandardLibrary(name="stdlib", seq_len=SEQ_LEN, lengths="fixed", eval_rows=64))
    assert isinstance(identified, StandardLibrary)
    common = COMMON | {"data.hash": identified.hash, "data.lengths": "fixed", "data.eval_rows": 64}
    recording, is_within = recording_cost(), True
    print(f"{'setting':<60} {'hand-written':>13} {'ours':>7} {'recording':>10}")
    for changes in TOGGLES:
        spec = make_spec(**(common | changes))
        hand_written, ratio = compare(spec, seconds)
        is_within &= ratio <= STEP_BUDGET and recording <= RECORDING_BUDGET * hand_written
        share = 100 * recording / hand_written
        print(f"{described(changes):<60} {hand_written * 1e3:10.1f} ms {ratio:6.3f}x {share:9.3f} %", flush=True)
    model = decoder.build(make_spec().setup.model, 0)  # type: ignore[arg-type]
    sketch(model)
    print(f"sketch: {1e3 * statistics.median(timed(lambda: sketch(model)) for _ in range(20)):.2f} ms")
    print(f"weights_hash: {1e3 * statistics.median(timed(lambda: weights_hash(model)) for _ in range(20)):.2f} ms")
    print(f"budgets: step {STEP_BUDGET}x, recording {RECORDING_BUDGET:.0%}: {'kept' if is_within else 'EXCEEDED'}")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 2.0)
