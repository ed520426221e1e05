"""The decoder: its size, its precision, what may see what, and initial weights that depend on seed and name alone."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

from accum_sweeps.plan.parts import Decoder as DecoderPart
from accum_sweeps.training.models.attention import attend, rope_rotation, rotate
from accum_sweeps.training.models.decoder import Decoder, build
from accum_sweeps.training.models.norms import make_norm
from tests.specs import make_spec

VARIANTS = [
    {"norm": "rmsnorm"},
    {"norm": "layernorm"},
    {"norm": "none"},
    {"norm": "rmsnorm", "qk_norm": True},
    {"norm": "rmsnorm", "positions": "none"},
]


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
    ],
)
def test_the_number_of_parameters(changes: dict[str, object], count: int) -> None:
    assert sum(p.numel() for p in build(part(**changes), 0).parameters()) == count


def test_the_tiny_model_with_rmsnorm_has_271k_parameters_and_no_biases() -> None:
    model = build(part(), 0)
    assert round(sum(p.numel() for p in model.parameters()) / 1000) == 271
    assert not [name for name, _ in model.named_parameters() if "bias" in name]
    assert model.embedding.weight is not model.head.weight


@pytest.mark.parametrize("changes", VARIANTS)
def test_no_position_sees_a_later_one(changes: dict[str, object]) -> None:
    model, tokens = build(part(**changes), 0).double(), ids()
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
    model = build(part(**changes), 0).to(dtype)
    model(ids())  # rotation and mask are made in float64 at the first use and kept
    with FloatsSeen() as seen:
        model(ids()).square().sum().backward()
    assert seen.dtypes == {dtype}


def test_written_out_attention_is_torchs_attention() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 2, 4, 16, 24, generator=generator, dtype=torch.float64)
    expected = scaled_dot_product_attention(q, k, v, is_causal=True)
    assert float((attend(q, k, v) - expected).norm() / expected.norm()) < 1e-15


def test_rotation_keeps_norms_and_makes_products_depend_on_distances_alone() -> None:
    cos, sin = rope_rotation(16, 24, torch.device("cpu"), torch.float64)
    q, k = torch.randn(2, 24, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rotated_q, rotated_k = (rotate(x.expand(1, 1, 16, 24), cos, sin)[0, 0] for x in (q, k))
    assert torch.allclose(rotated_q.norm(dim=1), q.norm().expand(16), rtol=1e-14)
    products = rotated_q @ rotated_k.T
    assert torch.allclose(products.diagonal(-3), products[3, 0].expand(13), rtol=1e-12)
    assert float(products[3, 0] - products[0, 0]) != 0.0


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
def test_norms_are_the_published_formulas(norm: str) -> None:
    x = torch.tensor([[1.0, 2.0, 3.0, 6.0]], dtype=torch.float64)
    centred = x - 3.0 if norm == "layernorm" else x
    expected = centred / (centred.square().mean() + 1e-5).sqrt()
    assert torch.allclose(make_norm(norm, 4).double()(x).detach(), expected, rtol=1e-12)


def weights(model: Decoder) -> dict[str, torch.Tensor]:
    return {name: p.detach() for name, p in model.named_parameters()}


def test_initial_weights_depend_on_the_seed_and_on_nothing_else() -> None:
    torch.manual_seed(1)
    first = weights(build(part(), 3))
    state = torch.random.get_rng_state()
    second = weights(build(part(), 3))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert not torch.equal(first["head.weight"], weights(build(part(), 4))["head.weight"])


def test_a_toggle_leaves_the_weights_that_both_models_have() -> None:
    plain, normed = weights(build(part(), 0)), weights(build(part(norm="layernorm", qk_norm=True), 0))
    assert all(torch.equal(plain[name], normed[name]) for name in plain)


def test_initial_scales() -> None:
    model = weights(build(part(), 0))
    scales = {"embedding": 96**-0.5, "blocks.0.attention.query_key_value": 96**-0.5, "head": 96**-0.5}
    scales |= {"blocks.1.attention.output": 96**-0.5 / 2, "blocks.1.feed_forward.output": 256**-0.5 / 2}
    for name, scale in scales.items():
        assert float(model[f"{name}.weight"].std()) == pytest.approx(scale, rel=0.03), name
    assert float(model["norm.weight"].min()) == float(model["norm.weight"].max()) == 1.0
