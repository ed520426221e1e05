"""Tests of accum_sweeps.plan.setting."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from accum_sweeps.plan.errors import ConfigError
from accum_sweeps.plan.setting import document, read, setting


@dataclass(frozen=True, kw_only=True)
class First:
    """The first release's settings."""

    name: str = setting("a label", label=True)
    rate: float = setting("a rate", above=0, at_most=1)


@dataclass(frozen=True, kw_only=True)
class Second:
    """The next release's: one key more."""

    name: str = setting("a label", label=True)
    rate: float = setting("a rate", above=0, at_most=1)
    decay: float = setting("added later", neutral=0.0)


@dataclass(frozen=True, kw_only=True)
class Kinds:
    """One field of each type."""

    count: int = setting("a count", default=1, at_least=1, below=10)
    flag: bool = setting("a switch", default=False)
    mode: str = setting("a mode", default="fast", choices=("fast", "slow"))
    pair: tuple[float, float] = setting("two numbers", default=(0.0, 1.0))
    many: tuple[int, ...] = setting("numbers", default=())
    rates: tuple[float, float] = setting("two rates", default=(0.0, 0.5), at_least=0, below=1)
    limit: float | None = setting("a limit", default=None)
    args: Mapping[str, Any] = setting("anything", default={})


def test_key_added_later_leaves_the_identity_alone_while_it_is_neutral() -> None:
    old = document(First(name="a", rate=0.5), identity=True)
    assert old == {"rate": 0.5}
    assert document(read(Second, {"name": "b", "rate": 0.5}), identity=True) == old
    assert document(Second(name="b", rate=0.5, decay=0.1), identity=True) == {"rate": 0.5, "decay": 0.1}


def test_neutral_value_of_another_type_is_not_neutral() -> None:
    assert document(Second(name="a", rate=0.5, decay=False), identity=True) == {"rate": 0.5, "decay": False}


def test_whole_document_holds_labels_and_neutral_values() -> None:
    assert document(read(Second, {"name": "b", "rate": 0.5}), identity=False) == {"name": "b", "rate": 0.5, "decay": 0.0}


def test_values_take_the_declared_type() -> None:
    made = read(Kinds, {"count": 3, "pair": [1, 2], "many": [3, 4], "limit": 2, "args": {"x": [1]}})
    assert made == Kinds(count=3, pair=(1.0, 2.0), many=(3, 4), limit=2.0, args={"x": [1]})
    assert type(made.limit) is float


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"count": 0}, "p.count=0: must be at least 1 and below 10"),
        ({"count": 10}, "p.count=10: must be at least 1 and below 10"),
        ({"count": 2.0}, "p.count=2.0: must be a whole number"),
        ({"count": True}, "p.count=True: must be a whole number"),
        ({"flag": 1}, "p.flag=1: must be true or false"),
        ({"mode": "fsat"}, "p.mode='fsat': must be one of fast, slow (did you mean fast?)"),
        ({"pair": [1.0]}, "p.pair=[1.0]: must be a list of 2 numbers"),
        ({"many": 3}, "p.many=3: must be a list"),
        ({"many": [1, "x"]}, "p.many='x': must be a whole number"),
        ({"rates": [0.5, 1.0]}, "p.rates=1.0: must be at least 0 and below 1: two rates"),
        ({"rates": [-0.1, 0.5]}, "p.rates=-0.1: must be at least 0 and below 1"),
        ({"pair": [1.0, math.inf]}, "p.pair=inf: must be a finite number: two numbers"),
        ({"limit": -math.inf}, "p.limit=-inf: must be a finite number"),
        ({"limit": 10**400}, f"p.limit={10**400}: must be a finite number"),
        ({"args": {"a": {"b": [1, math.nan]}}}, "p.args.a.b[1]=nan: must be a finite number"),
        ({"limit": "none"}, "p.limit='none': must be a number"),
        ({"args": [1]}, "p.args=[1]: must be a mapping"),
        ({"cuont": 1}, "p.cuont=1: there is no such key; must be one of args, count, flag, limit, many, mode, pair, rates"),
    ],
)
def test_refusal_names_key_value_and_what_is_allowed(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(Kinds, values, "p.")
    assert str(caught.value).startswith(words)


def test_missing_key_is_asked_for_with_its_meaning() -> None:
    with pytest.raises(ConfigError, match=r"rate=None: is required: a rate"):
        read(First, {"name": "a"})


def test_nan_is_out_of_every_range() -> None:
    with pytest.raises(ConfigError, match="rate=nan"):
        read(First, {"name": "a", "rate": float("nan")})
