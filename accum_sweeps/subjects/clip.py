"""The contrastive subject: images against captions with a dual encoder.

Shapes: R pairs of a micro-batch, S pixels of an image's side, T tokens of a caption.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from transformers import CLIPModel

from accum_sweeps import faults
from accum_sweeps.plan.errors import UserError
from accum_sweeps.plan.parts import Contrastive, DualEncoder
from accum_sweeps.plan.parts import Pairs as PairData
from accum_sweeps.plan.spec import RunSpec
from accum_sweeps.record.metrics import EVAL_LOSS
from accum_sweeps.training.data import pairs
from accum_sweeps.training.loop import TrainingSession
from accum_sweeps.training.models import dual_encoder, weight_files
from accum_sweeps.training.models.dropout import SampleMasks
from accum_sweeps.training.precision import Precision
from accum_sweeps.training.step import cached_step
from accum_sweeps.training.task import Rows

EVAL_BLOCK = 32  # evaluation pairs that are contrasted with each other, the same for every run


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """``images``: float32, (R, 3, S, S), and ``ids``: int64, (R, T), on the run's device; ``masks`` of the dropout, None = none."""

    images: Tensor
    ids: Tensor
    masks: SampleMasks | None


@dataclass(frozen=True, eq=False)
class Samples:
    """The pairs of optimizer step ``step``."""

    step: int
    pairs: pairs.Batch


class ContrastiveTask:
    """A ``training.task.Task``. Raises UserError where the pairs are not the planned ones."""

    def __init__(self, spec: RunSpec) -> None:
        subject, model, data = spec.setup.subject, spec.setup.model, spec.setup.data
        if not isinstance(subject, Contrastive) or not isinstance(model, DualEncoder) or not isinstance(data, PairData):
            raise UserError(f"subject=clip needs a dual encoder and pairs; given are model={model.name} and data={data.name}")
        self._spec, self._subject, self._model, self._data = spec, subject, model, data
        self._pairs = pairs.load(data, model.image_size, model.vocabulary, model.text_length)
        self._evaluation: list[MicroBatch] = []

    def build(self) -> torch.nn.Module:
        """The dual encoder at its initial weights, float32 on the CPU: drawn, or those of ``model.weights``."""
        part = self._model
        if part.weights is None:
            return dual_encoder.build(part, self._spec.seed_init)
        return dual_encoder.load(part, weight_files.read(Path(part.weights), part.weights_hash))

    def optimizer(self, model: torch.nn.Module) -> None:
        """None: the optimizer of the specification."""
        return None

    def batch(self, step: int) -> Samples:
        """The pairs of optimizer step ``step``: a function of the data, ``seed_data`` and the step alone."""
        train = self._pairs.train
        chosen = pairs.drawn(self._data, len(train), self._spec.setup.global_batch, self._spec.seed_data, step)
        return Samples(step, pairs.batch(self._pairs, train[chosen]))

    def rows(self, step: int) -> int:
        """The global batch, or fewer in the short last window of an epoch."""
        epochs = pairs.epochs(self._data, self._spec.setup.global_batch, self._spec.seed_data)
        return self._spec.setup.global_batch if epochs is None else epochs.size(step)

    def tokens(self, micro_batches: Sequence[MicroBatch], terms: float) -> float:
        """Pairs."""
        return terms

    def split(self, samples: Samples, parts: Sequence[Rows]) -> list[MicroBatch]:
        """The pairs of each part as tensors; with ``padding=fixed`` all captions are as long as the longest of the data."""
        spec = self._spec
        masks = [SampleMasks(seed=spec.seed_dropout, step=samples.step, rows=part.tolist()) for part in parts]
        return [self._micro_batch(samples.pairs, part, kept) for part, kept in zip(parts, masks, strict=True)]

    def _micro_batch(self, samples: pairs.Batch, rows: Rows, masks: SampleMasks | None) -> MicroBatch:
        longest = samples.lengths[rows].max() if self._subject.padding == "micro_batch" else samples.ids.shape[1]
        images, ids = torch.from_numpy(samples.images[rows]), torch.from_numpy(samples.ids[rows, :longest])
        return MicroBatch(images.to(self._spec.setup.device), ids.to(self._spec.setup.device), masks)

    def encode(self, model: torch.nn.Module, micro_batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """(embeddings of the images, of the captions), each (R, width of the common embedding)."""
        return dual_encoder.encode(cast(CLIPModel, model), micro_batch.images, micro_batch.ids, micro_batch.masks)

    def contrast(self, model: torch.nn.Module, images: Tensor, captions: Tensor) -> tuple[Tensor, int]:
        """(symmetric cross entropy in nats summed over the pairs, their number), each pair against all others."""
        return dual_encoder.contrast(cast(CLIPModel, model).logit_scale, images, captions)

    def loss(self, model: torch.nn.Module, micro_batch: MicroBatch) -> tuple[Tensor, int]:
        """The same with the micro-batch's own pairs only."""
        return self.contrast(model, *self.encode(model, micro_batch))

    def evaluate(self, model: torch.nn.Module) -> Mapping[str, float]:
        """``eval_loss``: nats per evaluation pair, each contrasted with the pairs of its block of up to EVAL_BLOCK."""
        losses = [self.loss(model, block) for block in self._evaluation_blocks()]
        total = torch.stack([summed.double() for summed, _ in losses]).sum()
        return {EVAL_LOSS: float(total) / sum(terms for _, terms in losses)}

    def _evaluation_blocks(self) -> list[MicroBatch]:
        if not self._evaluation:
            numbers = self._pairs.evaluation
            samples = pairs.batch(self._pairs, numbers)
            starts = range(0, len(numbers), EVAL_BLOCK)
            blocks = [np.arange(start, min(start + EVAL_BLOCK, len(numbers))) for start in starts]
            self._evaluation = [self._micro_batch(samples, block, None) for block in blocks]
        return self._evaluation

    def state(self) -> dict[str, Any]:
        """{}: everything follows from the specification and the step."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Nothing to take back."""


def session(spec: RunSpec) -> TrainingSession:
    """The training of a dual encoder as ``spec`` says, at its start. Raises UserError where its data or weights are not as planned."""
    task = ContrastiveTask(spec)
    if isinstance(spec.setup.subject, Contrastive) and spec.setup.subject.accumulation == "plain":
        return faults.session(spec, task)
    autocast = Precision.named(spec.setup.dtype, spec.setup.device).autocast
    members = faults.Cached(encode=task.encode, contrast=task.contrast, autocast=autocast)
    return faults.session(spec, task, cached_step(task.encode, task.contrast, autocast), members)
