"""The code under test on the bench: its steps beside the right ones, at the same weights and state.

The right step is the product's own accumulation, made from the state that the code under test was in, so that every window stands for
itself: one wrong step makes no later one look wrong.
"""

import copy
import dataclasses
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from accum_sweeps.ladder import changes
from accum_sweeps.ladder.geometry import geometry
from accum_sweeps.ladder.observation import Member, Observation, State, Tensors
from accum_sweeps.ladder.oracle import UNTOUCHED, Oracle, Sessions, Tampering, own_sessions
from accum_sweeps.ladder.own_code import MOST_OWN_NOISE, ORDERED, own_obstacle
from accum_sweeps.ladder.shares import Shares, norm, share_of_bf16, shares
from accum_sweeps.ladder.trainer import TrainerOracle, Window
from accum_sweeps.ladder.updates import SHRINK
from accum_sweeps.plan.spec import RunSpec
from accum_sweeps.training import optimizers
from accum_sweeps.training.task import Rows

CLIP_EPS = 1e-6  # what torch's clipping adds to the norm
SAFETY = 30.0  # how much more than right code's own rounding in a place is still rounding
NOISE_SAFETY = 10.0
ONE_LENGTH, OTHER_LENGTH = 1e-3, 3e-3  # relative: lengths of gradients that are the same, or different
MOSTLY = 0.99  # of a gradient's elements
MOST_NOISE = 1e-5  # a control that changes more is no rounding in float64, whatever parts of the network are float32
LEAST = {8: 1e-13, 4: 2e-6, 2: 2e-3}  # by bytes of a gradient's element: no share is known better


@dataclass(frozen=True, kw_only=True, eq=False)
class Step:
    """One step of the code under test, and what the right code makes of the same micro-batches.

    ``expected`` is the right update by what the optimizer was given, None where it made none.
    """

    spec: RunSpec
    state: State
    seen: Observation
    members: Sequence[Member]
    shares: Shares
    expected: Observation | None

    @property
    def loss(self) -> float:
        """The mean loss over all terms, from the micro-batches themselves."""
        return sum(member.loss for member in self.members) / sum(member.terms for member in self.members)

    @property
    def mean_of_losses(self) -> float:
        """The mean of the micro-batches' own mean losses."""
        means = [member.loss / member.terms for member in self.members if member.terms]
        return math.fsum(means) / len(means)

    @property
    def last_loss(self) -> float:
        """The last micro-batch's own mean loss."""
        last = self.members[-1]
        return last.loss / last.terms if last.terms else math.nan


