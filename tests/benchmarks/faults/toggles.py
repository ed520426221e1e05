"""What a clean case may have that others have not: of the network, the loss, the data, the optimizer and the precision.

Each toggle is right code; awkward ones are among them.
"""

from typing import Any

ALL: dict[str, dict[str, Any]] = {
    "plain": {},
    "constant_rate": {"optimizer.schedule": "constant", "optimizer.warmup_steps": 0},
    "no_rate": {"optimizer.lr": 0.0},
    "no_decay": {"optimizer.weight_decay": 0.0},
    "clipped_hard": {"optimizer.max_norm": 0.01},
    "unclipped": {"optimizer.max_norm": None},
    "moving_average": {"ema": 0.9},
    "fp64": {"dtype": "fp64"},
    "fp16": {"dtype": "fp16"},
    "amp_fp16": {"dtype": "amp_fp16"},
    "amp_fp16_huge_scale": {"dtype": "amp_fp16", "loss_scale": 2.0**20},
    "amp_fp16_tiny_scale": {"dtype": "amp_fp16", "loss_scale": 2.0**-10},
    "bf16_wide_buffer": {"dtype": "bf16", "accumulator": "fp32"},
    "fp64_buffer": {"accumulator": "fp64"},
    "one_row": {"rows": 1},
    "uneven_rows": {"rows": 3},
    "one_micro_batch": {"k": 1},
}
# A model's toggles and the loss's and the data's do not shut each other out; of one kind there is one at a time.
LM: dict[str, dict[str, Any]] = {
    **{f"norm_{norm}": {"model.norm": norm} for norm in ("layernorm", "layernorm_gain", "layernorm_plain", "groupnorm", "none")},
    "batchnorm": {"model.norm": "batchnorm"},
    "qk_norm": {"model.qk_norm": True},
    "positions_learned": {"model.positions": "learned"},
    "positions_none": {"model.positions": "none"},
    "gelu": {"model.ffn": "gelu"},
    "biases": {"model.attention_bias": True},
    "zero_gradient": {"model.attention_bias": True, "model.positions": "none"},
    "tied": {"model.tied": True},
    "frozen": {"model.frozen": ["embedding"]},
    "truncated": {"model.init": "truncated"},
    "dropout": {"model.dropout": 0.2},
    "dropout_stream": {"model.dropout": 0.2, "model.dropout_masks": "stream"},
    "two_layers": {"model.layers": 2},
    "smoothing": {"subject.label_smoothing": 0.1},
    "z_loss": {"subject.z_loss": 0.1},
    "sample_mean": {"subject.mean": "sample"},
    "micro_batch_mean_equal": {"subject.mean": "micro_batch", "data.lengths": "fixed", "shortened": 0},  # a short window is unequal
    "fixed_lengths": {"data.lengths": "fixed"},
    "documents": {"data.lengths": "documents"},
    "geometric": {"data.lengths": "geometric"},
    "epochs_dropped": {"data.epoch_rows": 300},
    "short_windows": {"data.last_window": "short", "shortened": 1},
    "two_ranks": {"ranks": 2},
    "bf16_many_rows": {"dtype": "bf16", "rows": 32},
}
MLP: dict[str, dict[str, Any]] = {
    "empty": {"args": {"empty": True}},
    "empty_one_row": {"args": {"empty": True}, "rows": 1},
    "unused": {"args": {"unused": True}},
    "island": {"args": {"island": True}},
    "zero_gradient": {"args": {"zero": True}},
    "two_ranks": {"ranks": 2},
    "bf16_many_rows": {"dtype": "bf16", "rows": 64},
}
TAGGER: dict[str, dict[str, Any]] = {
    # torch's SGD takes sparse gradients, without weight decay; its other optimizers do not.
    "sparse": {"args": {"sparse": True}, "optimizer": "sgd", "optimizer.weight_decay": 0.0},
    "tied": {"args": {"tied": True}},
    "few_words": {"args": {"few": True}},
    "empty": {"args": {"empty": True}},
    "empty_one_row": {"args": {"empty": True}, "rows": 1},
    "two_ranks": {"ranks": 2},
    "bf16_many_rows": {"dtype": "bf16", "rows": 64},
}
CLIP: dict[str, dict[str, Any]] = {
    "dropout": {"model.dropout": 0.2},
    "padding": {"subject.padding": "micro_batch"},
    "frozen": {"model.frozen": ["*logit_scale"]},
    "epochs_dropped": {"data.epoch_rows": 300},
    "short_windows": {"data.last_window": "short", "shortened": 1},
}
TOGGLES = {"lm": ALL | LM, "mlp": ALL | MLP, "tagger": ALL | TAGGER, "clip_cached": ALL | CLIP, "clip_plain": ALL | CLIP}
DEPENDENCE = {"batchnorm": "batch_statistics", "dropout_stream": "dropout_stream"}


def clash(first: str, second: str, subject: str) -> bool:
    """Whether the two set one setting differently."""
    one, other = TOGGLES[subject][first], TOGGLES[subject][second]
    return any(key in other and other[key] != value for key, value in one.items())
