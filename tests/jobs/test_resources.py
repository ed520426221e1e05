"""Resources are read with errors that name key, value and what is allowed."""

import re
from typing import Any

import pytest

from accum_sweeps.jobs.resources import read_resources
from accum_sweeps.plan.errors import ConfigError


def test_an_empty_launcher_has_safe_defaults() -> None:
    resources = read_resources({})
    assert (resources.kind, resources.slots, resources.max_attempts, resources.run_limit_s) == ("local", "auto", 2, None)
    assert resources.expiry_s >= 3 * resources.heartbeat_s


@pytest.mark.parametrize(("slots", "read"), [("auto", "auto"), (3, 3), ([0, 1], ("0", "1")), (["GPU-ab", 2], ("GPU-ab", "2"))])
def test_slots_are_auto_a_number_or_ids(slots: Any, read: Any) -> None:
    assert read_resources({"slots": slots}).slots == read


def test_the_run_limit_is_given_in_minutes() -> None:
    assert read_resources({"run_limit_min": 1.5}).run_limit_s == 90.0


@pytest.mark.parametrize(
    ("launcher", "words"),
    [
        ({"slots": 0}, "launcher.slots=0: must be auto, a number of at least 1"),
        ({"slots": "two"}, "launcher.slots='two'"),
        ({"slots": []}, "launcher.slots=[]"),
        ({"slots": [0, 0]}, "launcher.slots=[0, 0]: names an id twice"),
        ({"slots": [-1]}, "launcher.slots=[-1]"),
        ({"slots": True}, "launcher.slots=True"),
        ({"kind": "locl"}, "did you mean local?"),
        ({"max_attempts": 0}, "launcher.max_attempts=0: must be at least 1"),
        ({"run_limit_min": 0}, "launcher.run_limit_min=0.0: must be above 0"),
        ({"max_atempts": 2}, "did you mean max_attempts?"),
        ({"heartbeat_s": 5, "expiry_s": 14.9}, "launcher.expiry_s=14.9: must be at least three times launcher.heartbeat_s=5"),
    ],
)
def test_a_mistake_is_named(launcher: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        read_resources(launcher)
