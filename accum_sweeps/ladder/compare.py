"""Measures of the difference between two sets of tensors that algebra says are equal. Pure functions; sums in float64.

``torch.allclose(arm, reference, rtol, atol)`` asks |arm - reference| <= atol + rtol * |reference| of every element. Its answer
depends on the unit of the tensors; the relative L2 difference ||arm - reference|| / ||reference|| does not.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

RTOL = 1e-5  # torch.allclose's default
ATOL = 1e-7  # that of open_lm's test
CHUNK = 1 << 16  # elements
ZERO_NORM = 4.0  # a tensor's gradient counts as zero but for rounding below this many unit roundoffs of the whole gradient's norm


@dataclass(frozen=True, kw_only=True)
class Part:
    """The difference of one pair of tensors.

    ``squared`` and ``reference_squared`` are squared L2 norms of the difference and of the reference, ``largest`` the largest
    absolute difference, ``tolerance`` the smallest atol at which ``torch.allclose`` with its default rtol passes. ``failing`` of
    the ``elements`` fail at atol 1e-7; ``moved`` differ at all. Not finite on one side only: everything infinite.
    """

    squared: float = 0.0
    reference_squared: float = 0.0
    largest: float = 0.0
    tolerance: float = 0.0
    failing: int = 0
    moved: int = 0
    elements: int = 0

    def __add__(self, other: "Part") -> "Part":
        return Part(
            squared=self.squared + other.squared,
            reference_squared=self.reference_squared + other.reference_squared,
            largest=max(self.largest, other.largest),
            tolerance=max(self.tolerance, other.tolerance),
            failing=self.failing + other.failing,
            moved=self.moved + other.moved,
            elements=self.elements + other.elements,
        )

    @property
    def relative(self) -> float:
        """||arm - reference|| / ||reference||; 0 where both are equal, infinite where only the reference is zero."""
        return ratio(math.sqrt(self.squared), math.sqrt(self.reference_squared))

    @property
    def size(self) -> float:
        """Root mean square of the reference."""
        return math.sqrt(ratio(self.reference_squared, self.elements))


def ratio(numerator: float, denominator: float) -> float:
    """Their quotient; 0 / 0 = 0, x / 0 = inf; NaN where one of them is."""
    if denominator == 0 and not math.isnan(numerator):
        return 0.0 if numerator == 0 else math.inf
    return numerator / denominator if denominator else math.nan


def part(arm: Tensor, reference: Tensor, rtol: float = RTOL, atol: float = ATOL) -> Part:
    """The difference of two tensors of one shape and dtype. NaN at the same place on both sides counts as equal."""
    return total(_piece(own, other, rtol, atol) for own, other in chunks(arm, reference))


def chunks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Tensors of one shape, flat, in pieces that fit into a core's cache: intermediate results of a whole tensor do not."""
    return zip(*(torch.split(tensor.flatten(), CHUNK) for tensor in tensors), strict=True)


def _piece(arm: Tensor, reference: Tensor, rtol: float, atol: float) -> Part:
    second = reference.double()
    reference_squared, elements = float(second.square().sum()), arm.numel()
    if torch.equal(arm, reference):
        return Part(reference_squared=reference_squared, elements=elements)
    difference = arm.double() - second
    squared = float(difference.square().sum())
    if not math.isfinite(squared):
        difference = _with_infinities(difference, arm, reference)
        squared = float(difference.square().sum())
    magnitude = difference.abs()
    excess = (magnitude - rtol * second.abs()).nan_to_num(math.inf, posinf=math.inf).masked_fill(difference == 0, 0.0)
    tolerance = max(0.0, float(excess.max()))
    failing = 0
    if tolerance > atol / 2:  # allclose itself, in the tensors' own dtype, may judge a little differently
        failing = int((~torch.isclose(arm, reference, rtol=rtol, atol=atol, equal_nan=True)).sum())
    return Part(
        squared=squared,
        reference_squared=reference_squared,
        largest=float(magnitude.max()),
        tolerance=tolerance,
        failing=failing,
        moved=int(difference.count_nonzero()),
        elements=elements,
    )


def _with_infinities(difference: Tensor, arm: Tensor, reference: Tensor) -> Tensor:
    """0 where both sides are the same infinity or both are NaN, infinite where just one is not finite."""
    same = (arm == reference) | (arm.isnan() & reference.isnan())
    return difference.nan_to_num(math.inf, posinf=math.inf, neginf=-math.inf).masked_fill(same, 0.0)


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The differences of named tensors, and of all of them together."""

    parts: Mapping[str, Part] = field(repr=False)
    whole: Part

    @property
    def failing_tensors(self) -> int:
        """Tensors with an element that fails torch.allclose at rtol 1e-5 and atol 1e-7."""
        return sum(each.failing > 0 for each in self.parts.values())

    def by_tensor(self, unit_roundoff: float) -> dict[str, float]:
        """Relative L2 difference of each tensor, against the whole's norm where the tensor's own is zero but for rounding."""
        whole = math.sqrt(self.whole.reference_squared)
        least = ZERO_NORM * unit_roundoff * whole
        norms = {name: math.sqrt(each.reference_squared) for name, each in self.parts.items()}
        return {name: ratio(math.sqrt(each.squared), norms[name] if norms[name] > least else whole) for name, each in self.parts.items()}

    def zero_tensors(self, unit_roundoff: float) -> list[str]:
        """The tensors whose own norm is zero but for rounding; their own relative difference says nothing."""
        least = ZERO_NORM * unit_roundoff * math.sqrt(self.whole.reference_squared)
        return [name for name, each in self.parts.items() if math.sqrt(each.reference_squared) <= least]

    def shares(self) -> dict[str, float]:
        """Each tensor's share of the squared difference; all 0 where nothing differs."""
        return {name: ratio(each.squared, self.whole.squared) for name, each in self.parts.items()}


def difference(arm: Mapping[str, Tensor], reference: Mapping[str, Tensor]) -> Difference:
    """The difference of tensors of the same names. One that is missing on one side counts as zeros there."""
    names = dict.fromkeys([*reference, *arm])
    parts = {name: part(*_pair(arm.get(name), reference.get(name))) for name in names}
    return Difference(parts=parts, whole=total(parts.values()))


def total(parts: Iterable[Part]) -> Part:
    """The parts as one."""
    return sum(parts, Part())


def _pair(arm: Tensor | None, reference: Tensor | None) -> tuple[Tensor, Tensor]:
    if arm is None or reference is None:
        given = arm if reference is None else reference
        assert given is not None
        zeros = torch.zeros_like(given)
        return (zeros, given) if arm is None else (given, zeros)
    return arm, reference
