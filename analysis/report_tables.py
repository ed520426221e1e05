"""The tables of a report as text: every cell is what a reader sees."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from accum_sweeps.analysis.audit_page import CODES
from accum_sweeps.analysis.component_tables import SetupComponents
from accum_sweeps.analysis.dispersion import Dispersion
from accum_sweeps.analysis.judged import Judged
from accum_sweeps.analysis.report_opening import bound, setup_names, sigma_bound
from accum_sweeps.analysis.sentences import WORDS, headline
from accum_sweeps.analysis.verdict import Verdict
from accum_sweeps.analysis.words import decimals, interval, percent, plain, rounded_up, signed
from accum_sweeps.plan.words import be, counted

GAP = "-"
SMALLEST_P = 1e-4
TINY = 1e-3  # below it a mean needs a power of ten


@dataclass(frozen=True, kw_only=True)
class Table:
    """``rows`` below ``head``, a ``caption`` above; cells of ``words`` columns (counted from 0) are prose, the others figures."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: tuple[int, ...] = (0,)


def p_text(p: float) -> str:
    """A p value of two digits."""
    if math.isnan(p):
        return GAP
    return f"{p:.2g}" if p >= SMALLEST_P else f"< {SMALLEST_P:g}"


def number(value: float, digits: int = 3) -> str:
    """A figure of so many digits; ``unbounded`` for infinity."""
    if math.isnan(value):
        return GAP
    return "unbounded" if math.isinf(value) else f"{value:.{digits}g}"


def limits(low: float, high: float, digits: int = 3) -> str:
    """An interval whose upper limit may be infinite."""
    return GAP if math.isnan(low) else f"[{number(low, digits)}, {number(high, digits)}]"


def verdict_words(each: Verdict) -> str:
    """The verdict in a few words."""
    return headline(each.decision) if each.decision and not each.reasons else WORDS[each.code]


def setup_rows(judged: Judged, detailed: dict[str, str]) -> list[dict[str, str]]:
    """One row a setup: name, code, words, and its main figures; ``detailed`` has by setup_id the anchor of those told of in full."""
    verdicts = judged.opening
    return [
        _setup_row(name, each) | {"anchor": detailed.get(each.setup_id, ""), **_ladder_cell(judged, each)}
        for name, each in zip(setup_names(verdicts), verdicts, strict=True)
    ]


def _ladder_cell(judged: Judged, each: Verdict) -> dict[str, str]:
    found = judged.ladders.get(each.setup_id)
    if found is None:
        return {"ladder": GAP, "ladder_code": ""}
    code = "effect" if found.faults else CODES.get(found.answer, "not_assessable")
    return {"ladder": found.brief, "ladder_code": code}


def _setup_row(name: str, each: Verdict) -> dict[str, str]:
    arms = each.compared.arms if each.compared else ()
    bounds, sigmas = [bound(arm) for arm in arms], [sigma_bound(arm) for arm in arms]
    ratios = (each.statistics.dispersion, each.statistics.excess) if each.statistics else (None, None)
    lambda_, excess = (number(ratio.ratio, 2) if ratio and ratio.is_assessable else GAP for ratio in ratios)
    return {
        "name": name,
        "code": each.code,
        "verdict": verdict_words(each),
        "seeds": str(each.statistics.complete_seeds if each.statistics else int(each.cells.complete.sum())),
        "largest": rounded_up(max(bounds)) if bounds and not any(map(math.isnan, bounds)) else GAP,
        "sigma": rounded_up(max(sigmas)) if sigmas and not any(map(math.isnan, sigmas)) else GAP,
        "margin": GAP if each.margin.value is None else f"{each.margin.value:.2g}",
        "lambda": lambda_,
        "excess": excess,
        "p": p_text(each.decision.smallest_p) if each.decision and not each.reasons else GAP,
        "q": p_text(each.q) if each.decision and not each.reasons else GAP,
    }