class Bench:
    """Asks the code that ``spec`` names, and the right code, from the weights that the run begins with.

    Raises UserError where the subject shows no step.
    """

    def __init__(self, spec: RunSpec, sessions: Sessions = own_sessions) -> None:
        self.spec, self._sessions = spec, sessions
        self._rounding: dict[str, float] = {}
        first = Oracle(changes.one_batch(spec), is_correct=True, sessions=sessions)
        self.start, self.has_train, self.has_own_step = first.start, first.has_train, first.has_own_step or first.has_train
        self.has_short_window = first.has_short_window

    def at(self, state: State) -> "Bench":
        """The same bench, on which every experiment begins at ``state``."""
        other = copy.copy(self)
        other.start, other._rounding = state, {}
        return other

    def code(self, spec: RunSpec, state: State | None = None, tampering: Tampering = UNTOUCHED) -> Oracle:
        """The code under test with the settings of ``spec``, from ``state``, by default the beginning."""
        return self._code(spec, state, dataclasses.replace(tampering, own_scale=1.0) if self.is_unscalable else tampering)

    def _code(self, spec: RunSpec, state: State | None, tampering: Tampering) -> Oracle:
        kind = TrainerOracle if self.has_train else Oracle
        return kind(spec, state or self.start, tampering=self._quiet(tampering), sessions=self._sessions)

    def right(self, spec: RunSpec, state: State | None = None, tampering: Tampering = UNTOUCHED) -> Oracle:
        """The right code with the settings of ``spec``, from ``state``, by default the beginning."""
        return Oracle(spec, state or self.start, is_correct=True, tampering=self._quiet(tampering), sessions=self._sessions)

    def _quiet(self, tampering: Tampering) -> Tampering:
        return dataclasses.replace(tampering, keeps_all=True) if self.is_quiet else tampering

    def step(self, spec: RunSpec, tampering: Tampering = UNTOUCHED, state: State | None = None) -> Step:
        """One step of the code under test with the settings of ``spec``."""
        start = state or self.start
        return self.judged(spec, start, self.code(spec, start, tampering).observe(), tampering)

    def history(self, spec: RunSpec, first: int, steps: int, resume_after: int | None = None) -> list[Step]:
        """``steps`` steps one after the other from number ``first`` on, continued from a checkpoint after ``resume_after`` of them."""
        start = State(model=self.start.model, optimizer={}, step=first)
        seen = self.code(spec, start).sequence(steps, resume_after)
        return [self.judged(spec, state, each) for state, each in seen]

    def epoch(self, spec: RunSpec, first: int, steps: int, last: int) -> list[Step]:
        """``steps`` steps from number ``first`` on, an epoch of a user's own trainer; the last one has only ``last`` micro-batches."""
        oracle = self.code(spec, State(model=self.start.model, optimizer={}, step=first))
        assert isinstance(oracle, TrainerOracle)
        parts = [oracle.parts(number) for number in range(first, first + steps)]
        parts[-1] = parts[-1][:last]
        seen = oracle.epoch([Window(samples=None, parts=each) for each in parts])
        return [self.judged(spec, state, found, parts=of_window) for (state, found), of_window in zip(seen, parts, strict=True)]

    def judged(
        self, spec: RunSpec, state: State, seen: Observation, tampering: Tampering = UNTOUCHED, parts: Sequence[Rows] | None = None
    ) -> Step:
        """``seen`` beside the right step from ``state``, with ``parts`` of its samples, by default as the run itself cuts them."""
        single = changes.one_rank(spec)
        members = self.right(single, state, tampering).members(parts=parts)
        return Step(
            spec=spec,
            state=state,
            seen=seen,
            members=members,
            shares=shares(seen.gradient, members),
            expected=self._expected(single, state, seen, members),
        )

    def _expected(self, spec: RunSpec, state: State, seen: Observation, members: Sequence[Member]) -> Observation | None:
        if not seen.updates or not seen.clipped or math.isnan(seen.lr):
            return None
        plain, loss, terms = changes.without_clipping(spec), seen.loss, seen.terms
        if self.has_train:  # which tells no terms, and losses only if it likes
            loss, terms = sum(member.loss for member in members), 1.0
        return self.right(plain, state).update(seen.clipped, loss, terms)

    def tolerance(self, step: Step) -> float:
        """What rounding may do to a share, or leave as residual, in ``step``."""
        size = max(part.dtype.itemsize for part in step.seen.gradient.values()) if step.seen.gradient else 8
        noise = NOISE_SAFETY * max(self.rerun, max(self.noise, self.own_noise) if size == 8 else 0.0)
        return max(SAFETY * self.rounding(step.spec), noise, LEAST[size], SAFETY * step.seen.resolution)

    def rounding(self, spec: RunSpec) -> float:
        """What rounding does to the shares of the right gradient in the first step with the settings of ``spec``, or leaves beside them."""
        single = changes.one_rank(spec)
        if single.identity not in self._rounding:
            found = self._right_shares(single)
            value = max(found.off, found.rest)
            self._rounding[single.identity] = value if math.isfinite(value) else 0.0
        return self._rounding[single.identity]

    def rounding_of_sum(self, spec: RunSpec) -> float:
        """How far the right gradient of that step is from the sum of its micro-batches' in float64; not finite where it overflows."""
        return self._right_shares(changes.one_rank(spec)).sums.relative

    def _right_shares(self, spec: RunSpec) -> Shares:
        right = self.right(spec)
        return shares(right.observe().gradient, right.members())

    @functools.cached_property
    def noise(self) -> float:
        """How far one-ULP noise and another partition move the right gradient in float64: far above 1e-16 where parts are float32."""
        spec = changes.one_rank(changes.in_fp64(self.spec))
        plain = self.right(changes.one_batch(spec)).observe().gradient
        controls = [dataclasses.replace(spec, control="ulp_weights"), changes.regrouped(spec, 1), changes.regrouped(spec, 2)]
        moved = [geometry(self.right(control).observe().gradient, plain).relative for control in controls]
        return max((each for each in moved if each <= MOST_NOISE), default=0.0)

    @functools.cached_property
    def own_noise(self) -> float:
        """The same of a step or a trainer of the user's own, whose loss may have more parts of low precision."""
        return self.own_rest if self.own_rest <= MOST_OWN_NOISE else 0.0

    @functools.cached_property
    def own_rest(self) -> float:
        """How much of its gradient at k=1, where nothing is accumulated, is not of the batch; 0 where it is the rounding of a buffer."""
        if not self.has_own_step:
            return 0.0
        quiet = Tampering(keeps_all=self.draws(UNTOUCHED))
        step = self.step(dataclasses.replace(self.exact, accum=1), quiet)
        is_rounded = share_of_bf16(step.seen.gradient) > MOSTLY
        return 0.0 if is_rounded or not math.isfinite(step.shares.rest) else step.shares.rest

    def members(self, spec: RunSpec, state: State, step: int) -> list[Member]:
        """The micro-batches of optimizer step ``step`` at the weights of ``state``."""
        there = State(model=state.model, optimizer={}, step=step)
        return self.right(changes.one_rank(spec), there).members()

    def obstacle(self) -> str:
        """Why nothing can be compared; "" = it can."""
        oracle = self.right(changes.one_rank(self.spec))
        try:
            seen, members = oracle.observe(), oracle.members()
        except ValueError as error:
            return f"the right step cannot be made: {error}"
        if oracle.has_moved:
            return "the weights change while a loss is computed: no two steps begin at the same weights"
        is_scaled = self.spec.setup.dtype == "amp_fp16"  # there a scale that overflows is made smaller, and the step is passed over
        if not math.isfinite(norm(seen.gradient)) and not (is_scaled and self.has_fp64):
            hint = "; a smaller loss_scale may help" if is_scaled else ""
            return f"the gradient of the right step is not finite: there is nothing to compare{hint}"
        if not sum(member.terms for member in members):
            return "the samples of the step hold no term of the loss"
        if not seen.gradient:
            return "no parameter gets a gradient"
        return own_obstacle(self) if self.has_own_step else ""

    @functools.cached_property
    def is_quiet(self) -> bool:
        """Whether nothing is dropped on this bench: in which order a trainer draws its masks is its own affair."""
        return self.has_train and self.draws(UNTOUCHED)

    def draws(self, tampering: Tampering) -> bool:
        """Whether another seed of the dropout stream gives another right gradient."""
        spec = changes.one_rank(self.spec)
        seeds = [spec, dataclasses.replace(spec, seed_dropout=spec.seed_dropout + 1)]
        first, second = (
            Oracle(each, self.start, is_correct=True, tampering=tampering, sessions=self._sessions).observe().gradient for each in seeds
        )
        return geometry(second, first).relative > 0

    @functools.cached_property
    def _own_lengths(self) -> tuple[float, float]:
        """The length of a gradient that a user's own code gives the optimizer, and of ``SHRINK`` times that gradient."""
        own, shrunk = (norm(self._code(self.exact, None, Tampering(own_scale=scale)).observe().gradient) for scale in (1.0, SHRINK))
        return own, SHRINK * shrunk

    @functools.cached_property
    def is_unscalable(self) -> bool:
        """Whether that code gives gradients a length, or adds something to them, however long they are: they cannot be scaled then."""
        if not self.has_own_step:
            return False
        own, shrunk = self._own_lengths
        return bool(0 < math.sqrt(SHRINK) * own < shrunk < math.inf)

    @functools.cached_property
    def follows_schedule(self) -> bool:
        """Whether a trainer's rates are those of the scheduler that it is given, however often it steps it; one may have its own."""
        if not self.has_train or not self.has_settings_optimizer:
            return not self.has_train
        part, most = self.spec.setup.optimizer, (ORDERED + 2) * self.spec.accum
        factor = optimizers.schedule(part, self.spec.setup.steps)
        known = np.array([part.lr * factor(step) for step in range(1, most + ORDERED)])
        rates = [step.seen.lr for step in self.history(self.exact, 1, ORDERED) if math.isfinite(step.seen.lr)]
        is_stepped = len(rates) < ORDERED or np.ptp(rates) > 0 or np.ptp(known) == 0
        return bool(is_stepped and all(np.isclose(rate, known, rtol=1e-9, atol=0).any() for rate in rates))

    @property
    def exact(self) -> RunSpec:
        """The settings without a limit of their own, in float64 where the subject runs in it."""
        return changes.without_clipping(changes.in_fp64(self.spec) if self.has_fp64 else self.spec)

    @functools.cached_property
    def hides_length(self) -> bool:
        """Whether gradients of different lengths come out with one length, as of a limit that cannot be lifted."""
        if not self.has_own_step:
            return False
        if self.is_unscalable and abs(self._own_lengths[0] / self._own_lengths[1] - 1) <= ONE_LENGTH:
            return True
        steps = [step for step in self.history(self.exact, 1, ORDERED) if step.seen.gradient]
        lengths = [norm(step.seen.gradient) for step in steps]
        right = [length / step.shares.sums.rho for step, length in zip(steps, lengths, strict=True) if step.shares.sums.rho]
        return len(right) > 1 and max(lengths) / min(lengths) - 1 <= ONE_LENGTH < OTHER_LENGTH <= max(right) / min(right) - 1

    @functools.cached_property
    def rerun(self) -> float:
        """How far the same right step, made again, is from itself: 0 where the subject is deterministic, or nothing is finite."""
        first, again = (self.right(changes.one_rank(self.spec)).observe().gradient for _ in range(2))
        apart = geometry(again, first).relative
        return apart if math.isfinite(apart) else 0.0

    @functools.cached_property
    def has_settings_optimizer(self) -> bool:
        """Whether the optimizer is the specification's, not one of the user's class."""
        return self.right(changes.one_batch(self.spec)).has_settings_optimizer

    @functools.cached_property
    def has_fp64(self) -> bool:
        """Whether the right code can make its step in float64."""
        try:
            seen = self.right(changes.in_fp64(changes.one_batch(self.spec))).observe()
        except (RuntimeError, TypeError, ValueError):  # a user's class may have written a dtype into its network
            return False
        return all(part.dtype.itemsize == 8 for part in seen.gradient.values())


def shortened(gradient: Tensors, limit: float | None) -> dict[str, Tensor]:
    """``gradient`` at most ``limit`` long, float64."""
    factor = 1.0 if limit is None else min(1.0, limit / (norm(gradient) + CLIP_EPS))
    return {name: part.double() * factor for name, part in gradient.items()}
