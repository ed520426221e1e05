"""The cases of the fault benchmark: which faults, subjects, dtypes, optimizers, k and seeds are tried together.

A fractional design, drawn from SEED alone. Of a fault's possible combinations those are taken, one after the other, whose levels have been
taken least; so each level of each factor comes about equally often with each fault. Clean cases go through all toggles; no two of them
share a seed, so that no two share weights, samples or gradients, whatever their optimizer: each one is independent of all others.
"""

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from accum_sweeps.plan.errors import ConfigError
from accum_sweeps.plan.faults import FAULTS, NONE, classes_of
from accum_sweeps.plan.spec import RunSpec
from tests.benchmarks.faults.settings import FURTHER, OPTIMIZERS, needs_of, spec_of
from tests.benchmarks.faults.toggles import DEPENDENCE, TOGGLES, clash
from tests.faults.subjects import RANKS

SEED = 20_261_202  # drawn anew after the last change of the ladder that a case of an earlier draw had led to
DTYPES = ("fp32", "amp_bf16", "bf16")
SCALED = ("loss_scaling", "loss_scaling_clip", "loss_scaling_overflow")
KS = (2, 4, 8, 64)
FAULTY_SEEDS = range(200, 225)
CLEAN_SEED = 4000  # the first of the clean cases; those of the floors begin at 9000
# Cases of a fault by subject; a subject in which it cannot act hands its share to the others that it can act in.
SHARES = {"lm": 9, "mlp": 7, "tagger": 7, "clip_cached": 1, "clip_plain": 1}
CLEAN = {"lm": 310, "mlp": 150, "tagger": 160, "clip_cached": 25, "clip_plain": 25}
SLOW_AT_64 = {"lm": 0.12, "clip_cached": 0.0, "clip_plain": 0.0, "mlp": 0.25, "tagger": 0.25}  # the share of cases with k=64
NO_TERMS = ("mean_of_means", "mean_of_means_over_ranks")  # of unequal counts, which clip's micro-batches never have


@dataclass(frozen=True, kw_only=True)
class Case:
    """One case. ``rows`` are those of a micro-batch, ``shortened`` the micro-batches that an epoch's last window lacks (0 = no matter).

    ``toggles`` and the further ``changes`` are settings beside the usual ones; ``truth`` the classes that a diagnosis should name.
    """

    number: int
    subject: str
    fault: str
    dtype: str
    optimizer: str
    k: int
    rows: int
    seed: int
    strength: float | None = None
    shortened: int = 0
    toggles: tuple[str, ...] = ()
    changes: dict[str, Any] = field(default_factory=dict, hash=False)

    @property
    def truth(self) -> tuple[str, ...]:
        """The fault classes, sorted; () of none."""
        return tuple(sorted(set(classes_of(self.fault))))

    @property
    def kind(self) -> str:
        """The real dependence that there is beside any fault; "" = none."""
        found = [DEPENDENCE[name] for name in self.toggles if name in DEPENDENCE]
        if self.subject == "clip_plain" and self.k > 1:
            found.append("in_batch_negatives")
        return found[0] if found and self.k > 1 else ""

    @property
    def cluster(self) -> str:
        """Cases of one subject and seed share weights and samples."""
        return f"{self.subject}/{self.seed}"

    def spec(self, **changes: Any) -> RunSpec:
        """The run, with further ``changes``. Raises ConfigError where its settings do not go together."""
        needs = needs_of(self.fault, self.subject, self.optimizer, self.dtype, self.k, self.rows, self.shortened)
        settings = {"fault": self.fault, "fault_strength": self.strength, "dtype": self.dtype} | needs | self.changes | changes
        return spec_of(self.subject, self.optimizer, self.k, self.rows, self.seed, **settings)


def is_possible(case: Case) -> bool:
    """Whether the fault can act in the case's setup."""
    if case.subject.startswith("clip") and any(name in NO_TERMS for name in case.fault.split("+")):
        return False
    try:
        case.spec()
    except ConfigError:
        return False
    return True


def all_cases() -> list[Case]:
    """The whole design, in its order."""
    rng = np.random.default_rng(SEED)
    numbers = itertools.count()
    return [*faulty_cases(rng, numbers), *clean_cases(rng, numbers)]


