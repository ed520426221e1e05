"""Numbers in sentences."""


def counted(number: int, noun: str) -> str:
    """``1 run``, ``2 runs``, ``0 finished runs``: ``noun`` is one of them, whose plural ends in s."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def be(number: int) -> str:
    """``is`` for one of them, ``are`` for any other number."""
    return "is" if number == 1 else "are"
