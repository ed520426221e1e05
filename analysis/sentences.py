"""A verdict in one sentence that a person can use: what was seen, what is excluded, what was not looked at."""

import math

from accum_sweeps.analysis.cells import Cells
from accum_sweeps.analysis.comparison import Arm, Comparison
from accum_sweeps.analysis.dispersion import Dispersion
from accum_sweeps.analysis.margin import Margin
from accum_sweeps.analysis.rules import EXCESS_LIMIT, LAMBDA_LIMIT, Decision, Statistics
from accum_sweeps.analysis.words import MOST_ARMS, decimals, interval, listed, rounded_up, signed
from accum_sweeps.analysis.words import arms as arms_in_words
from accum_sweeps.plan.judging import ALPHA
from accum_sweeps.plan.words import counted

WORDS = {
    "not_assessable": "not assessable",
    "effect": "accumulation effect detected",
    "negligible": "detected, negligible",
    "indistinguishable": "indistinguishable from rounding",
    "equivalent": "equivalent within margin",
    "inconclusive": "inconclusive",
}


MOST_SEEDS = 10_000  # beyond that the number says only that seeds are no way


def headline(decision: Decision) -> str:
    """The verdict in a few words, for an inconclusive one with what to do."""
    words = WORDS[decision.code]
    if decision.exceeds_rounding and decision.code in ("negligible", "equivalent"):
        return f"{words}, but more than rounding"
    if decision.shorten_horizon:
        return f"{words}: shorten the horizon"
    if decision.more_seeds is not None and decision.more_seeds > MOST_SEEDS:
        return f"{words}: more than {MOST_SEEDS:,} more seeds"
    if decision.more_seeds is not None:
        return f"{words}: {decision.more_seeds} more seed{'s' if decision.more_seeds > 1 else ''}"
    return words


def sentence(compared: Comparison, statistics: Statistics, decision: Decision, cells: Cells, unit: str, control: str) -> str:
    """The sentence of an assessable verdict; ``control`` is the kind of its controls."""
    parts = _shifts(compared, unit)
    parts += _equivalence(compared, statistics.margin, unit)
    parts += _dispersion(statistics.dispersion, decision, control)
    parts += _excess(statistics.excess, compared, control)
    parts += _divergence(compared, len(cells.seeds))
    if decision.shorten_horizon:
        parts.append(
            f"runs that differ by rounding alone differ by {math.sqrt(decision.path_share):.0%} of what seeds do, so more seeds help little"
        )
    if cells.is_grouped:
        parts.append(f"seeds that share their data are averaged, {len(cells.seeds)} groups of them are compared")
    incomplete = int((~cells.complete).sum())
    if incomplete:
        parts.append(f"incomplete seeds: {incomplete} of {len(cells.seeds)}")
    if cells.mixed:
        seeds = f"seed{'s' if len(cells.mixed) > 1 else ''} {listed(cells.mixed)}"
        parts.append(f"arms of {seeds} were run in several environments, only those of one are compared")
    if not decision.rounding_is_assessed:
        parts.append(f"rounding not assessed ({_why_not(statistics)})")
    return f"{headline(decision)}: {'; '.join(parts)}"


def not_assessable(reasons: tuple[str, ...]) -> str:
    """The sentence of a setup that these runs cannot judge."""
    return f"{WORDS['not_assessable']}: {'; '.join(reasons)}"


def _shifts(compared: Comparison, unit: str) -> list[str]:
    """What was seen at each arm: shifts that were detected, exact equality, and how large the rest can be at most."""
    found = [arm for arm in compared.arms if arm.is_detected]
    same = [arm for arm in compared.arms if arm.shift.is_exactly_zero and not arm.is_detected]
    rest = [arm for arm in compared.arms if not arm.is_detected and not arm.shift.is_exactly_zero]
    parts = []
    if found:
        parts.append(f"shift against k={compared.reference} at {_found(found, unit)}")
    if same:
        pairs = sorted({arm.shift.pairs for arm in same})
        seeds = f"all {pairs[0]} pairs" if len(pairs) == 1 else "all pairs"
        parts.append(f"exactly the value of k={compared.reference} at {arms_in_words(arm.accum for arm in same)} in {seeds} of runs")
    if rest:
        parts.append(f"no shift detected at {arms_in_words(arm.accum for arm in rest)}")
        parts += _excluded(rest, unit)
    return parts


def _found(found: list[Arm], unit: str) -> str:
    if len(found) <= MOST_ARMS:
        return ", ".join(_shift(arm, unit) for arm in found)
    largest = max(found, key=lambda arm: abs(arm.shift.mean))
    return f"{len(found)} arms, the largest at {_shift(largest, unit)}"


def _shift(arm: Arm, unit: str) -> str:
    places = decimals(arm.shift.high - arm.shift.mean)
    return f"k={arm.accum} ({signed(arm.shift.mean, places)} {interval(arm.shift.low, arm.shift.high, places)} {unit}{_sigmas(arm)})"


