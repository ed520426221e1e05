"""Names of setups where there is little room: cut, but never so that two of them look the same."""

from collections.abc import Sequence

LONGEST = 64


def short(text: str, most: int = LONGEST) -> str:
    """``text`` on one line, cut in its middle where it is too long."""
    text = " ".join(text.split())
    keep = (most - 3) // 2
    return text if len(text) <= most else f"{text[:keep]}...{text[-keep:]}"


def told_apart(names: Sequence[str], most: int = LONGEST) -> list[str]:
    """``names``, of which no two are equal, cut to at most ``most`` characters so that still no two are equal.

    Where cutting alone would make some alike, the words that all of them share go first; where that is not enough, each begins with
    its number, counted from 1.
    """
    cut = [short(name, most) for name in names]
    if len(set(cut)) == len(cut):
        return cut
    words = [name.split() for name in names]
    shared = set(words[0]).intersection(*words)
    own = [" ".join(word for word in each if word not in shared) for each in words]
    cut = [short(name, most) for name in own]
    if len(set(cut)) == len(cut) and all(cut):
        return cut
    numbers = [f"{number}: " for number in range(1, len(own) + 1)]
    return [f"{number}{short(name, most - len(number))}" for number, name in zip(numbers, own, strict=True)]
