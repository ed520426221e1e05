"""How slow this machine is at this moment: limits of time are those of the one that README's timings are from."""

import time

USUAL_S = 0.036  # what the work below takes on a core of the machine that README's timings are from
TERMS = 1_000_000


def slowness() -> float:
    """How many times as long as there a piece of work takes here and now, at least 1: the quickest of three, in processor time."""
    return max(1.0, min(_taken() for _ in range(3)) / USUAL_S)


def _taken() -> float:
    start, total = time.process_time(), 0
    for number in range(TERMS):
        total += number
    assert total == TERMS * (TERMS - 1) // 2
    return time.process_time() - start
