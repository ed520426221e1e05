"""What the ladder can find, and the experiment behind each finding."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One thing changed, and what became of the difference: relative, ``before`` and ``after`` the change."""

    words: str
    before: float
    after: float


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A fault by its class in the catalogue, with the ``variant`` that was recognized (the class itself where there are no variants).

    ``rung`` is where it shows, ``words`` say what was seen, with figures; ``experiments`` are the proof.
    """

    name: str
    rung: int
    words: str
    variant: str = ""
    experiments: tuple[Experiment, ...] = ()
    figures: Mapping[str, float] = field(default_factory=dict)


UNKNOWN = "unknown_fault"
