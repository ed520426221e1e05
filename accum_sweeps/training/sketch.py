"""A small linear sketch of all weights, so that the distance between any two runs can be had from their tables.

Count sketch (Charikar, Chen and Farach-Colton 2002): every weight gets, by its tensor's name and its position, one of 4096
buckets and a sign; a bucket holds the signed sum of its weights in float64. The sketch is linear, so the sketch of a
difference is the difference of sketches, and its squared norm is an unbiased estimate of the squared distance with a
relative standard deviation of at most sqrt(2/4096) = 2.2 %, hence 1.1 % for the distance. Equal weights give exactly 0. Rounding of
the float64 sums limits relative distances to about 1e-14.
"""

import functools
import hashlib
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from accum_sweeps.training import seeding

BUCKETS = 4096
_SEED = 0  # part of the definition: sketches made with another seed cannot be compared
_CACHED_PARTS = 64
_PART = 1 << 18  # weights of one tensor that are hashed at a time

Sketch = NDArray[np.float64]


def sketch(model: torch.nn.Module) -> Sketch:
    """The sketch of all parameters of ``model``: float64, shape (4096,); the same for every dtype that holds the same values."""
    signed = np.zeros(2 * BUCKETS)
    for name, values in _parameters(model):
        flat = values.to(torch.float64).flatten().numpy()
        for part in range(0, flat.size, _PART):
            piece = flat[part : part + _PART]
            signed += np.bincount(_places(name, part, piece.size), weights=piece, minlength=2 * BUCKETS)
    return signed[:BUCKETS] - signed[BUCKETS:]


@functools.lru_cache(maxsize=_CACHED_PARTS)
def _places(name: str, part: int, size: int) -> NDArray[np.intp]:
    """For weights ``part`` to ``part + size`` of the tensor ``name``: the bucket, plus 4096 where the sign is negative."""
    rng = seeding.generator("sketch", _SEED, name, part)
    return rng.integers(0, 2 * BUCKETS, size=size, dtype=np.uint16).astype(np.intp)


def _parameters(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for name, parameter in model.named_parameters():
        yield name, parameter.detach().cpu().contiguous()


def weights_hash(model: torch.nn.Module) -> str:
    """32 hex digits over names, shapes, dtypes and exact bytes of all parameters."""
    digest = hashlib.blake2b(digest_size=16)
    for name, values in _parameters(model):
        digest.update(f"{name} {tuple(values.shape)} {values.dtype}\n".encode())
        digest.update(values.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
