"""A verdict in one sentence that a person can use: what was seen, what is excluded, what was not looked at."""

from accum_sweeps.analysis.cells import Cells
from accum_sweeps.analysis.comparison import Arm, Comparison
from accum_sweeps.analysis.words import arms as arms_in_words
from accum_sweeps.analysis.words import decimals, interval, listed, rounded_up, signed


def sentence(code: str, compared: Comparison, cells: Cells, unit: str, margin: float | None, has_controls: bool) -> str:
    """The sentence of an assessable verdict."""
    parts = {"effect": _detected, "negligible": _detected, "equivalent": _not_detected, "inconclusive": _not_detected}[code](compared, unit)
    parts += _equivalence(code, compared, unit, margin)
    parts += _divergence(compared, len(cells.seeds))
    if cells.mixed:
        parts.append(f"arms of seed {listed(cells.mixed)} were run in several environments, only those of one are compared")
    parts.append("rounding not assessed" if has_controls else "rounding not assessed (no controls)")
    return "; ".join(parts)


def not_assessable(reasons: tuple[str, ...]) -> str:
    """The sentence of a setup that these runs cannot judge."""
    return f"not assessable: {'; '.join(reasons)}"


def _detected(compared: Comparison, unit: str) -> list[str]:
    found = [arm for arm in compared.arms if arm.is_detected]
    rest = [arm for arm in compared.arms if not arm.is_detected]
    words = f"shift against k={compared.reference} detected at " + ", ".join(_shift(arm, unit) for arm in found)
    return [words] + ([f"not at {arms_in_words(arm.accum for arm in rest)}"] if rest else [])


def _shift(arm: Arm, unit: str) -> str:
    places = decimals(arm.shift.high - arm.shift.mean)
    return f"k={arm.accum} ({signed(arm.shift.mean, places)} {interval(arm.shift.low, arm.shift.high, places)} {unit}{_sigmas(arm)})"


def _sigmas(arm: Arm) -> str:
    mean, low, _ = arm.in_sigma
    return "" if mean != mean else f", {signed(mean, decimals(mean - low))} sigma_tot"


def _not_detected(compared: Comparison, unit: str) -> list[str]:
    same = [arm for arm in compared.arms if arm.shift.is_exactly_zero]
    others = [arm for arm in compared.arms if not arm.shift.is_exactly_zero]
    parts = []
    if same:
        pairs = sorted({arm.shift.pairs for arm in same})
        seeds = f"all {pairs[0]} pairs" if len(pairs) == 1 else "all pairs"
        parts.append(f"exactly the value of k={compared.reference} at {arms_in_words(arm.accum for arm in same)} in {seeds} of runs")
    if others:
        parts.append(f"no shift detected at {arms_in_words(arm.accum for arm in others)}")
        parts += _excluded(others, unit)
    return parts


def _excluded(arms: list[Arm], unit: str) -> list[str]:
    """What the widest interval leaves possible; nothing if an arm has no interval."""
    bounds = [max(abs(arm.shift.low), abs(arm.shift.high)) for arm in arms]
    if any(bound != bound for bound in bounds):
        return []
    sigmas = [max(abs(arm.in_sigma[1]), abs(arm.in_sigma[2])) for arm in arms]
    words = f"{rounded_up(max(bounds))} {unit}"
    if all(bound == bound for bound in sigmas):
        words = f"{rounded_up(max(sigmas))} sigma_tot as estimated ({words})"
    return [f"the 95 % intervals, each by itself, exclude shifts beyond {words}"]


def _equivalence(code: str, compared: Comparison, unit: str, margin: float | None) -> list[str]:
    if margin is None:
        return ["equivalence not judged (no margin)"]
    if code in ("equivalent", "negligible"):
        return [f"equivalent within the margin of {margin:g} {unit}"]
    failed = [arm for arm in compared.arms if not arm.is_equivalent]
    if failed:
        return [f"equivalence within {margin:g} {unit} not shown at {arms_in_words(arm.accum for arm in failed)}"]
    return [f"equivalence within {margin:g} {unit} not claimed, as runs diverged"]


def _divergence(compared: Comparison, seeds: int) -> list[str]:
    counts = {compared.reference: compared.diverged} | {arm.accum: arm.diverged for arm in compared.arms}
    if not any(counts.values()):
        return []
    return [f"diverged of {seeds} seeds: " + ", ".join(f"{number} at k={k}" for k, number in sorted(counts.items()))]
