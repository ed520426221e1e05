"""Short names of setups and runs, for tables, reports and MLflow. Pure functions of the plan."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from accum_sweeps.plan.axes import show
from accum_sweeps.plan.flat import flatten
from accum_sweeps.plan.setting import document
from accum_sweeps.plan.spec import Setup

WORDS = ("subject", "model", "optimizer", "dtype", "fault")
STREAMS = {"seed_init": "init", "seed_data": "data", "seed_dropout": "dropout"}
HASHES = ("subject.code_hash", "data.hash", "model.weights_hash", "model.library")
ABSENT = object()
LADDER = "ladder"


class _Run(Protocol):
    """What a run's name needs: a RunSpec or a run of a plan."""

    @property
    def accum(self) -> int: ...
    @property
    def seed(self) -> int: ...
    @property
    def control(self) -> str: ...
    @property
    def replicate(self) -> int: ...


def setup_labels(setups: Sequence[Setup]) -> list[str]:
    """One label for each of ``setups``, in their order: ``lm-tiny adamw fp32 norm=rmsnorm``.

    The words are subject, model, optimizer and dtype, and ``ladder`` for one beside trainings. Of the other keys those are named
    whose value varies among setups of equal words (what an optimizer's preset brings along is said by its word). A key is named by
    its last part where that is not ambiguous. Different setups have different labels.
    """
    flat = [flatten(document(setup, identity=False)) for setup in setups]
    is_mixed = len({values["measure"] == LADDER for values in flat}) > 1
    words = [_words(values) + (f" {LADDER}" if is_mixed and values["measure"] == LADDER else "") for values in flat]
    keys = _varying(flat, words)
    lasts = [key.rpartition(".")[2] for key in keys]
    names = {key: last if lasts.count(last) == 1 else key for key, last in zip(keys, lasts, strict=True)}
    labels = [
        " ".join([word, *(f"{names[key]}={show(values[key])}" for key in keys if key in values)])
        for word, values in zip(words, flat, strict=True)
    ]
    return [_distinct(label, labels, setup, setups) for label, setup in zip(labels, setups, strict=True)]


def run_name(label: str, run: _Run) -> str:
    """``lm-tiny adamw fp32 k=4 s=2``, followed by what is not the default: ``init=5``, ``ctl=ulp_weights``, ``rep=1``."""
    parts = [label, f"k={run.accum}", f"s={run.seed}"]
    parts += [f"{short}={getattr(run, stream)}" for stream, short in STREAMS.items() if getattr(run, stream) != run.seed]
    parts += [f"ctl={run.control}"] if run.control != "none" else []
    parts += [f"rep={run.replicate}"] if run.replicate else []
    return " ".join(parts)


def _words(values: Mapping[str, Any]) -> str:
    subject = values["subject"] if values["model"] == "none" else f"{values['subject']}-{values['model']}"
    fault = "" if values["fault"] == "none" else f" fault={values['fault']}"
    return f"{subject} {values['optimizer']} {values['dtype']}{fault}"


def _varying(flat: Sequence[Mapping[str, Any]], words: Sequence[str]) -> list[str]:
    """Keys with several values among setups of equal words; a data preset's own keys only if they vary within it."""
    keys = list(dict.fromkeys(key for values in flat for key in values if key not in (*WORDS, *HASHES)))
    found = []
    for key in keys:
        by_class: dict[tuple[str, Any], set[Any]] = defaultdict(set)
        for word, values in zip(words, flat, strict=True):
            inside = values.get("data") if key.startswith("data.") else None
            by_class[word, inside].add(values.get(key, ABSENT))
        if any(len(values) > 1 for values in by_class.values()):
            found.append(key)
    return found


def _distinct(label: str, labels: Sequence[str], setup: Setup, setups: Sequence[Setup]) -> str:
    same = {other.setup_id for other, text in zip(setups, labels, strict=True) if text == label}
    return label if len(same) == 1 else f"{label} #{setup.setup_id}"