def setup_tables(each: Verdict, components: SetupComponents, judged: Judged) -> Iterator[Table]:
    """The tables of one setup, as far as there is something to tell."""
    if each.compared is not None:
        yield _shifts(each)
        if any([each.compared.diverged, *(arm.diverged for arm in each.compared.arms)]):
            yield _divergences(each)
    if each.statistics is not None and each.decision is not None:
        yield _spread(each)
    weights = judged.weights[judged.weights["setup_id"] == each.setup_id]
    if len(weights):
        yield _weights(weights)
    frame = components.to_frame()
    if len(frame):
        yield _components(frame, components)
    others = _others(each, judged)
    if others:
        head = ("response", "verdict", "smallest Holm p", "q over setups")
        yield Table(caption="Verdicts on the other responses", head=head, rows=tuple(others), words=(0, 1))


def _shifts(each: Verdict) -> Table:
    compared = each.compared
    assert compared is not None
    places = decimals(compared.sigma_tot)
    sigma = "" if math.isnan(compared.sigma_tot) else f"sigma_tot {plain(compared.sigma_tot, places)}"
    finished = _count(compared.finished, compared.diverged)
    rows = {compared.reference: (finished, _mean(compared.mean, places), "reference", sigma, *[""] * 6)}
    for arm in compared.arms:
        mean, low, high = arm.in_sigma
        own, in_sigma = decimals(arm.shift.high - arm.shift.mean), decimals(high - mean)
        shift = (signed(arm.shift.mean, own), interval(arm.shift.low, arm.shift.high, own))
        sigmas = (signed(mean, in_sigma), interval(low, high, in_sigma))
        p = (p_text(arm.p), p_text(arm.p_holm), p_text(arm.tost_p))
        wide = GAP if math.isnan(arm.tost_p) else "yes" if arm.is_equivalent else "no"
        rows[arm.accum] = (_count(arm.finished, arm.diverged), _mean(arm.mean, places), *shift, *sigmas, *p, wide)
    margin = f"margin {each.margin.value:.3g} {each.unit}: {each.margin.source}" if each.margin.value is not None else each.margin.source
    head = (
        "k",
        "runs",
        "mean",
        f"shift ({each.unit})",
        "95 % interval",
        "in sigma_tot",
        "95 % interval",
        "p",
        "Holm p",
        "TOST p",
        "equivalent",
    )
    caption = f"{each.response}, mean paired shift against k={compared.reference} ({margin})"
    return Table(caption=caption, head=head, rows=tuple((str(k), *rows[k]) for k in sorted(rows)), words=())


def _mean(mean: float, places: int) -> str:
    return number(mean, 4) if 0 < abs(mean) < TINY else plain(mean, min(places, 6))


def _count(finished: int, diverged: int) -> str:
    return f"{finished} + {diverged} diverged" if diverged else str(finished)


def _divergences(each: Verdict) -> Table:
    assert each.compared is not None
    rows = [
        (
            f"{arm.accum}",
            str(arm.divergence.pairs),
            str(arm.divergence.only_arm),
            str(arm.divergence.only_reference),
            p_text(arm.divergence_p_holm),
        )
        for arm in each.compared.arms
    ]
    head = ("k", "pairs", "diverged at this k alone", f"diverged at k={each.reference} alone", "Holm p")
    return Table(caption="Divergence within seed (exact McNemar)", head=head, rows=tuple(rows), words=())


def _spread(each: Verdict) -> Table:
    """lambda, the excess and the path variance."""
    statistics, decision = each.statistics, each.decision
    assert statistics is not None and decision is not None
    path = statistics.path
    source = "from the seed:k residuals, for want of controls"
    if path.from_controls:
        source = f"from {counted(path.df, 'pair')} of a run and its control"
    rows = (
        ("lambda", *_ratio(statistics.dispersion), p_text(decision.dispersion_p) if _is_made(statistics.dispersion) else ""),
        ("excess", *_ratio(statistics.excess), ""),
        ("path SD", f"{number(math.sqrt(path.value))} {each.unit}" if path.value >= 0 else GAP, source, "", ""),
        ("path share", number(decision.path_share), "path variance / sigma_tot^2", "", ""),
    )
    head = ("", "estimate", "95 % interval", "one-sided 95 % upper limit", "Holm p")
    control = f", controls of kind {each.control}" if each.control else ""
    return Table(caption=f"Spread over accumulated runs{control}", head=head, rows=rows, words=(0, 2))


