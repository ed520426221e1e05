"""The dual encoder: transformers' CLIPModel made from a configuration, with an attention that keeps the precision of its inputs.

Shapes: R pairs, S pixels of an image's side, T tokens, H heads, C width of a head, P width of the common embedding.
transformers' own attention computes its softmax in float32 whatever the dtype; this one computes in the dtype it is given, always with the same kernels.
"""

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize
from transformers import AttentionInterface, CLIPConfig, CLIPModel

from accum_sweeps.plan.parts import DualEncoder
from accum_sweeps.training import seeding
from accum_sweeps.training.models.decoder import causal_bias
from accum_sweeps.training.models.dropout import SampleMasks

ATTENTION = "accum_sweeps"
TEMPERATURE = 0.07  # the logits are cosine similarities divided by it, at first
PADDING_ID = 0  # words begin at 1, behind it; the start and the end of a caption have the two highest ids
FFN_FACTOR = 4
EMBEDDING_STD = 0.02


def make(part: DualEncoder) -> CLIPModel:
    """The network as ``part`` says, on the current default device; weights are to be set."""
    AttentionInterface.register(ATTENTION, _attention)
    common = {"projection_dim": part.projection, "attention_dropout": part.dropout}
    text = {
        "vocab_size": part.vocabulary,
        "hidden_size": part.text_width,
        "intermediate_size": FFN_FACTOR * part.text_width,
        "num_hidden_layers": part.text_layers,
        "num_attention_heads": part.text_heads,
        "max_position_embeddings": part.text_length,
        "pad_token_id": PADDING_ID,
        "bos_token_id": start_id(part.vocabulary),
        "eos_token_id": end_id(part.vocabulary),
    }
    vision = {
        "image_size": part.image_size,
        "patch_size": part.patch,
        "hidden_size": part.vision_width,
        "intermediate_size": FFN_FACTOR * part.vision_width,
        "num_hidden_layers": part.vision_layers,
        "num_attention_heads": part.vision_heads,
    }
    config = CLIPConfig(text_config=text | common, vision_config=vision | common, projection_dim=part.projection)
    config._attn_implementation = ATTENTION
    model = CLIPModel(config)
    for name, module in model.named_modules():
        module.place = name  # type: ignore[assignment]
    return model
