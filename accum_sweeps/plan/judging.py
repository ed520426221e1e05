"""How a sweep is judged: the reference arm, the response and the margin, fixed in the plan before the runs."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from accum_sweeps.plan.errors import ConfigError
from accum_sweeps.plan.names import check_sweep_name

ALPHA = 0.05  # the level at which a test rejects
KEYS = ("reference", "response", "margin", "margin_from", "sign_flip")
RESPONSE = "eval_loss_final"  # whose verdict opens a report unless told otherwise


@dataclass(frozen=True, kw_only=True)
class Judging:
    """``reference`` is the reference arm's accumulation factor, None for each setup's smallest. ``response`` opens the report.

    ``margins`` are the largest shifts that do not matter, by response, in its unit; ``margin_from`` names an earlier sweep of the same
    root that the others come from. ``sign_flip`` replaces the paired t tests.
    """

    reference: int | None = None
    response: str = RESPONSE
    margins: Mapping[str, float] = field(default_factory=dict)
    margin_from: str | None = None
    sign_flip: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain values under the configuration's keys."""
        margin = dict(self.margins) or None
        values = (self.reference, self.response, margin, self.margin_from, self.sign_flip)
        return dict(zip(KEYS, values, strict=True))

    def asked(self) -> dict[str, Any]:
        """Of :meth:`to_dict` what is not the default."""
        default = Judging().to_dict()
        return {key: value for key, value in self.to_dict().items() if value != default[key]}


def read_judging(values: Mapping[str, Any], arms: list[int] | None = None) -> Judging:
    """The Judging of the configuration's ``analysis`` (other keys are not looked at); ConfigError for what it cannot be.

    ``arms`` are the accumulation factors of the grid, where it has that axis.
    """
    response, sign_flip, earlier = values.get("response") or RESPONSE, values.get("sign_flip") or False, values.get("margin_from")
    if not isinstance(response, str):
        raise ConfigError("analysis.response", response, "must be the name of a column of the results table, e.g. eval_loss_final")
    if not isinstance(sign_flip, bool):
        raise ConfigError("analysis.sign_flip", sign_flip, "must be true or false")
    return Judging(
        reference=_reference(values.get("reference"), arms),
        response=response,
        margins=_margins(values.get("margin"), response),
        margin_from=None if earlier is None else check_sweep_name(str(earlier)),
        sign_flip=sign_flip,
    )


def check_sign_flip(judging: Judging, seeds: int, arms: int) -> None:
    """ConfigError where sign-flip tests of ``seeds`` pairs could reject nothing: their smallest p value is 2^(1 - seeds).

    Holm's procedure corrects for 2K - 1 tests, K being the number of ``arms``.
    """
    needed = math.ceil(1 + math.log2((2 * arms - 1) / ALPHA))
    if judging.sign_flip and seeds < needed:
        raise ConfigError(
            "analysis.sign_flip", True, f"could never reject with {seeds} seeds and {arms} accumulation factors; at least {needed} seeds"
        )


def _reference(reference: Any, arms: list[int] | None) -> int | None:
    if reference is None:
        return None
    if isinstance(reference, bool) or not isinstance(reference, int) or reference < 1:
        raise ConfigError("analysis.reference", reference, "must be an accumulation factor of the grid, or null for its smallest")
    if arms and reference not in arms:
        raise ConfigError("analysis.reference", reference, f"must be one of the accumulation factors of the grid: {arms}")
    return reference


def _margins(margin: Any, response: str) -> dict[str, float]:
    """A number is the margin of the response that opens the report; a mapping names responses."""
    given = margin if isinstance(margin, Mapping) else {} if margin is None else {response: margin}
    for name, value in given.items():
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not 0 < value < float("inf"):
            key = f"analysis.margin.{name}" if isinstance(margin, Mapping) else "analysis.margin"
            raise ConfigError(key, value, "must be above 0 and finite, in the response's unit (nats for a loss)")
    return {str(name): float(value) for name, value in given.items()}
