"""The language-model subject: next-token prediction with the built-in decoder on text or token files."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from accum_sweeps import faults
from accum_sweeps.plan.errors import UserError
from accum_sweeps.plan.parts import Decoder, LanguageModel
from accum_sweeps.plan.parts import Text as TextData
from accum_sweeps.plan.spec import RunSpec
from accum_sweeps.record.metrics import EVAL_LOSS
from accum_sweeps.training import seeding
from accum_sweeps.training.data import corpus
from accum_sweeps.training.data.epochs import Epochs
from accum_sweeps.training.data.rows import IGNORED, Batch, sampled, spread
from accum_sweeps.training.loop import TrainingSession
from accum_sweeps.training.models import decoder
from accum_sweeps.training.models.dropout import SampleMasks
from accum_sweeps.training.task import Rows
from accum_sweeps.training.token_loss import token_entropies, token_loss

# The same for every run, whatever its micro-batch: rows of a forward pass of the evaluation, fewer where their logits are many.
EVAL_ROWS_AT_A_TIME = 16
EVAL_LOGITS_AT_A_TIME = 1 << 27  # 0.5 GB in float32; the loss needs a second copy


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """``inputs`` and ``targets``: int64 on the run's device, (rows, seq_len); ``tokens`` of the targets are not padding.

    ``masks`` are those of dropout; None = drawn from torch's global stream, where there is dropout.
    """

    inputs: Tensor
    targets: Tensor
    tokens: int
    masks: SampleMasks | None = None


class LanguageModelTask:
    """A ``training.task.Task``. Raises UserError where the corpus is not the planned one."""

    def __init__(self, spec: RunSpec) -> None:
        subject, model, data = spec.setup.subject, spec.setup.model, spec.setup.data
        if not isinstance(subject, LanguageModel) or not isinstance(model, Decoder) or not isinstance(data, TextData):
            raise UserError(f"subject=lm needs a model and data; given are model={model.name} and data={data.name}")
        self._spec, self._subject, self._model, self._data = spec, subject, model, data
        self._corpus = corpus.load(data)
        self._epochs = _epochs(spec, data)
        self._evaluation: list[MicroBatch] = []

    def build(self) -> torch.nn.Module:
        """The decoder at its initial weights, float32 on the CPU."""
        return decoder.build(self._model, self._spec.seed_init, self._data.seq_len)

    def optimizer(self, model: torch.nn.Module) -> None:
        """None: the optimizer of the specification."""
        return None

    def batch(self, step: int) -> Batch:
        """The rows of optimizer step ``step``: a function of the corpus, ``seed_data`` and the step alone.

        Drawn with replacement; or, with ``data.epoch_rows``, the next window of so many rows that lie at equal distances over
        the training text, the same for every seed, in an order of this epoch's own.
        """
        text, seq_len = self._corpus.train, self._data.seq_len
        if self._epochs is None:
            rng = seeding.generator("data", self._spec.seed_data, step)
            rows = sampled(text, seq_len, self._spec.setup.global_batch, rng)
        else:
            rows = spread(text, seq_len, self._epochs.rows, self._epochs.chosen(step))
        return dataclasses.replace(rows, step=step)

    def rows(self, step: int) -> int:
        """The global batch, or fewer in the short last window of an epoch."""
        return self._spec.setup.global_batch if self._epochs is None else self._epochs.size(step)

    def tokens(self, micro_batches: Sequence[MicroBatch], terms: float) -> float:
        """Target tokens that are not padding."""
        return float(sum(micro_batch.tokens for micro_batch in micro_batches))

    def split(self, samples: Batch, parts: Sequence[Rows]) -> list[MicroBatch]:
        """The rows of each part as tensors; all of them padded to ``seq_len``, so that shapes do not depend on the cut."""
        return [self._micro_batch(samples, part) for part in parts]

    def _micro_batch(self, samples: Batch, rows: Rows) -> MicroBatch:
        device, targets = self._spec.setup.device, samples.targets[rows]
        masks = None
        if self._model.dropout and self._model.dropout_masks == "sample":
            masks = SampleMasks(seed=self._spec.seed_dropout, step=samples.step, rows=rows.tolist())
        inputs = torch.from_numpy(samples.inputs[rows]).to(device)
        return MicroBatch(inputs, torch.from_numpy(targets).to(device), int((targets != IGNORED).sum()), masks)

    def loss(self, model: torch.nn.Module, micro_batch: MicroBatch) -> tuple[Tensor, int]:
        """(loss in nats summed over the terms that ``subject.mean`` names, their number)."""
        logits = model(micro_batch.inputs, micro_batch.masks)
        return token_loss(logits, micro_batch.targets, micro_batch.tokens, self._subject)

    def evaluate(self, model: torch.nn.Module) -> Mapping[str, float]:
        """``eval_loss``: cross entropy in nats per target token over the evaluation rows, whatever the training's loss is.

        Summed in float64: a float32 sum would round away differences that are larger than those of the losses themselves.
        """
        rows = self._evaluation_rows()
        sums = [token_entropies(model(micro_batch.inputs), micro_batch.targets).double().sum() for micro_batch in rows]
        return {EVAL_LOSS: float(torch.stack(sums).sum()) / sum(micro_batch.tokens for micro_batch in rows)}

    def _evaluation_rows(self) -> list[MicroBatch]:
        if not self._evaluation:
            rows = self._data.eval_rows
            samples = spread(self._corpus.evaluation, self._data.seq_len, rows)
            fitting = EVAL_LOGITS_AT_A_TIME // (self._data.seq_len * self._model.vocabulary)
            size = min(EVAL_ROWS_AT_A_TIME, max(1, fitting))
            self._evaluation = self.split(samples, np.split(np.arange(rows), range(size, rows, size)))
        return self._evaluation

    def state(self) -> dict[str, Any]:
        """{}: everything follows from the specification and the step."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Nothing to take back."""


def _epochs(spec: RunSpec, data: TextData) -> Epochs | None:
    if data.epoch_rows is None:
        return None
    return Epochs(rows=data.epoch_rows, global_batch=spec.setup.global_batch, last_window=data.last_window, seed=spec.seed_data)


def session(spec: RunSpec) -> TrainingSession:
    """The training of a language model as ``spec`` says, at its start. Raises UserError where its data is not as planned."""
    return faults.session(spec, LanguageModelTask(spec))
