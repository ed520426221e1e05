"""measure=one_step: this run's optimizer step against the same step in one batch, at the same weights, as one record of metrics.

Where an optimizer with an eps turns a difference of gradients into one of weights, interventions tell by which way.
"""

import gc
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

from accum_sweeps.ladder import interventions
from accum_sweeps.ladder.interventions import Pair
from accum_sweeps.ladder.measure import Measured, Outputs, gradient_errors, measured, step_metrics
from accum_sweeps.ladder.observation import State
from accum_sweeps.ladder.oracle import Oracle
from accum_sweeps.plan.spec import RunSpec
from accum_sweeps.record.metrics import INTERVENTIONS, StepRecord
from accum_sweeps.training import checkpoint

LARGEST_IN_FP64 = 50_000_000  # trained parameters up to which gradients are computed in float64 too: it doubles the memory
MOST_TENSORS = 5  # whose shares are printed


class OneStepSession:
    """A ``subjects.protocol.Session`` of one optimizer step; ``spec.setup.steps`` is only what its schedule is made for."""

    keeps_own_checkpoints = False

    def __init__(self, spec: RunSpec) -> None:
        self._spec = spec
        self.position = 0

    def steps(self) -> Generator[StepRecord]:
        """Signs of life, then one record with those metrics of ``record.metrics.ONE_STEP_UNITS`` that can be had.

        Raises UserError where the subject shows no step.
        """
        if self.position:
            return
        values: dict[str, float] = {}
        for found in measurements(self._spec):
            values |= found
            yield StepRecord(step=0)
        self.position = 1
        yield StepRecord(step=1, values=values)

    def save(self, path: Path) -> None:
        """Whether the step is done; of a step in between nothing is kept."""
        checkpoint.save(path, run_id=self._spec.run_id, step=self.position, state={})

    def load(self, path: Path) -> int:
        """Take back what :meth:`save` wrote."""
        self.position, _ = checkpoint.load(path, run_id=self._spec.run_id, device=self._spec.setup.device)
        return self.position


def measurements(spec: RunSpec) -> Iterator[dict[str, float]]:
    """The metrics of ``spec``, part by part, each printed for the log as it is found."""
    outputs = Outputs()
    oracle = Oracle(interventions.reference_of(spec))
    start, has_settings_optimizer = oracle.start, oracle.has_settings_optimizer
    reference = oracle.observe(on_outputs=outputs.keep)
    del oracle
    gc.collect()  # a process's first import of parts of torch keeps a reference to this model: it would be in memory twice
    yield {}
    arm = Oracle(spec, start).observe(on_outputs=outputs.compare)
    seen_outputs = outputs.difference
    del outputs
    pair = Pair(spec=spec, arm=arm, reference=reference, has_settings_optimizer=has_settings_optimizer)
    found = measured(pair)
    values = step_metrics(pair, found, seen_outputs)
    print(_told(spec, values, found))
    yield values
    for name, intervene in _interventions(pair, start, found):
        changed = intervene()
        metrics = measured(changed).metrics()
        print(_told_change(name, metrics))
        yield {f"{metric}_{name}": value for metric, value in metrics.items()}
        if name == "fp64_gradients":
            errors = gradient_errors(pair, changed.reference)
            print("  from the one-batch gradient in float64: " + ", ".join(f"{key} {value:.3g}" for key, value in errors.items()))
            yield errors


def _interventions(pair: Pair, start: State, found: Measured) -> Iterator[tuple[str, Callable[[], Pair]]]:
    """Those that can tell something: there is an eps of the settings' own optimizer, and the two updates differ."""
    setup = pair.spec.setup
    if not hasattr(setup.optimizer, "eps") or not pair.has_settings_optimizer or not found.amplified.update:
        return
    yield "eps_1e_4", lambda: interventions.eps(pair, start, 1e-4)
    yield "eps_1e_15", lambda: interventions.eps(pair, start, 1e-15)
    yield "frozen_tensor", lambda: interventions.frozen_tensor(pair, start, found.amplified.largest_tensor)
    if setup.dtype == "fp64":
        return
    if pair.spec.accum > 1:
        yield "fp64_accumulation", lambda: interventions.fp64_accumulation(pair, start)
    if found.weights.whole.elements <= LARGEST_IN_FP64:
        yield "fp64_gradients", lambda: interventions.fp64_gradients(pair, start)
    else:
        print(f"  no gradients in float64: they are for models of up to {LARGEST_IN_FP64:,} parameters")


def _told(spec: RunSpec, values: dict[str, float], found: Measured) -> str:
    control = "" if spec.control == "none" else f", control {spec.control}"
    lines = [f"one step with k={spec.accum}{control} against one batch, {found.weights.whole.elements:,} parameters"]
    for name in ("forward", "gradient", "weights"):
        if f"{name}_difference" in values:
            words = f"relative difference {values[f'{name}_difference']:.3g}, largest {values[f'{name}_largest']:.3g}"
            lines.append(f"  {name}: {words}, allclose passes from atol {values[f'{name}_tolerance']:.3g}")
    if values["weights_not_finite"]:
        lines.append(f"  {values['weights_not_finite']:.0f} weights are not finite after the step")
    lines.append(f"  update: {_amplified(values)}")
    shares = sorted(found.amplified.by_tensor.items(), key=lambda item: -item[1])[:MOST_TENSORS]
    lines += [f"    {share:.1%} of it from {name}" for name, share in shares if share > 0]
    return "\n".join(lines)


def _told_change(name: str, values: dict[str, float]) -> str:
    return f"  {INTERVENTIONS[name]}: {_amplified(values)}"


def _amplified(values: dict[str, float]) -> str:
    prediction = f", measured / closed form {values['prediction']:.3f}" if "prediction" in values else ""
    if "gain" not in values:
        return "not finite, nothing to compare"
    shares = f"soft region {values['soft_share']:.1%}, sign flips {values['flip_share']:.1%}"
    gain = f"relative difference {values['update_difference']:.3g}, gain {values['gain']:.3g}"
    return f"{gain}, {shares}{prediction}, {values['weights_failing']:.0f} weights fail allclose at 1e-7"
