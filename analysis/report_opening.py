"""How a report begins: whether the sweep is finished, then the verdict over all setups in two sentences."""

import math
from collections import Counter
from collections.abc import Sequence

import pandas as pd

from accum_sweeps.analysis.comparison import Arm
from accum_sweeps.analysis.judged import Judged
from accum_sweeps.analysis.labels import told_apart
from accum_sweeps.analysis.verdict import Verdict
from accum_sweeps.analysis.words import decimals, interval, listed, rounded_up, signed
from accum_sweeps.plan.judging import ALPHA
from accum_sweeps.plan.words import be, counted
from accum_sweeps.record.events import DONE

LEADS = {  # the first that occurs makes the first sentence; {where} is "2 of 5 setups" or a name
    "effect": "An effect of accumulation on {response} is detected in {where}",
    "negligible": "Accumulation changes {response} in {where}, but by less than the margin",
    "indistinguishable": "Accumulation is indistinguishable from rounding in {where}",
    "equivalent": "Accumulation shifts {response} by less than the margin in {where}",
    "inconclusive": "These runs do not decide whether accumulation changes {response} in {where}",
    "not_assessable": "What accumulation does to {response} cannot be assessed in {where}",
}
REST = {  # of the other setups
    "negligible": "detectably but negligibly changed",
    "indistinguishable": "indistinguishable from rounding",
    "equivalent": "equivalent within the margin",
    "inconclusive": "inconclusive",
    "not_assessable": "not assessable",
}
MOST_NAMED = 3
LONGEST_NAME = 80


def setup_names(verdicts: Sequence[Verdict]) -> list[str]:
    """The setups' labels, with their ids where two have the same one."""
    shared = Counter(each.setup for each in verdicts)
    return [f"{each.setup} ({each.setup_id})" if shared[each.setup] > 1 else each.setup for each in verdicts]


def brief_names(verdicts: Sequence[Verdict]) -> list[str]:
    """:func:`setup_names` where there is little room."""
    return told_apart(setup_names(verdicts), LONGEST_NAME)


def standing(results: pd.DataFrame) -> str:
    """What is missing of the runs, for the very top; empty where all are done."""
    counts = Counter(str(status) for status in results["status"])
    done, total = sum(counts[status] for status in DONE), counts.total()
    rest = ", ".join(f"{number} {status}" for status, number in sorted(counts.items()) if status not in DONE)
    if done == total:
        return ""
    if counts["planned"] or counts["running"]:
        what = "This sweep is unfinished"
    else:
        what = "This sweep was cancelled" if counts["cancelled"] else "Not every run came to an end"
    return f"{what}: {done} of {counted(total, 'run')} {be(done)} done, {rest}. All that follows is of the runs done so far and can change."


def opening(judged: Judged) -> tuple[str, ...]:
    """Two sentences on the opening response: what holds in how many setups, and how large it is or can be. One more on faults."""
    verdicts, response = judged.opening, judged.judging.response
    if not verdicts:
        return "No run can be judged yet.", "The first finished runs will give a table here."
    return _first(verdicts, response), f"{'; '.join([*_second(verdicts), *_others(judged)])}.", *_faults(judged)


def _first(verdicts: Sequence[Verdict], response: str) -> str:
    counts = Counter(each.code for each in verdicts)
    lead = next(code for code in LEADS if counts[code])
    names = [name for name, each in zip(brief_names(verdicts), verdicts, strict=True) if each.code == lead]
    where = names[0] if len(verdicts) == 1 else f"{counts[lead]} of {len(verdicts)} setups"
    if lead == "effect" and 1 < len(verdicts) and len(names) <= MOST_NAMED:
        where += f" ({'; '.join(names)})"
    words = LEADS[lead].format(response=response, where=where)
    rest = [f"{counts[code]} {be(counts[code])} {REST[code]}" for code in REST if code != lead and counts[code]]
    others = "the other" if len(verdicts) == counts[lead] + 1 else "of the others"
    if others == "the other":
        rest = [f"is {words_of}" for code, words_of in REST.items() if code != lead and counts[code]]
    return f"{words}; {others} {listed(rest)}." if rest else f"{words}."


def _faults(judged: Judged) -> list[str]:
    """What the ladders say of the code that was trained with."""
    wrong = [found for found in judged.ladders.values() if found.faults]
    if not wrong:
        return []
    names = listed(list(dict.fromkeys(name for found in wrong for name in found.faults)))
    where = "" if len(judged.opening) == 1 else f" in {len(wrong)} of {len(judged.opening)} setups"
    return [f"The accumulation is wrong{where}: the ladder found {names}. What is judged above is that of the wrong code."]


