"""``acs.audit``: is the gradient accumulation of this training right? In a notebook, or as one line of a test suite."""

import contextlib
import inspect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from numbers import Integral
from typing import TYPE_CHECKING, Any

from accum_sweeps.plan.errors import ConfigError, UserError
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
    dtype: str | None = None,
    optimizer: Mapping[str, Any] | None = None,
    seed: int | None = None,
    **settings: Any,
) -> Audits:
    """Audit ``training``: an object, a class or "module:Class" with the methods of ``subject=python``, or a RunSpec.

    ``accum`` are the accumulation factors; each must divide the samples of a batch. ``dtype`` is fp32 and ``seed`` 0 unless given.
    ``optimizer`` are settings of ``conf/optimizer``, by default plain SGD; further ``settings`` are keys of the configuration, such as
    ``accumulator``. A RunSpec says all but the factors by itself. Raises UserError where the training cannot be had.
    """
    from accum_sweeps.ladder.audit import audit as climb
    from accum_sweeps.ladder.bench import Bench
    from accum_sweeps.ladder.oracle import own_sessions

    given = {"dtype": dtype, "optimizer": optimizer, "seed": seed, **settings}
    given = {key: value for key, value in given.items() if value is not None}
    sessions: Sessions = own_sessions
    if isinstance(training, RunSpec):
        label, specs = training.setup.subject.name, _recut(training, _factors(accum), given)
    else:
        hook = _object(training)
        label, specs, sessions = type(hook).__name__, _specs(hook, _factors(accum), given), _sessions(hook)
    found = []
    for spec in specs:  # all of them are valid before the first one climbs
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


def _factors(accum: Any) -> list[int]:
    """The accumulation factors, each once."""
    factors = list(accum) if isinstance(accum, Iterable) and not isinstance(accum, str) else [accum]
    if not factors:
        raise ConfigError("accum", factors, "must hold an accumulation factor: nothing would be audited")
    for k in factors:
        if isinstance(k, bool) or not isinstance(k, Integral) or k < 1:
            raise ConfigError("accum", k, "must be a whole number of at least 1, or several: micro-batches per optimizer step")
    return list(dict.fromkeys(map(int, factors)))


def _recut(spec: RunSpec, factors: Iterable[int], given: Mapping[str, Any]) -> list[RunSpec]:
    """The run of ``spec`` with each of the factors."""
    for key, value in given.items():
        raise ConfigError(key, value, "has no effect on a RunSpec, which says it by itself", "Make the specification with it.")
    return [from_dict(spec.to_dict() | {"accum": k}) for k in factors]


def _object(training: Any) -> Any:
    """The user's object. Raises UserError unless it, or its class, can be used."""
    from accum_sweeps.subjects.hook_check import check_class, load_class

    if isinstance(training, str):
        training = load_class(training)
    if not inspect.isclass(training):
        check_class(type(training))
        return training
    check_class(training)
    try:
        inspect.signature(training).bind()
    except TypeError as error:
        name = training.__name__
        raise UserError(f"class {name} cannot be made without arguments: {error}\n  Give an object of it: audit({name}(...))") from None
    return training()


def _specs(hook: Any, factors: Iterable[int], given: Mapping[str, Any]) -> list[RunSpec]:
    """A run of the user's object for each of the factors."""
    from accum_sweeps.subjects.samples import count

    kind, optimizer = type(hook), given.get("optimizer", OPTIMIZER)
    if not isinstance(optimizer, Mapping):
        raise ConfigError("optimizer", optimizer, f"must hold settings as in conf/optimizer, for example {OPTIMIZER}")
    values: dict[str, Any] = {
        "subject": {"kind": "python", "name": kind.__name__, "target": f"{kind.__module__}:{kind.__qualname__}"},
        "model": {"kind": "none", "name": "none"},
        "data": {"kind": "none", "name": "none"},
        "optimizer": dict(optimizer),
    }
    values |= {"fault": "none", "dtype": "fp32", "accumulator": "param", "ranks": 1, "steps": STEPS, "eval_every": 0, "probe_steps": []}
    values |= {"device": "cpu", "threads": 1, "deterministic": True, "seed": 0, "control": "none", "replicate": 0}
    values |= {key: value for key, value in given.items() if key != "optimizer"}
    rows = count(hook.batch(1, values["seed"]))
    specs = []
    for k in factors:
        if not rows or rows % k:
            possible = ", ".join(str(other) for other in range(1, rows + 1) if rows % other == 0)
            hint = f"Let batch return a multiple of it, or audit another factor: {possible}." if rows else "Let batch return samples."
            raise UserError(f"accum={k} does not divide the {rows} samples of a batch\n  {hint}")
        specs.append(from_dict({"global_batch": rows} | values | {"accum": k}))
    return specs


def _sessions(hook: Any) -> "Sessions":
    """Trainings of this very object: a class of a notebook or a test has no file that could be imported."""
    from accum_sweeps.subjects import without_fault
    from accum_sweeps.subjects.python_hook import session_of

    def made(spec: RunSpec, is_correct: bool) -> "Session":
        return session_of(hook, without_fault(spec) if is_correct else spec, has_own_step=not is_correct)

    return made