def _sigmas(arm: Arm) -> str:
    mean, low, _ = arm.in_sigma
    return "" if math.isnan(mean) else f", {signed(mean, decimals(mean - low))} sigma_tot"


def _excluded(arms: list[Arm], unit: str) -> list[str]:
    """What the widest interval leaves possible; nothing if an arm has no interval."""
    bounds = [max(abs(arm.shift.low), abs(arm.shift.high)) for arm in arms]
    if any(map(math.isnan, bounds)):
        return []
    sigmas = [max(abs(arm.in_sigma[1]), abs(arm.in_sigma[2])) for arm in arms]
    words = f"{rounded_up(max(bounds))} {unit}"
    if not any(map(math.isnan, sigmas)):
        words = f"{rounded_up(max(sigmas))} sigma_tot as estimated ({words})"
    return [f"the 95 % intervals, each by itself, exclude shifts beyond {words}"]


def _equivalence(compared: Comparison, margin: Margin, unit: str) -> list[str]:
    if margin.value is None:
        return [f"equivalence not judged ({margin.source})"]
    within = f"the margin of {margin.value:.2g} {unit}"
    far = [arm for arm in compared.arms if not arm.tost_p <= ALPHA]
    wide = [arm for arm in compared.arms if arm.tost_p <= ALPHA and not arm.is_equivalent]
    parts = [f"not shown to be within {within} at {arms_in_words(arm.accum for arm in far)}"] if far else [f"every shift within {within}"]
    if wide:
        parts.append(f"single runs may differ by more than another seed does at {arms_in_words(arm.accum for arm in wide)}")
    return parts


def _dispersion(dispersion: Dispersion | None, decision: Decision, control: str) -> list[str]:
    if dispersion is None or not dispersion.is_assessable:
        return []
    places = decimals(dispersion.ratio)
    limits = f"lambda {dispersion.ratio:.{places}f} [{dispersion.low:.2g}, {dispersion.high:.2g}]"
    if decision.dispersion_p <= ALPHA:
        return [f"accumulated runs vary more than their {control} controls do: {limits}"]
    close = f"at most {rounded_up(dispersion.upper)}" if dispersion.upper <= LAMBDA_LIMIT else f"not shown to be below {LAMBDA_LIMIT:g}"
    return [f"variance over accumulated runs in units of that over {control} controls: {limits}, {close}"]


def _excess(excess: Dispersion | None, compared: Comparison, control: str) -> list[str]:
    if excess is None or not excess.is_assessable:
        return []
    words = f"squared differences from k={compared.reference} in units of those of {control} controls from their twins: {excess.ratio:.2g}"
    limits = f"[{excess.low:.2g}, {excess.high:.2g}]"
    if excess.low > EXCESS_LIMIT:
        return [f"{words} {limits}, so more than rounding of the kind that the controls have"]
    if excess.high < 1 / LAMBDA_LIMIT:
        return [f"{words} {limits}: the controls move a run further than accumulation does, a wide yardstick"]
    close = f"at most {rounded_up(excess.upper)}" if excess.upper <= EXCESS_LIMIT else f"not shown to be below {EXCESS_LIMIT:g}"
    return [f"{words} {limits}, {close}"]


def _why_not(statistics: Statistics) -> str:
    """Of the two comparisons with controls the first that could not be made."""
    made = (statistics.dispersion, statistics.excess)
    return next((each.why_not for each in made if each is not None and each.why_not), "no controls")


def _divergence(compared: Comparison, seeds: int) -> list[str]:
    counts = {compared.reference: compared.diverged} | {arm.accum: arm.diverged for arm in compared.arms}
    if not any(counts.values()):
        return []
    words = [f"diverged of {counted(seeds, 'seed')}: {_numbers(counts, compared.reference)}"]
    found = [arm for arm in compared.arms if arm.divergence_p_holm <= ALPHA]
    alone = [arm for arm in compared.arms if arm.divergence.only_arm or arm.divergence.only_reference]
    if found:
        words.append(f"more or less often than k={compared.reference} at {arms_in_words(arm.accum for arm in found)}")
    elif alone:
        words.append(
            f"in some seeds at {arms_in_words(arm.accum for arm in alone)} alone or at k={compared.reference} alone, which is "
            "no equivalence, and too few to be tested"
        )
    return words


def _numbers(counts: dict[int, int], reference: int) -> str:
    """How many diverged at each k; of very many arms at the reference arm and at the worst of the others."""
    if len(counts) <= MOST_ARMS:
        return ", ".join(f"{number} at k={k}" for k, number in sorted(counts.items()))
    others = {k: number for k, number in counts.items() if k != reference}
    worst = max(sorted(others), key=lambda k: others[k])
    some = sum(number > 0 for number in others.values())
    return f"{counts[reference]} at k={reference}, some in {some} of the {len(others)} other arms, most at k={worst} ({others[worst]})"
