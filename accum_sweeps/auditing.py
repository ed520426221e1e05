"""``acs.audit``: is the gradient accumulation of this training right? In a notebook, or as one line of a test suite."""

import contextlib
import dataclasses
import inspect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from accum_sweeps.plan.errors import UserError
from accum_sweeps.plan.spec import RunSpec, from_dict

if TYPE_CHECKING:
    import pandas as pd

    from accum_sweeps.ladder.oracle import Sessions
    from accum_sweeps.subjects import Session

OPTIMIZER = {"kind": "sgd", "name": "sgd", "lr": 1e-3, "momentum": 0.0, "nesterov": False, "weight_decay": 0.0}
OPTIMIZER |= {"max_norm": None, "schedule": "cosine", "warmup_steps": 2}
STEPS = 8  # of the schedule that the audited steps are made with


class AccumulationError(AssertionError):
    """An audit found a fault; the message is the audit's page."""


@dataclass(frozen=True, kw_only=True)
class Audits:
    """What was found, an entry for each accumulation factor: plain values as in the file of a ladder run."""

    found: tuple[Mapping[str, Any], ...] = field(repr=False)

    @property
    def faults(self) -> tuple[str, ...]:
        """The classes of all faults that were found, () = none."""
        return tuple(dict.fromkeys(name for each in self.found for name in (each["diagnosis"] or {}).get("names", ())))

    @property
    def answers(self) -> dict[int, str]:
        """Accumulation factor -> answer."""
        return {each["accum"]: each["answer"] for each in self.found}

    def raise_for_fault(self) -> "Audits":
        """Raise AccumulationError where a fault was found, or nothing could be observed; else give the audit back."""
        if self.faults or any(each["answer"] == "not_observable" for each in self.found):
            raise AccumulationError(f"\n{self}")
        return self

    def to_frame(self) -> "pd.DataFrame":
        """A row for each rung and accumulation factor."""
        import pandas as pd

        rows = [{"accum": each["accum"], "answer": each["answer"], **rung} for each in self.found for rung in each["rungs"]]
        return pd.DataFrame(rows, columns=["accum", "answer", "number", "name", "measure", "value", "floor"])

    def __str__(self) -> str:
        from accum_sweeps.analysis.audit_page import render

        return "\n\n\n".join(render(each) for each in self.found)


def audit(
    training: Any,
    *,
    accum: int | Iterable[int] = 4,
    dtype: str = "fp32",
    optimizer: Mapping[str, Any] | None = None,
    seed: int = 0,
    **settings: Any,
) -> Audits:
    """Audit ``training``: an object, a class or "module:Class" with the methods of ``subject=python``, or a RunSpec.

    ``accum`` are the accumulation factors; each must divide the samples of a batch. ``optimizer`` are settings of ``conf/optimizer``,
    by default plain SGD; further ``settings`` are keys of the configuration, such as ``accumulator``. Raises UserError where the
    training cannot be had.
    """
    from accum_sweeps.ladder.audit import audit as climb
    from accum_sweeps.ladder.bench import Bench
    from accum_sweeps.ladder.oracle import own_sessions

    factors = [accum] if isinstance(accum, int) else list(accum)
    found = []
    for k in factors:
        sessions: Sessions = own_sessions
        if isinstance(training, RunSpec):
            spec, label = dataclasses.replace(training, accum=k), training.setup.subject.name
        else:
            hook = _object(training)
            spec, label, sessions = _spec(hook, k, dtype, optimizer, seed, settings), type(hook).__name__, _sessions(hook)
        with _threads(spec.setup.threads):
            found.append(climb(Bench(spec, sessions), label).to_dict())
    return Audits(found=tuple(found))


@contextlib.contextmanager
def _threads(number: int) -> Iterator[None]:
    """So many threads of torch's meanwhile, as in a run: sums round alike, and small steps gain nothing from more."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _object(training: Any) -> Any:
    if isinstance(training, str):
        from accum_sweeps.subjects.hook_check import load_class

        training = load_class(training)
    return training() if inspect.isclass(training) else training


def _spec(hook: Any, accum: int, dtype: str, optimizer: Mapping[str, Any] | None, seed: int, settings: Mapping[str, Any]) -> RunSpec:
    from accum_sweeps.subjects.samples import count

    rows = count(hook.batch(1, seed))
    if not rows or rows % accum:
        raise UserError(
            f"accum={accum} does not divide the {rows} samples of a batch\n  Let batch return a multiple of it, or audit another factor."
        )
    kind = type(hook)
    values: dict[str, Any] = {
        "subject": {"kind": "python", "name": kind.__name__, "target": f"{kind.__module__}:{kind.__qualname__}"},
        "model": {"kind": "none", "name": "none"},
        "data": {"kind": "none", "name": "none"},
        "optimizer": OPTIMIZER if optimizer is None else dict(optimizer),
    }
    values |= {"fault": "none", "dtype": dtype, "accumulator": "param", "global_batch": rows, "ranks": 1, "steps": STEPS, "eval_every": 0}
    values |= {"probe_steps": [], "device": "cpu", "threads": 1, "deterministic": True, "accum": accum, "seed": seed, "control": "none"}
    return from_dict(values | {"replicate": 0} | dict(settings))


def _sessions(hook: Any) -> "Sessions":
    """Trainings of this very object: a class of a notebook or a test has no file that could be imported."""
    from accum_sweeps.subjects.python_hook import session_of

    def made(spec: RunSpec, is_correct: bool) -> "Session":
        return session_of(hook, spec, has_own_step=not is_correct)

    return made