def _is_made(ratio: Dispersion | None) -> bool:
    return ratio is not None and ratio.is_assessable


def _ratio(ratio: Dispersion | None) -> tuple[str, str, str]:
    """Estimate, interval and upper limit, or why there are none."""
    if ratio is None or not ratio.is_assessable:
        return GAP, f"not assessed: {ratio.why_not if ratio else 'no controls'}", ""
    return number(ratio.ratio), limits(ratio.low, ratio.high), number(ratio.upper)


def _weights(rows: pd.DataFrame) -> Table:
    kind, reference = rows["control"].iloc[0], rows["reference"].iloc[0]
    cells = [
        (
            str(row.accum),
            str(row.seeds),
            str(row.identical),
            number(float(str(row.ratio))),
            limits(float(str(row.low)), float(str(row.high))),
            p_text(float(str(row.p_holm))),
        )
        for row in rows.itertuples()
    ]
    head = ("k", "seeds", "identical", "ratio", "95 % interval", "Holm p")
    caption = f"Distance of the final weights from those of k={reference}, in units of the distance between a run and its {kind} control"
    return Table(caption=caption, head=head, rows=tuple(cells), words=())


def _components(frame: pd.DataFrame, components: SetupComponents) -> Table:
    rows = []
    for row in frame.to_dict("records"):
        share = GAP if math.isnan(row["share"]) else percent(row["share"], 1.0)
        rows.append(
            (str(row["component"]), number(row["sd"]), share, number(row["estimate"]), number(row["raw"]), limits(row["low"], row["high"]))
        )
    repeated, equal = components.reruns
    reruns = f"; reruns identical in {equal} of {counted(repeated, 'cell')}" if repeated else ""
    head = (
        "component",
        f"SD ({components.unit})",
        "share",
        f"variance ({components.unit}^2)",
        "raw estimate",
        "95 % interval of the variance",
    )
    return Table(
        caption=f"Components of variance of {components.response} ({frame['method'].iloc[0]}{reruns})", head=head, rows=tuple(rows)
    )


def _others(each: Verdict, judged: Judged) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for response, verdicts in judged.verdicts.items():
        found = next((v for v in verdicts if v.setup_id == each.setup_id), None)
        if response != each.response and found is not None:
            judgeable = found.decision is not None and not found.reasons
            p = p_text(found.decision.smallest_p) if found.decision and judgeable else GAP
            rows.append((response, found.sentence, p, p_text(found.q) if judgeable else GAP))
    return rows


def failures(results: pd.DataFrame, most: int = 20) -> Table | None:
    """Runs without an outcome and why, the same reason once; None where there is none."""
    if "error" not in results:
        return None
    bad = results[results["status"].isin(["failed", "lost", "cancelled"])]
    if bad.empty:
        return None
    words = bad.assign(error=bad["error"].astype(object).where(bad["error"].notna(), "no reason recorded"))
    label = "cell" if "cell" in words else "setup"
    groups = words.groupby(["status", "error"], sort=False)[label].agg(["size", "first"]).reset_index()
    rows = [(str(r["status"]), str(r["size"]), str(r["first"]), str(r["error"])) for r in groups.head(most).to_dict("records")]
    left = len(groups) - most
    more = f" ({counted(left, 'further reason')} {be(left)} in the results table)" if left > 0 else ""
    head = ("status", "runs", "first of them", "reason")
    return Table(caption=f"Runs without an outcome{more}", head=head, rows=tuple(rows), words=(0, 2, 3))


def as_sequence(table: Table | None) -> Sequence[Table]:
    """A list of one or none, for a template."""
    return [] if table is None else [table]