def fraction(count: int) -> list[Case]:
    """About ``count`` of the cases, evenly over faults, subjects and toggles; those that take seconds are left out."""
    cheap = [case for case in all_cases() if case.k < 64 and not (case.subject.startswith("clip") and case.fault != "replay_randomness")]
    rng = np.random.default_rng(SEED)
    faulty = [case for case in cheap if case.fault != NONE]
    clean = [case for case in cheap if case.fault == NONE]
    chosen = _spread(faulty, count * 2 // 3, rng) + _spread(clean, count - count * 2 // 3, rng)
    return sorted(chosen, key=lambda case: case.number)


def _spread(cases: list[Case], count: int, rng: np.random.Generator) -> list[Case]:
    """``count`` of ``cases``: in turn one of each fault or toggle."""
    groups: dict[Any, list[Case]] = {}
    for place in rng.permutation(len(cases)):
        groups.setdefault((cases[place].fault, cases[place].toggles[:1]), []).append(cases[place])
    rounds = itertools.zip_longest(*groups.values())
    return [case for each in rounds for case in each if case is not None][:count]


def faulty_cases(rng: np.random.Generator, numbers: Iterator[int]) -> Iterator[Case]:
    """The cases of each fault, alone and in pairs."""
    for fault in FAULTS:
        possible = {subject: _possible(fault, subject, rng) for subject in SHARES}
        can_act = [subject for subject, cases in possible.items() if cases]
        wanted = {subject: SHARES[subject] for subject in can_act}
        lacking = sum(SHARES.values()) - sum(wanted.values())
        wanted[can_act[0]] += lacking if not can_act[0].startswith("clip") else lacking // 2
        for subject, count in wanted.items():
            for settings in _balanced(possible[subject], count, SLOW_AT_64[subject]):
                yield Case(number=next(numbers), seed=int(rng.choice(FAULTY_SEEDS)), **settings)


def _possible(fault: str, subject: str, rng: np.random.Generator) -> list[dict[str, Any]]:
    """All settings of ``subject`` that ``fault`` can act in, in random order."""
    dtypes: tuple[str, ...] = ("amp_fp16",) if fault in SCALED else DTYPES
    if fault == "loss_scaling_overflow" and subject in ("mlp", "tagger"):
        dtypes = ("amp_fp16", *DTYPES)  # an infinite gradient is put in by hand
    found = []
    for dtype, optimizer, k in itertools.product(dtypes, OPTIMIZERS, KS):
        rows = 4 if k == 2 else 1 if k == 64 and subject != "clip_plain" else 2
        if k == 64 and fault in RANKS and subject == "lm":
            continue  # 128 micro-batches
        shortened = int(rng.integers(1, k))
        settings = {
            "subject": subject,
            "fault": fault,
            "dtype": dtype,
            "optimizer": optimizer,
            "k": k,
            "rows": rows,
            "shortened": shortened,
        }
        if is_possible(Case(number=0, seed=0, **settings)):
            found.append(settings)
    return [found[place] for place in rng.permutation(len(found))]


def _balanced(possible: list[dict[str, Any]], count: int, share_of_64: float) -> list[dict[str, Any]]:
    """``count`` of ``possible``, each time the one whose levels have come least so far; used up, they come again."""
    taken: Counter[tuple[str, Any]] = Counter()
    most_64 = round(share_of_64 * count)
    chosen: list[dict[str, Any]] = []
    rest = list(possible)
    while len(chosen) < count:
        rest = rest or list(possible)
        fitting = [each for each in rest if each["k"] != 64 or taken["k", 64] < most_64]
        if not fitting:
            if all(each["k"] == 64 for each in possible):
                break
            rest = []
            continue
        best = min(fitting, key=lambda each: sum(taken[key, each[key]] for key in ("dtype", "optimizer", "k")))
        rest.remove(best)
        taken.update((key, best[key]) for key in ("dtype", "optimizer", "k"))
        chosen.append(best)
    return chosen


def clean_cases(rng: np.random.Generator, numbers: Iterator[int]) -> Iterator[Case]:
    """Right code: each toggle in turn, half of the time with a second one."""
    seeds = itertools.count(CLEAN_SEED)
    for subject, count in CLEAN.items():
        made = 0
        for name in itertools.cycle(TOGGLES[subject]):
            if made == count:
                break
            case = _clean(subject, name, rng)
            if case is not None:
                yield Case(number=next(numbers), seed=next(seeds), fault=NONE, **case)
                made += 1


def _clean(subject: str, name: str, rng: np.random.Generator) -> dict[str, Any] | None:
    """Settings with toggle ``name``; None where the subject cannot have it."""
    others = list(TOGGLES[subject])
    for _ in range(30):
        second = others[int(rng.integers(len(others)))]
        names = (name,) if rng.random() < 0.5 or second == name or clash(name, second, subject) else (name, second)
        settings = _clean_settings(subject, names, rng)
        if is_possible(Case(number=0, seed=0, fault=NONE, **settings)):
            return settings
    return None


def _clean_settings(subject: str, names: tuple[str, ...], rng: np.random.Generator) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    optimizer = str(rng.choice([*OPTIMIZERS, *FURTHER]))
    for name in names:
        changes |= TOGGLES[subject][name]
    k = int(changes.pop("k", 64 if rng.random() < SLOW_AT_64[subject] and "rows" not in changes else rng.choice([2, 4, 8])))
    rows = int(changes.pop("rows", 1 if k == 64 and subject != "clip_plain" else 4 if k == 2 else 2))
    if changes.pop("shortened", 0):
        short = int(rng.integers(1, k)) if k > 1 else 0
        changes["data.epoch_rows"] = k * rows + short * rows + int(rng.integers(rows))
    if changes.get("ranks") == 2:
        k = min(k, 8)
    return {
        "subject": subject,
        "dtype": changes.pop("dtype", str(rng.choice(DTYPES))),
        "optimizer": changes.pop("optimizer", optimizer),
        "k": k,
        "rows": rows,
        "toggles": names,
        "changes": changes,
    }
