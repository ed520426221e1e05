"""Where a gradient differs: the tensor that is farthest from the right one."""

from collections.abc import Sequence
from dataclasses import dataclass

from accum_sweeps.ladder.geometry import geometry
from accum_sweeps.ladder.observation import Member, Tensors
from accum_sweeps.ladder.shares import combined, norm

ZERO = 1e-8  # of the whole gradient: a tensor that is shorter is zero but for rounding, and is measured by the whole


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """``value``: relative L2 difference of the tensor's gradient; ``floor``: what rounding of the whole may leave in it."""

    name: str
    value: float
    floor: float

    @property
    def is_above(self) -> bool:
        """More than rounding."""
        return not self.value <= self.floor


def worst_tensor(gradient: Tensors, members: Sequence[Member], tolerance: float) -> Tensor | None:
    """Of the tensors of ``gradient`` above their floors, or of all where none is, the one with the largest difference; None without any.

    Rounding is at most ``tolerance`` of the whole gradient's length, so it may be a larger share of a tensor that is shorter.
    """
    total = sum(member.terms for member in members)
    right = combined(members, [1 / total] * len(members)) if total else {}
    whole = norm(right)
    found = [_tensor(name, gradient, right, whole, tolerance) for name in dict.fromkeys([*right, *gradient])] if whole else []
    return max(found, key=lambda each: (each.is_above, each.value), default=None)


def _tensor(name: str, gradient: Tensors, right: Tensors, whole: float, tolerance: float) -> Tensor:
    sides = [{name: side[name]} if name in side else {} for side in (gradient, right)]
    length = norm(sides[1])
    if length <= ZERO * whole:
        apart = norm(sides[0]) / whole  # it is not there on the right side
        return Tensor(name=name, value=apart, floor=max(tolerance, length / whole))
    return Tensor(name=name, value=geometry(*sides).relative, floor=tolerance * whole / length)
