"""Is it rounding or a fault, and which one? The order of the questions; each is answered by experiments on the code itself."""

from dataclasses import dataclass

from accum_sweeps.ladder import changes
from accum_sweeps.ladder.bench import Bench
from accum_sweeps.ladder.dependence import KINDS, dependence
from accum_sweeps.ladder.findings import Finding
from accum_sweeps.ladder.gradient_faults import clipping_faults, gradient_faults
from accum_sweeps.ladder.precision_faults import precision_faults
from accum_sweeps.ladder.window_faults import Windows, log_faults, window_faults


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """``names``: the classes of the faults that were found, ``()`` = none; ``kind``: of a real dependence, "" = none.

    ``findings`` in the order in which they were found; ``is_exact``: in float64.
    """

    names: tuple[str, ...]
    kind: str
    findings: tuple[Finding, ...]
    is_exact: bool

    @property
    def answer(self) -> str:
        """The fault classes joined by "+", real_dependence, or rounding."""
        return "+".join(self.names) or ("real_dependence" if self.kind else "rounding")


def exact_windows(bench: Bench) -> Windows:
    """The windows that decide: in float64 wherever the subject can run it, without a limit of the gradient's length."""
    exact = changes.in_fp64(bench.spec) if bench.has_fp64 else bench.spec
    return Windows(bench, changes.without_clipping(exact))


def diagnose(bench: Bench, windows: Windows | None = None) -> Diagnosis:
    """The faults of the code under test, by name.

    float64 decides wherever the subject can run it: rounding is 1e-16 there, and what is left is none. What a fault does to every window
    comes first, then what only shows over windows, then what exists in the run's own precision alone, then the log.
    """
    windows = windows or exact_windows(bench)
    exact = changes.in_fp64(bench.spec) if bench.has_fp64 else bench.spec
    telling = windows.telling
    found = [*gradient_faults(bench.at(telling.step.state), telling), *clipping_faults(bench, windows.usual), *window_faults(windows)]
    found = _one_story(found)
    found += precision_faults(bench) if not found else []
    found += log_faults(windows, gradient_is_right=windows.usual.is_right)
    names = tuple(dict.fromkeys(each.name for each in found))
    own = None if found else dependence(bench, exact)
    if own is not None and own.name not in KINDS:
        names, found, own = (own.name,), [own], None
    return Diagnosis(
        names=names,
        kind=own.name if own is not None else "",
        findings=tuple(found) if own is None else (own,),
        is_exact=bench.has_fp64,
    )


def _one_story(found: list[Finding]) -> list[Finding]:
    """Without what follows from another finding: an early step leaves out what comes later."""
    names = {each.name for each in found}
    return [each for each in found if not (each.name == "lost_micro_batches" and "early_step" in names)]
