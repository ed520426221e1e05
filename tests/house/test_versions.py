"""What is declared, what is pinned and what is installed agree."""

import importlib.metadata
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.house.checkout import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
OWN = "accum_sweeps[audit,clip,server]"  # the tests need those extras as well
LISTED = [*PROJECT["dependencies"], *EXTRAS["audit"], *EXTRAS["clip"], *EXTRAS["server"], *EXTRAS["dev"]]
DECLARED = [Requirement(text) for text in dict.fromkeys(LISTED) if text != OWN]
COMPARED = [Requirement(text) for text in EXTRAS["bench"]]  # what only timings compare with: tests run without it


def pin_lines() -> list[str]:
    lines = (line.strip() for line in (ROOT / "constraints.txt").read_text().splitlines())
    return [line for line in lines if line and not line.startswith("#")]


PINS = {canonicalize_name(name): Version(version) for name, version in (line.split("==") for line in pin_lines())}


def test_torch_is_pinned_first() -> None:
    assert pin_lines()[0] == "torch==2.13.0"


def test_every_pin_is_a_name_and_one_public_version() -> None:
    assert len(PINS) == len(pin_lines())
    assert [name for name, version in PINS.items() if version.local is not None] == []


@pytest.mark.parametrize("requirement", [*DECLARED, *COMPARED], ids=lambda r: r.name)
def test_the_pinned_version_is_within_the_declared_range(requirement: Requirement) -> None:
    assert PINS[canonicalize_name(requirement.name)] in requirement.specifier


@pytest.mark.parametrize("requirement", DECLARED, ids=lambda r: r.name)
def test_the_pinned_version_is_installed(requirement: Requirement) -> None:
    assert Version(importlib.metadata.version(requirement.name)).public == PINS[canonicalize_name(requirement.name)].public


def test_the_tests_install_what_subjects_and_audits_need() -> None:
    assert OWN in EXTRAS["dev"]


def test_the_command_is_declared() -> None:
    assert PROJECT["scripts"] == {"accum-sweeps": "accum_sweeps.__main__:main"}
