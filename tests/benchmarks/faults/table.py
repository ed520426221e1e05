"""The results as Markdown: rates with intervals, goals, confusions, errors by name, the checks of today beside the ladder."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from accum_sweeps.plan.faults import CLASSES, NONE
from tests.benchmarks.faults.cases import DTYPES
from tests.benchmarks.faults.checks_of_today import CHECKS
from tests.benchmarks.faults.one_case import ERROR
from tests.benchmarks.faults.rates import Rate, rate
from tests.benchmarks.faults.scan import Smallest

Row = dict[str, Any]
DETECTION_GOALS = {"fp32": 1.0, "amp_bf16": 0.99, "bf16": 0.97}
RIGHT_GOAL, WRONG_GOAL, CLEAN_GOAL, SECONDS_GOAL = 0.95, 0.01, 600, 20.0


def is_faulty(row: Row) -> bool:
    """Whether a fault is in it that is not inert."""
    return row["fault"] != NONE and row["is_inert"] is not True


def is_counted(row: Row) -> bool:
    """Whether its fault is above the floor, so that it should be found."""
    return is_faulty(row) and row["is_detectable"] is True


def is_found(row: Row) -> bool:
    """Whether any fault was named, be it an unknown one."""
    return row["answer"] not in (NONE, ERROR)


def is_right(row: Row) -> bool:
    """Whether exactly the classes that are there were named."""
    return bool(row["answer"] == row["truth"])


def is_wrong(row: Row) -> bool:
    """Whether a class was named that is not there."""
    named = set(row["answer"].split("+")) if is_found(row) else set()
    return bool(named & set(CLASSES) - set(row["truth"].split("+")))


def is_independent(row: Row) -> bool:
    """Whether it is right code whose samples do not see each other."""
    return row["fault"] == NONE and not row["kind"]


def rate_of(rows: Iterable[Row], is_hit: Callable[[Row], bool]) -> Rate:
    """The rate of hits, clustered by subject and seed."""
    return rate((row["cluster"], is_hit(row)) for row in rows)


def summary(rows: Sequence[Row], scans: Sequence[Smallest], seconds: float) -> str:
    """The whole page."""
    parts = [_counts(rows, seconds), _goals(rows), _by("dtype", rows), _by("subject", rows), _by("k", rows), _by("optimizer", rows)]
    parts += [_today(rows), _faults(rows), _confusion(rows), _dependence(rows), _inert(rows), _strengths(scans), _errors(rows)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _counts(rows: Sequence[Row], seconds: float) -> str:
    faulty, clean = [row for row in rows if row["fault"] != NONE], [row for row in rows if row["fault"] == NONE]
    independent = sum(map(is_independent, clean))
    inert, counted = sum(row["is_inert"] is True for row in faulty), sum(map(is_counted, faulty))
    below = sum(is_faulty(row) and row["is_detectable"] is False for row in faulty)
    own = sum(is_counted(row) and not row["is_above_own"] for row in faulty)
    unmeasured = sum(str(row["rung"]).startswith(ERROR) for row in faulty)
    words = [
        f"{len(rows)} cases in {seconds / 60:.1f} min: {len(faulty)} with a fault, {len(clean)} clean ones, of which "
        f"{independent} are independent of each other and free of a real dependence.",
        f"Faults: {inert} inert (effect <= 1e-12), {below} below the floor, {counted} counted, "
        f"{own} of these below the floor of their own dtype. Effects that could not be measured: {unmeasured}.",
        "Rates: hits of cases [95 % interval clustered by subject and seed] (exact binomial). Clean cases share no seed; "
        "optimizers that would reuse a gradient are not counted twice.",
    ]
    return "# Fault benchmark\n\n" + "\n\n".join(words)


def _goals(rows: Sequence[Row]) -> str:
    counted, clean = [row for row in rows if is_counted(row)], [row for row in rows if is_independent(row)]
    lines = []
    for dtype, goal in DETECTION_GOALS.items():
        found = rate_of((row for row in counted if row["dtype"] == dtype), is_found)
        lines.append([f"detection, {dtype}", str(found), f"{100 * goal:g} %", _met(found.value >= goal)])
    right, wrong = rate_of(counted, is_right), rate_of(counted, is_wrong)
    alarms, slow = rate_of(clean, is_found), max((float(row["seconds"]) for row in rows), default=0.0)
    lines.append(["right class", str(right), f"{100 * RIGHT_GOAL:g} %", _met(right.value >= RIGHT_GOAL)])
    lines.append(["wrong class", str(wrong), f"at most {100 * WRONG_GOAL:g} %", _met(wrong.value <= WRONG_GOAL)])
    enough = f"0 of {CLEAN_GOAL} or more"
    lines.append(["false alarms", str(alarms), enough, _met(not alarms.hits and alarms.cases >= CLEAN_GOAL)])
    middle = sorted(float(row["seconds"]) for row in rows)[len(rows) // 2] if rows else 0.0
    words = f"median {middle:.2f}, longest {slow:.1f}"
    lines.append(["seconds of one core a case", words, f"at most {SECONDS_GOAL:g}", _met(slow <= SECONDS_GOAL)])
    return "## Goals\n\n" + table(["", "measured", "goal", "met"], lines)


def _met(is_met: bool) -> str:
    return "yes" if is_met else "no"


def _by(key: str, rows: Sequence[Row]) -> str:
    values = sorted({row[key] for row in rows if row["fault"] != NONE}, key=lambda value: (isinstance(value, str), value))
    lines = []
    for value in values:
        own = [row for row in rows if row[key] == value and is_counted(row)]
        lines.append([str(value), *(str(rate_of(own, is_hit)) for is_hit in (is_found, is_right, is_wrong))])
    return f"## By {key}\n\n" + table([key, "detected", "right class", "wrong class"], lines)


def _faults(rows: Sequence[Row]) -> str:
    lines = []
    for fault in dict.fromkeys(row["fault"] for row in rows if row["fault"] != NONE):
        own = [row for row in rows if row["fault"] == fault]
        counted = [row for row in own if is_counted(row)]
        figures = [len(own), len(counted), *(sum(map(is_hit, counted)) for is_hit in (is_found, is_right, is_wrong))]
        smallest = min((row["effect"] for row in counted), default=float("nan"))
        lines.append([fault, *map(str, figures), f"{smallest:.3g}"])
    return "## By fault\n\n" + table(["fault", "cases", "counted", "detected", "right class", "wrong class", "smallest effect"], lines)


def _today(rows: Sequence[Row]) -> str:
    counted, clean = [row for row in rows if is_counted(row)], [row for row in rows if is_independent(row)]
    lines = [["the ladder", str(rate_of(counted, is_found)), str(rate_of(clean, is_found))]]
    for name, words in CHECKS.items():
        lines.append([words, *(str(rate_of(part, lambda row, name=name: row[f"check_{name}"] is True)) for part in (counted, clean))])  # type: ignore[misc]
    for dtype in DTYPES:
        parts = [[row for row in part if row["dtype"] == dtype] for part in (counted, clean)]
        for name in CHECKS:
            cells = [str(rate_of(part, lambda row, name=name: row[f"check_{name}"] is True)) for part in parts]  # type: ignore[misc]
            lines.append([f"{CHECKS[name]}; {dtype}", *cells])
    return "## Beside the checks of today\n\n" + table(["check", "faults reported", "correct code reported"], lines)


def _confusion(rows: Sequence[Row]) -> str:
    answers: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        if is_counted(row) or row["fault"] == NONE:
            answers[row["truth"] or NONE][row["answer"]] += 1
    lines = [[truth, ", ".join(f"{answer} {count}" for answer, count in found.most_common())] for truth, found in sorted(answers.items())]
    return "## Confusion matrix, its cells that are not 0\n\n" + table(["there is", "answers"], lines)


def _dependence(rows: Sequence[Row]) -> str:
    own = [row for row in rows if row["fault"] == NONE and row["kind"]]
    found = Counter((row["kind"], row["found_kind"] or row["answer"]) for row in own)
    return (
        "## Real dependences\n\n" + table(["there is", "found", "cases"], [[*pair, str(n)] for pair, n in sorted(found.items())])
        if own
        else ""
    )


def _inert(rows: Sequence[Row]) -> str:
    own = [row for row in rows if row["is_inert"] is True or (is_faulty(row) and row["is_detectable"] is False)]
    lines = [[*name_of(row), f"{row['effect']:.3g}", f"{row['floor']:.3g}", row["answer"]] for row in own]
    return "## Inert, or below the floor\n\n" + table([*NAME, "effect", "floor", "answer"], lines) if own else ""


def _strengths(scans: Sequence[Smallest]) -> str:
    lines = []
    for s in scans:
        figures = [_figure(value) for value in (s.detected, s.detected_effect, s.named, s.named_effect)]
        misnamed = ", ".join(f"{_figure(strength)}: {answer}" for strength, answer in s.misnamed)
        lines.append([s.fault, s.dtype, *figures, misnamed or "-"])
    head = ["fault", "dtype", "smallest strength detected", "its effect", "smallest named rightly", "its effect", "otherwise named"]
    return "## Smallest strength\n\n" + table(head, lines) if scans else ""


def _figure(value: float | None) -> str:
    if value is None:
        return "-"
    return f"1 {'-' if value < 1 else '+'} {abs(value - 1):.3g}" if 0.5 < value < 2 and value != 1 else f"{value:.3g}"


NAME = ["number", "subject", "fault", "dtype", "optimizer", "k", "seed", "toggles"]


def name_of(row: Row) -> list[str]:
    """The cells that name a case."""
    return [str(row[key]) for key in NAME]


def errors(rows: Iterable[Row]) -> Iterator[Row]:
    """The cases that were answered wrongly, or not at all."""
    for row in rows:
        is_bad = is_found(row) if row["fault"] == NONE else is_counted(row) and not is_right(row)
        is_bad |= row["answer"] == ERROR or str(row["rung"]).startswith(ERROR) or str(row["check_sgd"]).startswith(ERROR)
        if is_bad or (row["fault"] == NONE and row["found_kind"] != row["kind"]):
            yield row


def _errors(rows: Sequence[Row]) -> str:
    lines = [
        [*name_of(row), row["answer"], str(row["found_kind"]), str(row["words"] or row["rung"])[:300].replace("|", "/")]
        for row in errors(rows)
    ]
    return "## Cases answered wrongly\n\n" + table([*NAME, "answer", "kind", "words"], lines) if lines else ""


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    body = [f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *lines)]
    return "\n".join(body)
