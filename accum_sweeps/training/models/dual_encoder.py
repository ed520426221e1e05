"""The dual encoder: transformers' CLIPModel made from a configuration, with an attention that keeps the precision of its inputs.

Shapes: R pairs, S pixels of an image's side, T tokens, H heads, C width of a head, P width of the common embedding.
transformers' own attention computes its softmax in float32 whatever the dtype; this one stays in the dtype that it is given.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize
from transformers import AttentionInterface, CLIPConfig, CLIPModel

from accum_sweeps.plan.errors import UserError
from accum_sweeps.plan.parts import DualEncoder
from accum_sweeps.training import seeding
from accum_sweeps.training.data.captions import PADDING_ID, end_id, start_id
from accum_sweeps.training.models.dropout import SampleMasks
from accum_sweeps.training.models.frozen import freeze

ATTENTION = "accum_sweeps"
LOGIT_SCALE = 2.6592  # log of what cosine similarities are multiplied by, at first: 1 / 0.07
FFN_FACTOR = 4
EMBEDDING_STD = 0.02


def make(part: DualEncoder) -> CLIPModel:
    """The network as ``part`` says, on torch's default device; its weights are those that transformers draws."""
    AttentionInterface.register(ATTENTION, _attention)
    text = _tower(part.text_width, part.text_layers, part.text_heads, part)
    text |= {"vocab_size": part.vocabulary, "max_position_embeddings": part.text_length, "pad_token_id": PADDING_ID}
    text |= {"bos_token_id": start_id(part.vocabulary), "eos_token_id": end_id(part.vocabulary)}
    vision = _tower(part.vision_width, part.vision_layers, part.vision_heads, part)
    vision |= {"image_size": part.image_size, "patch_size": part.patch}
    config = CLIPConfig(
        text_config=text,
        vision_config=vision,
        projection_dim=part.projection,
        logit_scale_init_value=LOGIT_SCALE,
    )
    config._attn_implementation = ATTENTION
    model = CLIPModel(config)
    for name, module in model.named_modules():
        module.place = name  # by which dropout masks are told apart
    return model


