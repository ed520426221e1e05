"""The language-model subject: next-token prediction with the built-in decoder on text or token files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from accum_sweeps.plan.errors import UserError
from accum_sweeps.plan.parts import Decoder
from accum_sweeps.plan.parts import Text as TextData
from accum_sweeps.plan.spec import RunSpec
from accum_sweeps.record.metrics import EVAL_LOSS
from accum_sweeps.training import seeding
from accum_sweeps.training.data import corpus
from accum_sweeps.training.data.rows import IGNORED, Batch, sampled, spread
from accum_sweeps.training.loop import TrainingSession
from accum_sweeps.training.models import decoder
from accum_sweeps.training.task import Rows

EVAL_ROWS_AT_A_TIME = 16  # the same for every run, whatever its micro-batch


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """``inputs`` and ``targets``: int64 on the run's device, (rows, seq_len); ``terms`` target tokens are not padding."""

    inputs: Tensor
    targets: Tensor
    terms: int


class LanguageModelTask:
    """A ``training.task.Task``. Raises UserError where the corpus is not the planned one."""

    def __init__(self, spec: RunSpec) -> None:
        model, data = spec.setup.model, spec.setup.data
        if not isinstance(model, Decoder) or not isinstance(data, TextData):
            raise UserError(f"subject=lm needs a model and data; given are model={model.name} and data={data.name}")
        self._spec, self._model, self._data = spec, model, data
        self._corpus = corpus.load(data)
        self._evaluation: list[MicroBatch] = []

    def build(self) -> torch.nn.Module:
        """The decoder at its initial weights, float32 on the CPU."""
        return decoder.build(self._model, self._spec.seed_init)

    def optimizer(self, model: torch.nn.Module) -> None:
        """None: the optimizer of the specification."""
        return None

    def batch(self, step: int) -> Batch:
        """The rows of optimizer step ``step``: a function of the corpus, ``seed_data`` and the step alone."""
        rng = seeding.generator("data", self._spec.seed_data, step)
        return sampled(self._corpus.train, self._data.seq_len, self._spec.setup.global_batch, rng)

    def rows(self, step: int) -> int:
        """The global batch."""
        return self._spec.setup.global_batch

    def tokens(self, micro_batches: Sequence[MicroBatch], terms: float) -> float:
        """Target tokens that are not padding."""
        return float(sum(micro_batch.terms for micro_batch in micro_batches))

    def split(self, samples: Batch, parts: Sequence[Rows]) -> list[MicroBatch]:
        """The rows of each part as tensors; all of them padded to ``seq_len``, so that shapes do not depend on the cut."""
        return [self._micro_batch(samples, part) for part in parts]

    def _micro_batch(self, samples: Batch, rows: Any) -> MicroBatch:
        device, targets = self._spec.setup.device, samples.targets[rows]
        inputs = torch.from_numpy(samples.inputs[rows]).to(device)
        return MicroBatch(inputs, torch.from_numpy(targets).to(device), int((targets != IGNORED).sum()))

    def loss(self, model: torch.nn.Module, micro_batch: MicroBatch) -> tuple[Tensor, int]:
        """(cross entropy in nats summed over the target tokens, their number).

        Computed in float32, or float64 where the logits are.
        """
        return self._cross_entropy(model, micro_batch, "sum"), micro_batch.terms

    def evaluate(self, model: torch.nn.Module) -> Mapping[str, float]:
        """``eval_loss``: nats per target token over the evaluation rows.

        Summed in float64: a float32 sum would round away differences that are larger than those of the losses themselves.
        """
        rows = self._evaluation_rows()
        sums = [self._cross_entropy(model, micro_batch, "none").double().sum() for micro_batch in rows]
        return {EVAL_LOSS: float(torch.stack(sums).sum()) / sum(micro_batch.terms for micro_batch in rows)}

    def _cross_entropy(self, model: torch.nn.Module, micro_batch: MicroBatch, reduction: str) -> Tensor:
        logits = model(micro_batch.inputs)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32)).flatten(0, 1)
        return cross_entropy(logits, micro_batch.targets.flatten(), ignore_index=IGNORED, reduction=reduction)

    def _evaluation_rows(self) -> list[MicroBatch]:
        if not self._evaluation:
            rows = self._data.eval_rows
            samples = spread(self._corpus.evaluation, self._data.seq_len, rows)
            starts = range(0, rows, EVAL_ROWS_AT_A_TIME)
            self._evaluation = [self._micro_batch(samples, slice(start, start + EVAL_ROWS_AT_A_TIME)) for start in starts]
        return self._evaluation

    def state(self) -> dict[str, Any]:
        """{}: everything follows from the specification and the step."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Nothing to take back."""


def session(spec: RunSpec) -> TrainingSession:
    """The training of a language model as ``spec`` says, at its start. Raises UserError where its data is not as planned."""
    return TrainingSession(spec, LanguageModelTask(spec))
