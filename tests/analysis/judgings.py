"""Judged tables of known content, and what a reader sees of a page."""

import re
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pandas as pd

from accum_sweeps.analysis.judged import Judged, judge_table
from accum_sweeps.plan.judging import Judging
from tests.analysis.roots import table

ARMS = (1, 2, 4, 8)
Table = pd.DataFrame


def drawn(
    seeds: int, arms: Sequence[int] = ARMS, *, noise: float = 1e-3, shift: float = 0.0, scale: float = 1.0
) -> dict[int, list[float | str]]:
    """Values of so many ``seeds`` by arm: 2 + seed + noise, the last arm shifted, all times ``scale``."""
    generator = np.random.default_rng(seeds)
    seed = 2 + 0.03 * generator.standard_normal(seeds)
    return {k: (scale * (seed + noise * generator.standard_normal(seeds) + shift * (k == max(arms)))).tolist() for k in arms}


def with_controls(results: Table, noise: float = 1e-3) -> Table:
    """``results`` of finished runs and a control for each accumulated one, with all columns that a sweep's table has for pairing."""
    generator = np.random.default_rng(1)
    controls = results[results["accum"] > results["accum"].min()].assign(control="regroup")
    controls["eval_loss_final"] += noise * generator.standard_normal(len(controls))
    both: Table = pd.concat([results.assign(control="none"), controls], ignore_index=True)
    seeds = dict.fromkeys(("seed_init", "seed_data", "seed_dropout"), both["seed"])
    whole: Table = both.assign(**seeds, replicate=0, run_id=[f"r{row}" for row in range(len(both))], env_id="e")
    return whole


def judged(results: Table, **judging: Any) -> Judged:
    """The judged table."""
    return judge_table(results, Judging(**judging))


def several(tables: Mapping[str, Mapping[int, Sequence[float | str]]]) -> Table:
    """One table of several setups, by name."""
    return pd.concat([table(y, setup=name) for name, y in tables.items()], ignore_index=True)


NAN = float("nan")
AWKWARD: dict[str, Table] = {
    "one seed": table(drawn(1)),
    "two seeds": table(drawn(2)),
    "one arm": table(drawn(5, [1])),
    "not finite": table({1: [2.0, 2.1, NAN, 2.2, 2.05], 2: [2.0, NAN, 2.1, 2.2, 2.05], 4: [float("inf"), 2.0, 2.1, 2.2, 2.3]}),
    "all equal": table({k: [2.0] * 5 for k in ARMS}),
    "equal arms": table({k: [2.0, 2.1, 2.3, 2.2, 2.5] for k in ARMS}),
    "all diverged": table({k: ["diverged"] * 5 for k in ARMS}),
    "one arm diverged": table({1: [2.0, 2.1, 2.3, 2.2, 2.5], 2: ["diverged"] * 5, 4: [2.1, 2.1, 2.3, 2.2, 2.4]}),
    "running": table({1: [2.0, 2.1, "running"], 2: [2.0, "planned", "failed"]}),
    "60 seeds": with_controls(table(drawn(60, shift=0.01))),
    "16 arms": with_controls(table(drawn(6, [2**n for n in range(16)]))),
    "1e-12": with_controls(table(drawn(8, scale=1e-12)), noise=1e-15),
    "1e9": table(drawn(8, scale=1e9)),
    "far": with_controls(table(drawn(8, shift=0.5))),
    "strange label": table(drawn(6), setup="<script>alert(1)</script> $x_1$ $\\frac{1}{2}$ \"q\" 's' & \x00深 " + "long " * 60),
}


class Page(HTMLParser):
    """A page as a browser takes it: ``text``, ``ids``, ``links``, every address that would be fetched; tags that do not match fail."""

    VOID = ("meta", "br", "link", "img")

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.seen: set[str] = set()
        self.parts: list[str] = []
        self.feed(html)
        assert self.tags == [], self.tags
        self.text = re.sub(r"\s+", " ", " ".join(self.parts))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.seen.add(tag)
        self.ids += [values["id"]] if "id" in values else []
        self.links += [values["href"]] if "href" in values else []
        self.fetched += [values[name] for name in ("src", "srcset", "data", "action") if name in values]
        if tag not in self.VOID:
            self.tags.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.tags.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.tags.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] not in ("style", "script"):
            self.parts.append(data)
