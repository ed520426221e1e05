"""The dual encoder: transformers' CLIP in size and function, drawn from the seed, one precision throughout."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import CLIPModel

from accum_sweeps.plan.errors import UserError
from accum_sweeps.plan.parts import DualEncoder
from accum_sweeps.training.models import dual_encoder, weight_files
from accum_sweeps.training.models.dropout import SampleMasks
from tests.contrastive import encoder, preset

END = 255


def inputs(rows: int = 3, side: int = 16) -> tuple[Tensor, Tensor]:
    """Images and captions of 4 to 6 tokens, padded to 6."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1, 20, (rows, 6), generator=generator)
    ids[:, 0] = END - 1
    for row in range(rows):
        ids[row, 3 + row % 3] = END
        ids[row, 4 + row % 3 :] = 0
    return torch.randn(rows, 3, side, side, generator=generator), ids


def embedded(model: CLIPModel, images: Tensor, ids: Tensor, masks: SampleMasks | None = None) -> Tensor:
    return torch.cat(dual_encoder.encode(model, images, ids, masks), dim=1)


def test_vit_b32_has_151_277_313_parameters() -> None:
    with torch.device("meta"):
        model = dual_encoder.make(DualEncoder(name="clip_vit_b32", **preset("model", "clip_vit_b32")))
    assert sum(p.numel() for p in model.parameters()) == 151_277_313


def test_weights_are_a_function_of_seed_name_and_shape_alone() -> None:
    torch.manual_seed(1)
    first = dual_encoder.build(encoder(), 3).state_dict()
    torch.manual_seed(2)
    again, deeper, other = (
        dual_encoder.build(part, seed).state_dict() for part, seed in ((encoder(), 3), (encoder(patch=8), 3), (encoder(), 4))
    )
    assert all(torch.equal(first[name], again[name]) for name in first)
    shared = [name for name in first if deeper[name].shape == first[name].shape]
    assert len(shared) == len(first) - 2 and all(torch.equal(first[name], deeper[name]) for name in shared)
    assert not torch.equal(first["text_projection.weight"], other["text_projection.weight"])


def test_weights_have_the_scales_that_transformers_gives_them() -> None:
    part = encoder(vision_width=96, vision_layers=1, text_layers=3)
    torch.manual_seed(0)
    theirs = dual_encoder.make(part).state_dict()
    ours = dual_encoder.build(part, 0).state_dict()
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        if tensor.numel() == 1 or tensor.std() == 0:
            assert torch.equal(ours[name], tensor), name
        else:
            # The standard deviation of n normal numbers is off by 1 / sqrt(2 n) of it; five times that, for both.
            assert float(ours[name].std() / tensor.std()) == pytest.approx(1, abs=5 * tensor.numel() ** -0.5), name


def test_the_logit_scale_begins_at_the_inverse_of_a_temperature_of_0_07() -> None:
    assert float(dual_encoder.build(encoder(), 0).logit_scale.detach().exp()) == pytest.approx(1 / 0.07, rel=1e-4)


def test_it_computes_what_transformers_own_attention_computes() -> None:
    model = dual_encoder.build(encoder(), 0).requires_grad_(False)
    images, ids = inputs()
    found = embedded(model, images, ids)
    for tower in (model.text_model, model.vision_model):
        tower.config._attn_implementation = "eager"
    theirs = torch.cat([model.get_image_features(images).pooler_output, model.get_text_features(ids).pooler_output], dim=1)
    assert float((found - theirs).norm() / theirs.norm()) < 1e-6  # float32 roundoff is 6e-8; measured 1e-7


class Dtypes(TorchDispatchMode):
    """Collects the floating-point dtypes of everything that any operation gives, backward passes included."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else [result]:
            if isinstance(value, Tensor) and value.is_floating_point():
                self.found.add(value.dtype)
        return result


def test_in_float64_everything_is_float64() -> None:
    model = dual_encoder.build(encoder(), 0).double().train()
    images, ids = inputs()
    with Dtypes() as dtypes:
        loss, _ = dual_encoder.contrast(model.logit_scale, *dual_encoder.encode(model, images.double(), ids, None))
        loss.backward()
    assert dtypes.found == {torch.float64}


def test_padding_does_not_change_an_embedding_nor_its_dropout() -> None:
    model = dual_encoder.build(encoder(dropout=0.3), 0).double().train().requires_grad_(False)
    images, ids = inputs()
    masks = SampleMasks(seed=0, step=1, rows=[0, 1, 2])
    short = embedded(model, images, ids, masks)
    long = embedded(model, images, torch.nn.functional.pad(ids, (0, 9)), masks)
    assert float((short - long).norm() / short.norm()) < 1e-14
    assert float((short - embedded(model, images, ids, SampleMasks(seed=0, step=2, rows=[0, 1, 2]))).norm() / short.norm()) > 1e-3


def test_dropout_is_on_the_attention_weights_while_training_only() -> None:
    model = dual_encoder.build(encoder(dropout=0.3), 0).requires_grad_(False)
    images, ids = inputs()
    masks = SampleMasks(seed=0, step=1, rows=[0, 1, 2])
    plain = embedded(model.eval(), images, ids, masks)
    assert torch.equal(plain, embedded(dual_encoder.build(encoder(), 0).requires_grad_(False), images, ids))
    assert not torch.equal(plain, embedded(model.train(), images, ids, masks))


def test_the_loss_is_the_mean_of_both_directions_summed_over_pairs() -> None:
    images, captions = torch.eye(2, dtype=torch.float64), torch.tensor([[1.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    found, terms = dual_encoder.contrast(torch.tensor(3.0, dtype=torch.float64).log(), images, captions)
    logits = 3 * torch.tensor([[1, 0.5**0.5], [0, 0.5**0.5]], dtype=torch.float64)
    expected = -(logits.log_softmax(0).diag() + logits.log_softmax(1).diag()).sum() / 2
    assert float(found) == pytest.approx(float(expected), rel=1e-14) and terms == 2


@pytest.mark.parametrize("form", ["folder", "safetensors", "torch"])
def test_saved_weights_come_back(tmp_path: Path, form: str) -> None:
    model = dual_encoder.build(encoder(), 5)
    path = {"folder": tmp_path, "safetensors": tmp_path / "model.safetensors", "torch": tmp_path / "w.pt"}[form]
    if form == "torch":
        torch.save(model.state_dict() | {"text_model.embeddings.position_ids": torch.arange(24)[None]}, path)
    else:
        model.save_pretrained(tmp_path)
    loaded = dual_encoder.load(encoder(), weight_files.read(path, weight_files.content_hash(path)))
    assert all(torch.equal(value, loaded.state_dict()[name]) for name, value in model.state_dict().items())
    assert torch.equal(embedded(loaded, *inputs()), embedded(model, *inputs()))


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (encoder(text_length=30), r"position_embedding.weight has the shape \(24, 48\), the model's is \(30, 48\)"),
        (encoder(text_layers=3), "lacks 'text_model.encoder.layers.2"),
        (encoder(text_layers=1), "holds 'text_model.encoder.layers.1"),
    ],
    ids=["shape", "missing", "too many"],
)
def test_weights_of_another_model_are_refused(part: DualEncoder, message: str) -> None:
    with pytest.raises(UserError, match=message):
        dual_encoder.load(part, dual_encoder.build(encoder(), 0).state_dict())


def test_a_pattern_freezes_parameters() -> None:
    model = dual_encoder.build(encoder(frozen=("vision_model.*", "logit_scale")), 0)
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    assert frozen == {name for name, _ in model.named_parameters() if name.startswith("vision_model.") or name == "logit_scale"}
