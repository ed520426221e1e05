"""Random numbers as pure functions of (stream, seed, counters): counter-based, so that nothing depends on who drew before.

The streams of a run are ``init`` (initial weights), ``data`` (which samples a step sees) and ``dropout``; ``control`` draws
what a rounding control changes. numpy only: planning uses the hashes without torch.
"""

import hashlib

import numpy as np


def key(stream: str, seed: int, *counters: int | str) -> int:
    """A 128-bit number for this place of this stream."""
    return int.from_bytes(hashlib.blake2b(repr((stream, seed, counters)).encode(), digest_size=16).digest(), "little")


def generator(stream: str, seed: int, *counters: int | str) -> np.random.Generator:
    """A fresh generator (Philox, counter-based) for this place of this stream."""
    return np.random.Generator(np.random.Philox(key=key(stream, seed, *counters)))


def seed_dropout(seed: int, step: int, device: str, rank: int = 0) -> None:
    """Set torch's generators, from which dropout masks are drawn on ``device``, to the place of optimizer step ``step``.

    Masks then depend on the seed, the step, the rank and the order of the micro-batches within it, and on no earlier step.
    """
    import torch

    number = torch_seed_of("dropout", seed, step, *([rank] if rank else []))
    # Not torch.manual_seed: it visits every kind of device that there could be, half a millisecond at each step.
    torch.default_generator.manual_seed(number)
    if device == "cuda":
        torch.cuda.manual_seed_all(number)


def torch_seed_of(stream: str, seed: int, *counters: int | str) -> int:
    """A seed for a ``torch.Generator`` at this place of this stream."""
    return key(stream, seed, *counters) % 2**63
