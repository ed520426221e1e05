"""How slow this machine is at this moment: limits of time are those of a usual one."""

import time

USUAL_S = 0.06  # what the work below takes on a usual core
TERMS = 1_000_000


def slowness() -> float:
    """How many times as long as usual a piece of work takes here and now, at least 1: the quickest of three, in processor time."""
    return max(1.0, min(_taken() for _ in range(3)) / USUAL_S)


def _taken() -> float:
    start, total = time.process_time(), 0
    for number in range(TERMS):
        total += number
    assert total == TERMS * (TERMS - 1) // 2
    return time.process_time() - start
