"""The table that a sweep ends with, as plain text: by setup and accumulation factor, at most 100 columns wide."""

import math
import textwrap
from collections import Counter
from collections.abc import Iterator

import pandas as pd

from accum_sweeps.analysis.comparison import Arm, Comparison
from accum_sweeps.analysis.component_tables import SetupComponents
from accum_sweeps.analysis.judged import Judged
from accum_sweeps.analysis.sentences import WORDS, headline
from accum_sweeps.analysis.verdict import PERPLEXITY, Verdict, Verdicts
from accum_sweeps.analysis.words import MOST_ARMS, WIDTH, aligned, decimals, interval, percent, plain, signed
from accum_sweeps.plan.words import be, counted


def render(judged: Judged, older: int = 0) -> str:
    """The opening response by setup and k with the verdict's sentence, then the verdicts on the other responses and the components.

    The intervals are 95 % t intervals of the mean paired difference, each by itself; sigma_tot is the SD over seeds of the
    reference arm, and the intervals in its unit take the estimate as known. ``older`` setups of earlier plans are not shown.
    """
    verdicts = judged.opening
    if not verdicts:
        return "No run to tell of yet."
    shared = Counter(each.setup for each in verdicts)
    names = [f"{each.setup} ({each.setup_id})" if shared[each.setup] > 1 else each.setup for each in verdicts]
    components = judged.components[judged.judging.response]
    blocks = [_block(name, each, parts, judged) for name, each, parts in zip(names, verdicts, components, strict=True)]
    last = [f"{counted(older, 'setup')} of earlier plans {be(older)} in the results table and not shown here."] if older else []
    return "\n\n".join([_legend(verdicts), *blocks, *last])


def of_newest_plan(results: pd.DataFrame) -> pd.DataFrame:
    """The rows of those setups that the newest revision of each sweep's plan still holds, with all runs ever done of them."""
    if "revision" not in results or "sweep" not in results:
        return results
    newest = results["revision"] == results.groupby("sweep")["revision"].transform("max")
    return results[results["setup_id"].isin(results.loc[newest, "setup_id"])]


def _legend(verdicts: Verdicts) -> str:
    what = verdicts[0].response + (", judged as its logarithm," if PERPLEXITY.search(verdicts[0].response) else "")
    words = (
        f"{what} by setup and accumulation factor k: mean over seeds, and mean paired difference from the reference "
        f"arm (same seed) with its 95 % interval, in {verdicts[0].unit} and in sigma_tot, the SD over seeds of the reference arm. "
        "Each interval is one by itself; those in sigma_tot take its estimate as known."
    )
    sources = dict.fromkeys(each.margin.source for each in verdicts if each.margin.value is not None)
    words += f" Margin: {'; '.join(sources)}." if sources else ""
    return textwrap.fill(words, WIDTH)


def _block(name: str, each: Verdict, components: SetupComponents, judged: Judged) -> str:
    lines = textwrap.wrap(name, WIDTH) or [""]
    if each.compared is not None:
        lines += aligned([_HEAD, *_rows(each.compared, each.unit)])
    words, rest = in_two(each)
    lines += textwrap.wrap(f"-> {words}", WIDTH, initial_indent="  ", subsequent_indent="     ")
    for words in (rest, *_others(each, judged), *_weights(each, judged), *_components(components), *_ladder(each, judged)):
        lines += textwrap.wrap(words, WIDTH, initial_indent="     ", subsequent_indent="     ")
    return "\n".join(lines)


def in_two(each: Verdict) -> tuple[str, str]:
    """The verdict in a few words, and the rest of its sentence."""
    words = WORDS["not_assessable"] if each.decision is None or each.reasons else headline(each.decision)
    return words, each.sentence.removeprefix(f"{words}: ")


def _others(each: Verdict, judged: Judged) -> Iterator[str]:
    """The verdicts on the setup's other responses, in a few words each."""
    for response, verdicts in judged.verdicts.items():
        found = next((v for v in verdicts if v.setup_id == each.setup_id), None)
        if response != each.response and found is not None:
            yield f"{response}: {in_two(found)[0]}"


def _weights(each: Verdict, judged: Judged) -> Iterator[str]:
    """How far the final weights are from the reference arm's, in units of what rounding alone does."""
    rows = judged.weights[(judged.weights["setup_id"] == each.setup_id) & (judged.weights["seeds"] > 1)]
    if len(rows):
        shown = rows if len(rows) <= MOST_ARMS else rows.nlargest(1, "ratio")
        words = [f"{row.ratio:.2g} [{row.low:.2g}, {row.high:.2g}] at k={row.accum}" for row in shown.itertuples()]
        words += [f"the largest of {len(rows)} arms"] if len(shown) < len(rows) else []
        yield f"distance of final weights in units of that of {rows['control'].iloc[0]} controls: {', '.join(words)}"


def _components(components: SetupComponents) -> Iterator[str]:
    found, (repeated, equal) = components.found, components.reruns
    if found is None:
        return
    whole = found.parts_sum
    words = [f"seed {percent(found.seed.estimate, whole)}", f"seed:k {percent(found.seed_k.estimate, whole)}"]
    if repeated == equal:
        words += [f"reruns identical in {equal} of {counted(repeated, 'cell')}"] if repeated else []
    elif found.rerun is not None:
        words.append(f"rerun {percent(found.rerun.estimate, whole)}")
    yield f"variance ({found.method}): {', '.join(words)}"


def _ladder(each: Verdict, judged: Judged) -> Iterator[str]:
    if each.setup_id in judged.ladders:
        yield judged.ladders[each.setup_id].words


_HEAD = ("k", "runs", "mean", "difference", "95 % interval", "in sigma_tot", "95 % interval")


def _rows(compared: Comparison, unit: str) -> list[tuple[str, ...]]:
    places = decimals(compared.sigma_tot)
    sigma = "" if math.isnan(compared.sigma_tot) else f"sigma_tot {plain(compared.sigma_tot, places)} {unit}"
    first = (compared.reference, (_count(compared), plain(compared.mean, min(places, 6)), "reference", sigma, "", ""))
    rows = [first, *((arm.accum, _arm(arm, places)) for arm in compared.arms)]
    return [(str(k), *cells) for k, cells in sorted(rows)]


def _arm(arm: Arm, places: int) -> tuple[str, ...]:
    mean, low, high = arm.in_sigma
    shift_places = decimals(arm.shift.high - arm.shift.mean)
    sigma_places = decimals(high - mean)
    return (
        _count(arm),
        plain(arm.mean, min(places, 6)),
        signed(arm.shift.mean, shift_places),
        interval(arm.shift.low, arm.shift.high, shift_places),
        signed(mean, sigma_places),
        interval(low, high, sigma_places),
    )


def _count(arm: Arm | Comparison) -> str:
    return f"{arm.finished} + {arm.diverged} diverged" if arm.diverged else str(arm.finished)
