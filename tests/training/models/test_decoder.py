"""The decoder: its size, its precision, what may see what, and initial weights that depend on seed and name alone."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from accum_sweeps.plan.config import read_config
from accum_sweeps.plan.parts import Decoder as DecoderPart
from accum_sweeps.training.models.decoder import Gelu, build
from accum_sweeps.training.models.frozen import without_weights
from tests.specs import make_spec

VARIANTS: list[dict[str, object]] = [
    {"norm": "rmsnorm"},
    {"norm": "layernorm"},
    {"norm": "layernorm_gain"},
    {"norm": "layernorm_plain"},
    {"norm": "groupnorm"},
    {"norm": "none"},
    {"qk_norm": True},
    {"positions": "none"},
    {"positions": "learned", "attention_bias": True},
    {"ffn": "gelu", "tied": True},
]
SEQ_LEN = 16  # learned positions


def part(**changes: object) -> DecoderPart:
    made = make_spec(**{f"model.{key}": value for key, value in changes.items()}).setup.model
    assert isinstance(made, DecoderPart)
    return made


def ids(rows: int = 2, length: int = 16) -> torch.Tensor:
    return torch.randint(0, 256, (rows, length), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({"norm": "rmsnorm"}, 270_816),
        ({"norm": "layernorm"}, 270_816 + 5 * 96),
        ({"norm": "none"}, 270_816 - 5 * 96),
        ({"norm": "rmsnorm", "qk_norm": True}, 270_816 + 2 * 2 * 24),
        ({"norm": "rmsnorm", "positions": "none"}, 270_816),
        ({"norm": "rmsnorm", "layers": 1}, 270_816 - 110_784),
        ({"norm": "layernorm_gain"}, 270_816),
        ({"norm": "layernorm_plain"}, 270_816 - 5 * 96),
        ({"norm": "batchnorm"}, 270_816 + 5 * 96),
        ({"norm": "groupnorm"}, 270_816 + 5 * 96),
        ({"positions": "learned"}, 270_816 + SEQ_LEN * 96),
        ({"attention_bias": True}, 270_816 + 2 * (3 * 96 + 96)),
        ({"tied": True}, 270_816 - 256 * 96),
        ({"ffn": "gelu"}, 270_816 - 2 * 256 * 96),
    ],
)
def test_the_number_of_parameters(changes: dict[str, object], count: int) -> None:
    assert sum(p.numel() for p in build(part(**changes), 0, SEQ_LEN).parameters()) == count


def test_the_tiny_model_with_rmsnorm_has_271k_parameters_and_no_biases() -> None:
    model = build(part(), 0)
    assert round(sum(p.numel() for p in model.parameters()) / 1000) == 271
    assert not [name for name, _ in model.named_parameters() if "bias" in name]
    assert model.head is not None and model.embedding.weight is not model.head.weight


def test_tied_logits_are_products_with_the_embedding() -> None:
    model = build(part(tied=True, layers=1, norm="none"), 0).double().requires_grad_(False)
    seen: list[torch.Tensor] = []
    model.blocks[0].register_forward_hook(lambda module, given, result: seen.append(result))
    logits = model(ids())
    assert torch.allclose(logits, seen[0] @ model.embedding.weight.T, rtol=1e-12)
    assert not [name for name, _ in model.named_parameters() if "head" in name]


def test_tied_weights_stay_tied_in_another_dtype_and_after_loading() -> None:
    model, other = build(part(tied=True), 0).bfloat16(), build(part(tied=True), 1).bfloat16()
    other.load_state_dict(model.state_dict())
    assert torch.equal(model(ids()), other(ids()))


def test_learned_positions_are_told_apart_and_are_as_many_as_asked_for() -> None:
    model = build(part(positions="learned", layers=1), 0, SEQ_LEN).double().requires_grad_(False)
    same = torch.zeros(1, SEQ_LEN, dtype=torch.long)
    expected = model.embedding.weight[0] + model.position.weight[:4]  # type: ignore[union-attr]
    seen: list[torch.Tensor] = []
    model.blocks[0].register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    model(same[:, :4])
    assert torch.equal(seen[0][0], expected)
    with pytest.raises(ValueError, match="positions=learned needs the number of positions"):
        build(part(positions="learned"), 0)


def test_gelu_is_x_times_the_normal_distribution_function() -> None:
    layer = Gelu(3, 5).double().requires_grad_(False)
    x = torch.tensor([[[0.5, -1.0, 2.0]]], dtype=torch.float64)
    hidden = x @ layer.up.weight.T
    expected = (hidden * torch.special.ndtr(hidden)) @ layer.output.weight.T
    assert torch.allclose(layer(x), expected, rtol=1e-12)


PRESETS = {"open_lm_11m": 10_569_312, "open_lm_25m": 24_683_904, "open_lm_41m": 41_007_168, "open_lm_160m": 162_436_608}


@pytest.mark.parametrize("preset", PRESETS)
def test_open_lms_presets_have_its_sizes(preset: str) -> None:
    (spec,) = read_config([f"model={preset}"]).grid.expand()
    model = without_weights(spec.setup.model)
    assert sum(p.numel() for p in model.parameters()) == PRESETS[preset]
    assert not [name for name, _ in model.named_parameters() if preset == "open_lm_11m" and "bias" in name]


@pytest.mark.parametrize("changes", VARIANTS)
def test_no_position_sees_a_later_one(changes: dict[str, object]) -> None:
    model, tokens = build(part(**changes), 0, SEQ_LEN).double(), ids()
    changed = tokens.clone()
    changed[:, 10] = (changed[:, 10] + 1) % 256
    model.requires_grad_(False)
    difference = (model(changed) - model(tokens)).abs().amax(dim=(0, 2))
    assert float(difference[:10].max()) == 0.0
    assert float(difference[10:].min()) > 1e-6


def test_with_rope_the_order_of_earlier_tokens_counts_and_without_positions_it_does_not() -> None:
    tokens = ids()
    swapped = tokens[:, [1, 0, *range(2, 16)]]
    for positions, counts in (("rope", True), ("none", False)):
        # One layer: with more of them the causal mask alone tells positions apart.
        model = build(part(positions=positions, layers=1), 0).double().requires_grad_(False)
        difference = float((model(swapped)[:, 5:] - model(tokens)[:, 5:]).abs().max())
        assert (difference > 1e-6) == counts and (counts or difference < 1e-12)


class FloatsSeen(TorchDispatchMode):
    """Collects the floating-point dtypes of everything that is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: set[torch.dtype] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                self.dtypes.add(value.dtype)
        return result


@pytest.mark.parametrize("changes", VARIANTS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_no_operation_has_a_precision_of_its_own(changes: dict[str, object], dtype: torch.dtype) -> None:
    model = build(part(**changes), 0, SEQ_LEN).to(dtype)
    model(ids())  # rotation and mask are made in float64 at the first use and kept
    with FloatsSeen() as seen:
        model(ids()).square().sum().backward()
    assert seen.dtypes == {dtype}
