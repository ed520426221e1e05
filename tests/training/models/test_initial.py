"""Initial weights: functions of seed and name alone, at the published scales."""

import numpy as np
import pytest
import torch

from accum_sweeps.training.models.decoder import Decoder, build
from tests.training.models.test_decoder import part


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


TOGGLES: list[dict[str, object]] = [
    {"norm": "layernorm", "qk_norm": True},
    {"positions": "learned", "attention_bias": True, "norm": "batchnorm"},
    {"tied": True, "dropout": 0.1, "frozen": ["norm.*"]},
]


@pytest.mark.parametrize("changes", TOGGLES)
def test_a_toggle_leaves_the_weights_that_both_models_have(changes: dict[str, object]) -> None:
    plain, changed = weights(build(part(), 0)), weights(build(part(**changes), 0, 64))
    assert all(torch.equal(plain[name], changed[name]) for name in plain.keys() & changed.keys())
    assert len(plain.keys() & changed.keys()) >= len(plain) - 1


def test_biases_and_running_statistics_start_at_their_neutral_values() -> None:
    model = build(part(norm="batchnorm", attention_bias=True), 0)
    state = model.state_dict()
    assert all(bool((value == 0).all()) for name, value in state.items() if name.endswith(("bias", "running_mean", "num_batches_tracked")))
    assert all(bool((value == 1).all()) for name, value in state.items() if name.endswith(("norm.weight", "running_var")))
    assert sum(name.endswith("running_var") for name in state) == 5


def test_scales_of_the_normal_distribution() -> None:
    model = weights(build(part(), 0))
    scales = {"embedding": 96**-0.5, "blocks.0.attention.query_key_value": 96**-0.5, "head": 96**-0.5}
    scales |= {"blocks.1.attention.output": 96**-0.5 / 2, "blocks.1.feed_forward.output": 256**-0.5 / 2}
    for name, scale in scales.items():
        assert float(model[f"{name}.weight"].std()) == pytest.approx(scale, rel=0.03), name
    assert float(model["norm.weight"].min()) == float(model["norm.weight"].max()) == 1.0


def test_scales_of_the_cut_distribution_fall_with_the_depth_of_the_block() -> None:
    model = weights(build(part(init="truncated", layers=3, positions="learned"), 0, 256))
    scales = {"embedding": 96**-0.5, "position": 96**-0.5, "head": 96**-0.5, "blocks.2.feed_forward.gate_up": 96**-0.5}
    for number in range(3):
        scales[f"blocks.{number}.attention.output"] = (96 * 2 * (number + 1)) ** -0.5
        scales[f"blocks.{number}.feed_forward.output"] = (256 * 2 * (number + 1)) ** -0.5
    # Cut at 3, a standard normal keeps the variance 1 - 6 phi(3) / (2 Phi(3) - 1).
    kept = np.sqrt(1 - 6 * np.exp(-4.5) / np.sqrt(2 * np.pi) / 0.9973002)
    for name, scale in scales.items():
        values = model[f"{name}.weight"]
        assert float(values.std()) == pytest.approx(scale * kept, rel=0.03), name
        assert 2.8 * scale < float(values.abs().max()) <= 3 * scale * (1 + 1e-6), name
