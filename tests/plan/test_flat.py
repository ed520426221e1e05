"""Dotted names: the same for configuration, MLflow and tables."""

from accum_sweeps.plan.flat import flatten
from tests.specs import make_spec


def test_a_specification_by_dotted_names() -> None:
    flat = flatten(make_spec(accum=4, seed=2).to_dict())
    assert flat["model"] == "tiny" and flat["model.kind"] == "decoder" and "model.name" not in flat
    assert (flat["accum"], flat["seed_data"], flat["control"], flat["deterministic"]) == (4, 2, "none", True)
    assert flat["optimizer.betas"] == "[0.9,0.95]" and flat["probe_steps"] == "[1]"


def test_nested_values_of_a_subject_keep_their_path() -> None:
    values = {"subject": {"kind": "python", "name": "mine", "args": {"depth": 3, "head": {"bias": None}, "empty": {}}}}
    assert flatten(values) == {"subject": "mine", "subject.kind": "python", "subject.args.depth": 3, "subject.args.head.bias": None}
