"""The one kind of error that is meant for a person: it names the thing, the value and what to do."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake that the user can correct. Printed without a traceback, exit code 2."""


class ConfigError(UserError):
    """A configuration key holds a value that it cannot hold.

    ``key`` is dotted as on the command line, ``value`` what was given, ``allowed`` what is possible;
    ``hint`` says what to do, where that is not plain from ``allowed``.
    """

    def __init__(self, key: str, value: object, allowed: str, hint: str = "") -> None:
        self.key, self.value, self.allowed, self.hint = key, value, allowed, hint
        super().__init__(f"{key}={value!r}: {allowed}" + (f"\n  {hint}" if hint else ""))


def one_of(value: object, names: Iterable[str]) -> str:
    """The sentence that lists what is allowed, with the nearest match to ``value`` if there is one."""
    names = sorted(names)
    near = difflib.get_close_matches(str(value), names, n=1)
    return f"must be one of {', '.join(names)}" + (f" (did you mean {near[0]}?)" if near else "")
