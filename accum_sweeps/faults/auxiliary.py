"""Faults of terms beside the main loss, and of gradient caching's second pass."""

import dataclasses
from typing import Any

from torch import Tensor

from accum_sweeps.faults.buffer import Buffer, finish
from accum_sweeps.faults.case import Case
from accum_sweeps.plan.parts import LanguageModel
from accum_sweeps.training import seeding
from accum_sweeps.training.members import Cached
from accum_sweeps.training.precision import Precision
from accum_sweeps.training.task import StepOutcome, Training
from accum_sweeps.training.token_loss import token_loss


def auxiliary_scale(case: Case, training: Training, micro_batches: list[Any]) -> StepOutcome:
    """The auxiliary loss is multiplied by the number of micro-batches, to make up for a division by k that the main loss never had.

    Megatron-LM#5798, Automodel#3359. With main gradient m and auxiliary gradient a, both of sums over all terms: (m + k a) / N in place of
    (m + a) / N, or (m + s a) / N with a strength s. Inert at k = 1 and at coefficient 0.
    """
    setup, buffer = case.spec.setup, Buffer(training)
    assert isinstance(setup.subject, LanguageModel)
    scaled = dataclasses.replace(setup.subject, z_loss=setup.subject.z_loss * case.strength_or(case.accum))
    precision = Precision.named(setup.dtype, setup.device)

    def loss(micro_batch: Any) -> tuple[Tensor, int]:
        with precision.autocast():
            logits = training.model(micro_batch.inputs, micro_batch.masks)
            return token_loss(logits, micro_batch.targets, micro_batch.tokens, scaled)

    for member in case.members(dataclasses.replace(training, loss=loss), micro_batches):
        buffer.add(member)
    buffer.divide(buffer.terms)
    return finish(training, buffer)


def replay_randomness(case: Case, training: Training, micro_batches: list[Any]) -> StepOutcome:
    """Gradient caching embeds every micro-batch a second time without putting the random numbers back to where they were.

    GC-DPR#12, sentence-transformers#3862. The second pass has dropout masks of its own, so that the gradients of the embeddings belong to
    other embeddings than those that they are sent back from. Same loss, another gradient, at k = 1 too. Inert at dropout 0.
    """
    buffer = Buffer(training)
    assert isinstance(case.members, Cached)
    again = [_with_next_masks(micro_batch) for micro_batch in micro_batches]
    for member in case.members.second_pass(training, micro_batches, again):
        buffer.add(member)
    buffer.divide(buffer.terms)
    return finish(training, buffer)


def _with_next_masks(micro_batch: Any) -> Any:
    """The micro-batch with the masks that a stream would give it next."""
    if micro_batch.masks is None:
        return micro_batch
    seed = seeding.torch_seed_of("dropout", micro_batch.masks.seed, "second pass")
    return dataclasses.replace(micro_batch, masks=dataclasses.replace(micro_batch.masks, seed=seed))
