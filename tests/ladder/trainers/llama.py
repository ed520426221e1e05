"""A tiny Llama on ragged rows, trained by transformers' own Trainer."""

import tempfile
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
from transformers.utils import logging

from tests.ladder.trainers.hooks import IGNORED, ROWS

VOCABULARY, LENGTH = 40, 10
logging.set_verbosity_error()


class LlamaByTrainer:
    """The ten lines of ``train`` are those of the README."""

    model_class = LlamaForCausalLM

    def build(self, config: Any, seeds: Any) -> torch.nn.Module:
        sizes: dict[str, Any] = {
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
        }
        return self.model_class(LlamaConfig(vocab_size=VOCABULARY, max_position_embeddings=LENGTH, **sizes))

    def batch(self, step: int, seed: int) -> Any:
        draw = torch.Generator().manual_seed(1000 * seed + step)
        tokens = torch.randint(VOCABULARY, (ROWS, LENGTH), generator=draw)
        mask = torch.arange(LENGTH) < torch.randint(3, LENGTH + 1, (ROWS, 1), generator=draw)
        return {"input_ids": tokens, "attention_mask": mask.long(), "labels": tokens.where(mask, IGNORED)}

    def loss(self, model: Any, samples: Any) -> tuple[Tensor, Tensor]:
        logits = model(input_ids=samples["input_ids"], attention_mask=samples["attention_mask"]).logits[:, :-1]
        targets = samples["labels"][:, 1:]
        total = cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum", ignore_index=IGNORED)
        return total, (targets != IGNORED).sum()

    def train(self, model: Any, optimizer: Any, scheduler: Any, micro_batches: list[Any], accum: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            settings = TrainingArguments(
                folder,
                per_device_train_batch_size=1,  # an item of the data set is a whole micro-batch here
                gradient_accumulation_steps=accum,
                num_train_epochs=1,
                train_sampling_strategy="sequential",
                use_cpu=True,
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
                **self.settings(),
            )
            pair, first = (optimizer, scheduler), lambda items: items[0]
            Trainer(model, settings, data_collator=first, train_dataset=micro_batches, optimizers=pair).train()

    def settings(self) -> dict[str, Any]:
        return {}


class _IgnoringCount(LlamaForCausalLM):
    """Accepts the loss arguments, and leaves the token count that is among them alone."""

    def forward(self, input_ids: Any = None, attention_mask: Any = None, labels: Any = None, **kwargs: Any) -> Any:
        kwargs.pop("num_items_in_batch", None)
        return super().forward(input_ids=input_ids, attention_mask=attention_mask, labels=labels, **kwargs)


class IgnoringCount(LlamaByTrainer):
    model_class = _IgnoringCount


class Unclipped(LlamaByTrainer):
    def settings(self) -> dict[str, Any]:
        return {"max_grad_norm": 0.0}


class IgnoringCountByAdamW(IgnoringCount):
    """AdamW hides the length of a gradient from the weights, not from who looks at the gradient."""

    def optimizer(self, model: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=1e-3)


class _NotAccepting(LlamaForCausalLM):
    accepts_loss_kwargs = False


class NotAccepting(LlamaByTrainer):
    """A model that says that it takes no token count: the Trainer takes the mean of its means, right only for equal rows."""

    model_class = _NotAccepting