def _tower(width: int, layers: int, heads: int, part: DualEncoder) -> dict[str, Any]:
    sizes = {"hidden_size": width, "intermediate_size": FFN_FACTOR * width, "num_hidden_layers": layers, "num_attention_heads": heads}
    return sizes | {"projection_dim": part.projection, "attention_dropout": part.dropout}


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    scaling: float,
    dropout: float = 0.0,
    is_causal: bool = False,
    masks: SampleMasks | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Softmax attention, (R, H, T, C) three times -> (R, T, H, C), as transformers calls it; dropout on the attention weights."""
    scores = (query * scaling) @ key.transpose(-1, -2)
    tokens = scores.shape[-1]
    if is_causal:
        scores = scores.masked_fill(torch.ones(tokens, tokens, dtype=torch.bool, device=scores.device).triu(1), -torch.inf)
    weights = scores.softmax(dim=-1)
    if dropout and masks is not None:
        # Drawn for the longest caption and cut, so that padding does not decide about a mask.
        longest = getattr(module.config, "max_position_embeddings", tokens)
        kept = masks.kept(1 - dropout, module.place, weights.new_empty(*weights.shape[:2], longest, longest))
        weights = weights * kept[:, :, :tokens, :tokens]
    return (weights @ value).transpose(1, 2), None


def encode(model: CLIPModel, images: Tensor, ids: Tensor, masks: SampleMasks | None) -> tuple[Tensor, Tensor]:
    """(embeddings of the images, of the captions), each (R, P), of any length: images (R, 3, S, S), ids (R, T).

    A caption's is taken at its end, the first highest id; what comes after it is padding, which nothing before it can see. ``masks``
    are those of the dropout; None = no dropout.
    """
    seen = model.get_image_features(images, masks=masks).pooler_output
    read = model.get_text_features(ids, masks=masks).pooler_output
    return seen, read


def contrast(logit_scale: Tensor, images: Tensor, captions: Tensor) -> tuple[Tensor, int]:
    """(sum over the R pairs of the symmetric cross entropy in nats, R) from embeddings (R, P) (Radford et al. 2021, figure 3).

    For a pair: the mean of -log p(caption | image) among all R captions and -log p(image | caption) among all R images, where the
    logits are exp(``logit_scale``) times the cosine similarities. Computed in float32, or float64 where the embeddings are.
    """
    similarities = normalize(images, dim=-1) @ normalize(captions, dim=-1).T
    logits = logit_scale.exp() * similarities.to(torch.promote_types(similarities.dtype, torch.float32))
    own = torch.arange(len(logits), device=logits.device)
    summed = cross_entropy(logits, own, reduction="sum") + cross_entropy(logits.T, own, reduction="sum")
    return summed / 2, len(logits)


def build(part: DualEncoder, seed: int) -> CLIPModel:
    """The dual encoder with weights in float32 drawn from the stream ``init``: a function of seed, tensor name and shape alone.

    All matrices and embeddings are normal with the standard deviations of CLIP's own initialization, gains 1, biases 0.
    """
    model = _empty(part)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            scale = _scale(name, part)
            if scale is None:
                parameter.fill_(LOGIT_SCALE if name == "logit_scale" else 0.0 if name.endswith("bias") else 1.0)
                continue
            drawn = seeding.generator("init", seed, name).standard_normal(tuple(parameter.shape), np.float32)
            parameter.copy_(torch.from_numpy(drawn).mul_(scale))
    freeze(model, part.frozen)
    return model


def load(part: DualEncoder, weights: Mapping[str, Tensor]) -> CLIPModel:
    """The dual encoder with ``weights`` by name, in float32. Raises UserError where names or shapes are not those of the model."""
    model = _empty(part)
    wanted = dict(model.named_parameters())
    given = {name: tensor for name, tensor in weights.items() if not name.endswith("position_ids")}  # in old files; no weights
    if unlike := sorted(wanted.keys() ^ given.keys()):
        side = "lacks" if unlike[0] in wanted else "holds"
        raise UserError(f"model.weights={part.weights}: {side} {unlike[0]!r}; {len(unlike)} names differ from the model's")
    with torch.no_grad():
        for name, parameter in wanted.items():
            if given[name].shape != parameter.shape:
                shapes = f"{tuple(given[name].shape)}, the model's is {tuple(parameter.shape)}"
                raise UserError(f"model.weights={part.weights}: {name} has the shape {shapes}\n  Give the model the sizes of the weights.")
            parameter.copy_(given[name])
    freeze(model, part.frozen)
    return model


def _empty(part: DualEncoder) -> CLIPModel:
    """The network with weights that are still to be set."""
    with torch.device("meta"):
        model = make(part)
    model.to_empty(device="cpu")
    for buffer in model.buffers():  # nothing but the numbers of positions
        buffer.copy_(torch.arange(buffer.shape[-1]).expand_as(buffer))
    return model


def _scale(name: str, part: DualEncoder) -> float | None:
    """The standard deviation of a drawn tensor, as in the code of CLIP; None for a tensor that is not drawn."""
    layers, width = (part.text_layers, part.text_width) if name.startswith("text_") else (part.vision_layers, part.vision_width)
    into_residual = (width * 2 * layers) ** -0.5
    scales = {
        "embedding.weight": EMBEDDING_STD,
        "class_embedding": width**-0.5,
        "q_proj.weight": into_residual,
        "k_proj.weight": into_residual,
        "v_proj.weight": into_residual,
        "out_proj.weight": width**-0.5,
        "fc1.weight": (2 * width) ** -0.5,
        "fc2.weight": into_residual,
        "projection.weight": width**-0.5,
    }
    return next((scale for ending, scale in scales.items() if name.endswith(ending)), None)
