import torch
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


class MyTraining:
    def build(self, config, seeds):
        return LlamaForCausalLM(
            LlamaConfig(vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2)
        )

    def batch(self, step, seed):  # eight rows of different lengths, padded
        generator = torch.Generator().manual_seed(1000 * seed + step)
        tokens = torch.randint(64, (8, 12), generator=generator)
        is_there = torch.arange(12) < torch.randint(4, 13, (8, 1), generator=generator)
        return {"input_ids": tokens, "attention_mask": is_there.long(), "labels": tokens.where(is_there, -100)}

    def loss(self, model, samples):  # what a step should minimize: sum, and number of terms
        logits = model(input_ids=samples["input_ids"], attention_mask=samples["attention_mask"]).logits[:, :-1]
        targets = samples["labels"][:, 1:]
        return cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum"), (targets != -100).sum()

    def train(self, model, optimizer, scheduler, micro_batches, accum):  # the trainer under test
        settings = TrainingArguments(
            per_device_train_batch_size=1,  # an item of the data set is a whole micro-batch here
            gradient_accumulation_steps=accum,
            num_train_epochs=1,
            train_sampling_strategy="sequential",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        data = {"train_dataset": micro_batches, "data_collator": lambda items: items[0]}
        Trainer(model, settings, optimizers=(optimizer, scheduler), **data).train()
