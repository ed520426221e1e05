"""Rounding controls: runs in which the same algebra is carried out with other rounding.

``regroup`` cuts another partition of the same samples into micro-batches, ``order`` takes the micro-batches in another
order, ``permute`` the samples within each micro-batch; ``ulp_weights`` moves every initial weight, and ``ulp_grads`` every
gradient entry, by one unit in the last place up or down. All of them are keyed by the run's seed, not by the replicate.
What cannot differ stays exactly equal: ``order`` with fewer than three micro-batches in all (a + b = b + a), ``permute`` with one row each.
"""

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from accum_sweeps.plan.spec import RunSpec
from accum_sweeps.training import seeding
from accum_sweeps.training.task import Rows, Training

_INTEGERS = {8: torch.int64, 4: torch.int32, 2: torch.int16}


def partition(spec: RunSpec, step: int, rows: int | None = None, rank: int = 0) -> list[Rows]:
    """The row numbers of each micro-batch that ``rank`` sees of the ``rows`` rows of optimizer step ``step``.

    ``rows`` is the global batch unless given. ``accum`` parts of equal length; in the short last window of an epoch there are
    fewer parts, and the last one may be short. Raises ValueError where ``accum`` does not divide the global batch.
    """
    batch = spec.setup.global_batch
    if batch % (spec.setup.ranks * spec.accum):
        raise ValueError(f"accum={spec.accum} does not divide the {batch // spec.setup.ranks} rows of a batch")
    rows = batch if rows is None else rows
    rng = seeding.generator("control", spec.seed, spec.control, step)
    parts = _PARTITIONS.get(spec.control, _plain)(rows, spec, rng)
    return parts[rank * spec.accum : (rank + 1) * spec.accum]


def _plain(rows: int, spec: RunSpec, rng: np.random.Generator) -> list[Rows]:
    return _cut(np.arange(rows, dtype=np.intp), spec.micro_batch)


def _cut(rows: Rows, size: int) -> list[Rows]:
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def _regroup(rows: int, spec: RunSpec, rng: np.random.Generator) -> list[Rows]:
    plain = _plain(rows, spec, rng)
    # With one part, or one row to a part, there is no other partition: only the order can differ.
    view: Callable[[list[Rows]], object] = _members if 1 < len(plain) < rows else _sequence
    while True:
        parts = _cut(rng.permutation(rows), spec.micro_batch)
        if rows == 1 or view(parts) != view(plain):
            return parts


def _order(rows: int, spec: RunSpec, rng: np.random.Generator) -> list[Rows]:
    plain = _plain(rows, spec, rng)
    order = _other_permutation(len(plain), rng)
    while len(plain) > 2 and _summation(order, spec.accum) == _summation(np.arange(len(plain)), spec.accum):
        order = _other_permutation(len(plain), rng)
    return [plain[i] for i in order]


def _summation(order: Rows, per_rank: int) -> object:
    """The sum that micro-batches in this order make: a rank's first two, and the ranks, can be swapped without changing a bit."""
    of_rank = _cut(order, per_rank)
    return {(frozenset(part[:2].tolist()), tuple(part[2:].tolist())) for part in of_rank}


def _permute(rows: int, spec: RunSpec, rng: np.random.Generator) -> list[Rows]:
    return [part[_other_permutation(len(part), rng)] for part in _plain(rows, spec, rng)]


_PARTITIONS: dict[str, Callable[[int, RunSpec, np.random.Generator], list[Rows]]] = {
    "regroup": _regroup,
    "order": _order,
    "permute": _permute,
}


def _members(parts: list[Rows]) -> object:
    return {frozenset(part.tolist()) for part in parts}


def _sequence(parts: list[Rows]) -> object:
    return [part.tolist() for part in parts]


def _other_permutation(length: int, rng: np.random.Generator) -> Rows:
    """A random permutation that is not the identity, where there is one: a control that changes nothing controls nothing."""
    while True:
        drawn = rng.permutation(length)
        if length == 1 or (drawn != np.arange(length)).any():
            return drawn


def install(spec: RunSpec, training: Training) -> None:
    """Apply ``ulp_weights`` to the initial weights; let ``ulp_grads`` act before each update. Others: nothing."""
    move_weights(spec, training)
    if spec.control == "ulp_grads":
        reached = weakref.proxy(training)  # not the training itself, which refers to the optimizer: its memory is to be free at its end

        def before_update(*_: Any) -> None:
            seed = seeding.torch_seed_of("control", spec.seed, "ulp_grads", reached.position + 1)
            move_one_ulp((p.grad for p in reached.parameters if p.grad is not None), seed)

        # A hook of the optimizer reaches users' own steps as well.
        training.optimizer.register_step_pre_hook(before_update)


def move_weights(spec: RunSpec, training: Training) -> bool:
    """Move every weight by one unit in the last place if that is the run's control (``ulp_weights``); whether it is."""
    if spec.control != "ulp_weights":
        return False
    move_one_ulp(training.parameters, seeding.torch_seed_of("control", spec.seed, "ulp_weights"))
    return True


@torch.no_grad()
def move_one_ulp(tensors: Iterable[torch.Tensor], seed: int) -> None:
    """Move every nonzero, finite entry one unit in the last place away from or towards zero, at random, in place.

    In IEEE formats neighbouring numbers of one sign have neighbouring bit patterns. Zeros stay zero.
    """
    generator = torch.Generator().manual_seed(seed)
    for tensor in tensors:
        integer = _INTEGERS[tensor.element_size()]
        up = torch.randint(0, 2, tensor.shape, generator=generator, dtype=integer).to(tensor.device)
        movable = (tensor != 0) & tensor.isfinite()
        # contiguous() copies only where the entries are not laid out one after the other.
        bits = tensor.contiguous().view(integer) + (2 * up - 1)
        tensor.copy_(torch.where(movable, bits.view(tensor.dtype), tensor))