def _others(judged: Judged) -> list[str]:
    """Effects on the other responses: a reader who stops here must not miss them."""
    found = {name: sum(each.code == "effect" for each in verdicts) for name, verdicts in judged.verdicts.items()}
    found.pop(judged.judging.response)
    where = {name: "" if len(judged.opening) == 1 else f" in {counted(number, 'setup')}" for name, number in found.items() if number}
    return [f"on {name} an effect is detected{words}" for name, words in where.items()]


def _second(verdicts: Sequence[Verdict]) -> list[str]:
    names = {id(each): name for each, name in zip(verdicts, brief_names(verdicts), strict=True)}
    effects = [each for each in verdicts if each.code == "effect"]
    judged = [each for each in verdicts if each.code != "not_assessable"]
    if not judged:
        reasons = list(dict.fromkeys(reason for each in verdicts for reason in each.reasons))
        more = f", and {len(reasons) - MOST_NAMED} more" if len(reasons) > MOST_NAMED else ""
        return [f"The reason: {'; '.join(reasons[:MOST_NAMED])}{more}"]
    parts = [_largest_effect(effects, names, len(verdicts)) if effects else _largest_possible(judged, names, len(verdicts))]
    parts += _late_margins(judged)
    parts += _advice([each for each in verdicts if each.code == "inconclusive"])
    unassessed = [each for each in judged if each.decision and not each.decision.rounding_is_assessed]
    if unassessed:
        where = "" if len(verdicts) == 1 else f" in {len(unassessed)} of {len(verdicts)} setups"
        parts.append(f"rounding is not assessed{where}, for want of usable controls")
    return [*parts, *_beyond_rounding(judged, len(verdicts)), *_one_sided(judged, names, len(verdicts))]


def _late_margins(judged: Sequence[Verdict]) -> list[str]:
    """A margin that may have been chosen after a look at the runs decides nothing that others would have to believe."""
    sources = dict.fromkeys(each.margin.source for each in judged if each.margin.is_late)
    return [f"the margin was {source}" for source in sources]


def _beyond_rounding(judged: Sequence[Verdict], setups: int) -> list[str]:
    """Where arms are close enough and all the same differ by more than rounding: a fault may be as small as that."""
    small = [each for each in judged if each.code in ("negligible", "equivalent") and each.decision and each.decision.exceeds_rounding]
    where = "" if setups == 1 else f" in {len(small)} of {setups} setups"
    return [f"the differences are more than rounding{where}, however small"] if small else []


def _one_sided(judged: Sequence[Verdict], names: dict[int, str], setups: int) -> list[str]:
    """Divergence that is not significant is an outcome all the same."""
    arms = [(arm, each) for arm, each in _arms(judged) if each.code == "inconclusive"]
    arms = [(arm, each) for arm, each in arms if arm.divergence.only_arm or arm.divergence.only_reference]
    if not arms:
        return []
    arm, each = max(arms, key=lambda pair: max(pair[0].divergence.only_arm, pair[0].divergence.only_reference))
    return [_diverged(arm, each, f" in {names[id(each)]}" if setups > 1 else "") + ", too few for a test"]


def _at(arm: Arm, each: Verdict, names: dict[int, str], setups: int) -> str:
    return f"at k={arm.accum}" + (f" in {names[id(each)]}" if setups > 1 else "")


def _arms(verdicts: Sequence[Verdict]) -> list[tuple[Arm, Verdict]]:
    return [(arm, each) for each in verdicts if each.compared for arm in each.compared.arms]


def _largest_effect(effects: Sequence[Verdict], names: dict[int, str], setups: int) -> str:
    """The largest shift and the clearest divergences; without both the spread that made the effect."""
    parts = []
    shifts = [(arm, each) for arm, each in _arms(effects) if arm.is_detected]
    if shifts:
        arm, each = max(shifts, key=lambda pair: _size(abs(pair[0].in_sigma[0]), abs(pair[0].shift.mean)))
        parts.append(f"The largest detected shift is {_shift(arm, each.unit)}, {_at(arm, each, names, setups)}")
    diverging = [(arm, each) for arm, each in _arms(effects) if arm.divergence_p_holm <= ALPHA]
    if diverging:
        arm, each = max(diverging, key=lambda pair: abs(pair[0].divergence.only_arm - pair[0].divergence.only_reference))
        parts += [] if shifts else ["No shift of finished runs is detected"]
        parts.append(_diverged(arm, each, f" in {names[id(each)]}" if setups > 1 else ""))
    return "; ".join(parts) if parts else _widest(effects, names, setups)


