"""A small linear sketch of all weights, so that the distance between any two runs can be had from their tables.

Count sketch (Charikar, Chen and Farach-Colton 2002): every weight gets, by its tensor's name and its position, one of 4096
buckets and a sign; a bucket holds the signed sum of its weights in float64. The sketch is linear, so the sketch of a
difference is the difference of sketches, and its squared norm is an unbiased estimate of the squared distance with a
relative standard deviation of at most sqrt(2/4096) = 2.2 %, hence 1.1 % for the distance. Equal weights give exactly 0. Rounding of
the float64 sums limits relative distances to about 1e-14.

Tensor by tensor the same draw is folded to 512 buckets: a relative standard deviation of at most sqrt(2/512) = 6.3 % of the squared
distance, 3.1 % of the distance. A tensor of at most 512 weights is kept as it is, and its distances are exact.
"""

import functools
import hashlib
from collections.abc import Iterable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from accum_sweeps.record.sketches import TENSOR_BUCKETS, TensorSketches
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
        for part in _parts(name, values):
            signed += part
    return _difference(signed)


def tensor_sketches(model: torch.nn.Module) -> tuple[Sketch, TensorSketches]:
    """What :func:`sketch` gives, to the last bit, and from the same pass 512 numbers and a hash for each parameter tensor."""
    signed = np.zeros(2 * BUCKETS)
    tensors = list(_parameters(model))
    made = [_of_tensor(name, values, signed) for name, values in tensors]
    return _difference(signed), TensorSketches(
        names=tuple(name for name, _ in tensors),
        sizes=np.array([values.numel() for _, values in tensors], dtype=np.int64),
        sketches=np.array(made, dtype=np.float64).reshape(-1, TENSOR_BUCKETS),
        hashes=tuple(_hash([each]) for each in tensors),
    )


def _of_tensor(name: str, values: torch.Tensor, signed: Sketch) -> Sketch:
    """The tensor's own sketch; its sums by place are added to ``signed``."""
    own = np.zeros(2 * BUCKETS)
    for part in _parts(name, values):
        own += part
        signed += part
    if values.numel() <= TENSOR_BUCKETS:
        flat = values.flatten().to(torch.float64).numpy()
        return np.pad(flat, (0, TENSOR_BUCKETS - flat.size))
    # Places are uniform over 4096, hence over their remainders: the fold is itself a count sketch.
    return np.asarray(_difference(own).reshape(-1, TENSOR_BUCKETS).sum(axis=0))


def _parts(name: str, values: torch.Tensor) -> Iterator[Sketch]:
    """Part by part of a tensor, the sum of its weights by place: float64, shape (8192,)."""
    flat = values.flatten()
    for start in range(0, len(flat), _PART):
        piece = flat[start : start + _PART].to(torch.float64).numpy()
        sums = np.bincount(_places(name, start, piece.size), weights=piece, minlength=2 * BUCKETS)
        yield np.asarray(sums, dtype=np.float64)


def _difference(signed: Sketch) -> Sketch:
    return np.asarray(signed[:BUCKETS] - signed[BUCKETS:])


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
    return _hash(_parameters(model))


def _hash(tensors: Iterable[tuple[str, torch.Tensor]]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name, values in tensors:
        digest.update(f"{name} {tuple(values.shape)} {values.dtype}\n".encode())
        digest.update(values.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
