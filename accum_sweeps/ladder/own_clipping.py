"""What a step or a trainer of the user's own does to the length of gradients: read off by making all of them longer.

Its limit stands in the user's code, where no settings reach it. Gradients so long that every limit is reached show where it acts: a
limit on the whole gradient keeps its direction, one on each micro-batch or on the running sum does not.
"""

from collections.abc import Iterator

import torch

from accum_sweeps.ladder.bench import Bench, Step
from accum_sweeps.ladder.findings import UNKNOWN, Experiment, Finding
from accum_sweeps.ladder.geometry import geometry
from accum_sweeps.ladder.observation import Tensors
from accum_sweeps.ladder.oracle import Tampering
from accum_sweeps.ladder.shares import shares
from accum_sweeps.ladder.updates import STRETCH

ADDED = 1e-5  # torch adds 1e-6 to a norm before it divides by it; relative, of a gradient that is not very short


def own_clipping(bench: Bench, free: Step, tolerance: float) -> Iterator[Finding]:
    """Whether the micro-batches of ``free``, a window without a limit, are shortened by themselves where there is one."""
    if bench.hides_length or not free.seen.gradient or len(free.members) == 1:
        return
    seen = bench.code(free.spec, tampering=Tampering(own_scale=STRETCH)).observe()
    limited, known = seen.gradient, max(tolerance, ADDED)
    apart = geometry(limited, free.seen.gradient).eta
    if not limited or apart <= known or _is_shortened_once(limited, free.seen.gradient, known):
        return
    found = shares(limited, free.members)
    proof = Experiment(words="gradients so short that no limit is reached, beside so long that every one is", before=apart, after=0.0)
    words = f"where the length of gradients is limited, {apart:.3g} of the whole lies in another direction than without a limit"
    is_known = found.is_told and found.residual <= 10 * known
    yield Finding(name="clip_per_micro_batch" if is_known else UNKNOWN, rung=5, words=words, experiments=(proof,))


def _is_shortened_once(limited: Tensors, free: Tensors, known: float) -> bool:
    """Whether each tensor of the whole gradient, or each element, has a limit of its own: that comes after the accumulation, too."""
    if all(geometry({"": limited[name]}, {"": free[name]}).eta <= known for name in limited if name in free):
        return True
    largest = max((float(part.abs().max()) for part in limited.values()), default=0.0)
    clamped: dict[str, torch.Tensor] = {name: part.clamp(-largest, largest) for name, part in free.items()}
    return geometry(limited, clamped).relative <= known
