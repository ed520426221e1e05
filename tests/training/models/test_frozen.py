"""Frozen parameters: what a pattern means, and which patterns are refused while a sweep is planned."""

import subprocess
import sys

import pytest

from accum_sweeps.plan.errors import ConfigError
from accum_sweeps.plan.parts import NoModel
from accum_sweeps.training.models.decoder import build
from accum_sweeps.training.models.frozen import check_frozen, without_weights
from tests.specs import BASE, make_spec

TIED = {"model.tied": True, "model.positions": "learned", "model.layers": 1}


def trained(**changes: object) -> list[str]:
    setup = make_spec(**changes).setup
    model = build(setup.model, 0, setup.data.seq_len)  # type: ignore[arg-type, union-attr]
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]


def test_a_pattern_freezes_what_it_matches_and_nothing_else() -> None:
    assert trained(**TIED) == [
        "embedding.weight",
        "position.weight",
        "blocks.0.attention_norm.weight",
        "blocks.0.attention.query_key_value.weight",
        "blocks.0.attention.output.weight",
        "blocks.0.feed_forward_norm.weight",
        "blocks.0.feed_forward.gate_up.weight",
        "blocks.0.feed_forward.output.weight",
        "norm.weight",
    ]
    assert trained(**TIED, **{"model.frozen": ["blocks.0.*", "position.weight"]}) == ["embedding.weight", "norm.weight"]
    assert len(trained(**TIED, **{"model.frozen": ["weight"]})) == 9


def test_a_pattern_without_a_parameter_is_refused_with_the_nearest_names() -> None:
    words = r"model\.frozen=\['norm\.weight', 'block\.0\.norm\*'\]: no parameter is called 'block\.0\.norm\*'; nearest: blocks\.0\."
    with pytest.raises(ConfigError, match=words):
        check_frozen(make_spec(**{"model.frozen": ["norm.weight", "block.0.norm*"]}).setup)
    check_frozen(make_spec(**{"model.frozen": ["norm.weight", "blocks.0.*"]}).setup)


def test_freezing_everything_is_refused() -> None:
    with pytest.raises(ConfigError, match="means every parameter: nothing would be left to train"):
        check_frozen(make_spec(**{"model.frozen": ["blocks.*", "embedding*", "norm.*", "head.*"]}).setup)


def test_freezing_every_hidden_matrix_is_refused_for_muon() -> None:
    muon = {"kind": "muon", "name": "muon", "lr": 0.02, "momentum": 0.95, "nesterov": True, "ns_steps": 5, "adamw_lr": 1e-3}
    muon |= {key: BASE["optimizer"][key] for key in ("betas", "eps", "weight_decay", "max_norm", "schedule", "warmup_steps")}
    with pytest.raises(ConfigError, match="means every hidden matrix: nothing would be left for optimizer=muon"):
        check_frozen(make_spec(optimizer=muon, **{"model.frozen": ["blocks.*"]}).setup)
    check_frozen(make_spec(optimizer=muon, **{"model.frozen": ["blocks.0.*"]}).setup)
    check_frozen(make_spec(**{"model.frozen": ["blocks.*"]}).setup)


def test_the_names_are_asked_once_for_a_model_and_never_without_patterns(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def answer(command: list[str], **options: object) -> object:
        asked.append(command)
        return subprocess.CompletedProcess(command, 0, stdout='[["norm.weight", "head.weight"], []]')

    monkeypatch.setattr(subprocess, "run", answer)
    for patterns in ([], ["norm.weight"], ["head.*"]):
        for lr in (0.1, 0.2):
            check_frozen(make_spec(**{"model.layers": 77, "model.frozen": patterns, "optimizer.lr": lr}).setup)
    assert len(asked) == 1


def test_planning_without_patterns_imports_no_torch() -> None:
    program = "import sys, accum_sweeps.planning; from tests.specs import BASE, make_spec\n"
    program += (
        "from accum_sweeps.training.models.frozen import check_frozen; check_frozen(make_spec().setup); print('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "False\n"


def test_a_model_without_weights_has_the_shapes_of_the_one_with_weights() -> None:
    part = make_spec(**TIED).setup.model
    shapes = [{name: tuple(p.shape) for name, p in m.named_parameters()} for m in (without_weights(part, 64), build(part, 0, 64))]  # type: ignore[arg-type]
    assert shapes[0] == shapes[1] and all(p.is_meta for p in without_weights(part, 64).parameters())
    with pytest.raises(TypeError, match="'none' is the subject's own"):
        without_weights(NoModel(name="none"))
