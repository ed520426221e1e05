"""Do accumulated runs diverge more or less often than the reference arm's? Exact tests within seed, on arrays.

Shapes: S seeds, K accumulation factors.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import bdtr


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """One arm against the reference arm: of ``pairs`` seeds with an outcome in both, those in which one arm alone diverged.

    ``p`` is the two-sided exact p value, 1 without a discordant seed.
    """

    pairs: int
    only_arm: int
    only_reference: int
    p: float


def mcnemar_p(only_arm: int, only_reference: int) -> float:
    """Two-sided exact p value of McNemar's test: min(1, 2 P(X <= min(b, c))), X ~ Binomial(b + c, 1/2); 1 where b + c = 0.

    McNemar, Q. (1947), Psychometrika 12, 153-157, with the binomial distribution in place of the chi-squared one.
    """
    discordant = only_arm + only_reference
    if discordant == 0:
        return 1.0
    return min(1.0, 2 * float(bdtr(min(only_arm, only_reference), discordant, 0.5)))


def divergence_tests(diverged: ArrayLike, finished: ArrayLike, reference: int) -> tuple[Divergence, ...]:
    """K - 1 tests, each arm against the arm in column ``reference``, in the order of the columns.

    ``diverged`` and ``finished`` are bool (S, K); a seed in which either of two arms is neither makes no pair. Raises ValueError if
    the shapes differ, a run is both or there is no such column.
    """
    has_diverged, has_finished = np.asarray(diverged, dtype=np.bool_), np.asarray(finished, dtype=np.bool_)
    if has_diverged.ndim != 2 or has_diverged.shape != has_finished.shape:
        raise ValueError(f"diverged {has_diverged.shape} and finished {has_finished.shape}: both must be (seeds, arms)")
    if (has_diverged & has_finished).any():
        raise ValueError(f"{int((has_diverged & has_finished).sum())} runs are both diverged and finished")
    if not 0 <= reference < has_diverged.shape[1]:
        raise ValueError(f"reference={reference}: must be a column, 0 to {has_diverged.shape[1] - 1}")
    tests = []
    for column in range(has_diverged.shape[1]):
        if column == reference:
            continue
        columns = [column, reference]
        arm, base = has_diverged[(has_diverged | has_finished)[:, columns].all(axis=1)][:, columns].T
        only_arm, only_reference = int((arm & ~base).sum()), int((base & ~arm).sum())
        p = mcnemar_p(only_arm, only_reference)
        tests.append(Divergence(pairs=len(arm), only_arm=only_arm, only_reference=only_reference, p=p))
    return tuple(tests)