def _diverged(arm: Arm, each: Verdict, where: str) -> str:
    counts = arm.divergence
    alone = f"{counts.only_arm} at k={arm.accum} alone and {counts.only_reference} at k={each.reference} alone"
    return f"of {counted(counts.pairs, 'seed')}{where}, {alone} diverged"


def _widest(effects: Sequence[Verdict], names: dict[int, str], setups: int) -> str:
    """The effect is neither a shift nor a divergence: accumulated runs vary more than rounding does."""
    dispersions = [(each.statistics.dispersion, each) for each in effects if each.statistics and each.statistics.dispersion]
    dispersion, each = max(dispersions, key=lambda pair: pair[0].ratio)
    where = f" in {names[id(each)]}" if setups > 1 else ""
    limits = f"lambda {dispersion.ratio:.2g} [{dispersion.low:.2g}, {dispersion.high:.2g}]"
    return f"No mean shift is detected, but accumulated runs vary more than their {each.control} controls do{where} ({limits})"


def _shift(arm: Arm, unit: str) -> str:
    places, (mean, low, _) = decimals(arm.shift.high - arm.shift.mean), arm.in_sigma
    sigma = "" if math.isnan(mean) else f", {signed(mean, decimals(mean - low))} sigma_tot"
    return f"{signed(arm.shift.mean, places)} {interval(arm.shift.low, arm.shift.high, places)} {unit}{sigma}"


def _size(in_sigma: float, value: float) -> tuple[bool, float]:
    """A key for sorting: a shift in sigma_tot counts before one that has only its own unit."""
    return not math.isnan(in_sigma), value if math.isnan(in_sigma) else in_sigma


def _largest_possible(judged: Sequence[Verdict], names: dict[int, str], setups: int) -> str:
    bounds = [(arm, each, bound(arm), sigma_bound(arm)) for arm, each in _arms(judged)]
    known = [row for row in bounds if not math.isnan(row[2])]
    if not known:
        return "There is no interval for any shift"
    if all(arm.shift.is_exactly_zero for arm, *_ in bounds):
        return "Every accumulated run gave exactly the value of the reference arm's run with its seed"
    arm, each, largest, in_sigma = max(known, key=lambda row: _size(row[3], row[2]))
    words = f"{rounded_up(largest)} {each.unit}"
    if not math.isnan(in_sigma):
        words = f"{rounded_up(in_sigma)} sigma_tot as estimated ({words})"
    margin = "" if each.margin.value is None else f", against a margin of {each.margin.value:.2g} {each.unit}"
    return f"The largest shift that the 95 % intervals, each by itself, leave possible is {words}, {_at(arm, each, names, setups)}{margin}"


def bound(arm: Arm) -> float:
    """The largest shift that the arm's interval leaves possible, in the response's unit; NaN without an interval."""
    return max(abs(arm.shift.low), abs(arm.shift.high))


def sigma_bound(arm: Arm) -> float:
    """The same in sigma_tot; NaN where there is none."""
    return max(abs(arm.in_sigma[1]), abs(arm.in_sigma[2]))


def _advice(inconclusive: Sequence[Verdict]) -> list[str]:
    decisions = [(each.margin.value is not None, each.decision) for each in inconclusive if each.decision is not None]
    chaotic = sum(decision.shorten_horizon for _, decision in decisions)
    parts = []
    for with_margin, outcome in ((True, "would decide, if nothing is shifted"), (False, "would give a margin")):
        seeds = [found.more_seeds for has_margin, found in decisions if has_margin == with_margin and found.more_seeds is not None]
        if seeds:
            number = f"{min(seeds)}" if min(seeds) == max(seeds) else f"{min(seeds)} to {max(seeds)}"
            parts.append(f"{number} more seed{'' if max(seeds) == 1 else 's'} {outcome}")
    if chaotic:
        where = "" if len(inconclusive) == 1 else f" in {chaotic} of the {len(inconclusive)} inconclusive setups"
        parts.append(f"paths are chaotic{where}, so a shorter horizon would tell more than further seeds")
    return parts
