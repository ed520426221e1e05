"""What a number of seeds can show: power of the paired tests, and the seeds that equivalence needs.

``path_sd`` is the SD of one run's response that is not its seed's; a paired difference has sqrt(2) times that. It, shifts and
margins are in one unit, whichever. Arms share the reference arm, so the differences of two arms correlate by 1/2.
"""

import numpy as np
from scipy.special import chdtri, chndtrix, nctdtr, ndtr, roots_hermitenorm, roots_legendre, stdtrit

NODES = 64  # of each quadrature: twice as many change no power by more than 1e-4
MIN_SEEDS = 3


def paired_t_power(shift: float, path_sd: float, seeds: int, alpha: float = 0.05) -> float:
    """Power of the two-sided paired t test against ``shift``: a noncentral t with noncentrality shift sqrt(S) / (sqrt(2) path_sd).

    Cohen, J. (1988), Statistical Power Analysis for the Behavioral Sciences, chapter 2. Raises ValueError for fewer than two seeds
    or a path_sd that is not above 0.
    """
    _check(path_sd, seeds)
    noncentrality = abs(shift) * np.sqrt(seeds / 2) / path_sd
    critical = stdtrit(seeds - 1, 1 - alpha / 2)
    return float(1 - nctdtr(seeds - 1, noncentrality, critical) + nctdtr(seeds - 1, noncentrality, -critical))


def tost_power(margin: float, path_sd: float, seeds: int, arms: int = 1, alpha: float = 0.05) -> float:
    """Probability that all ``arms`` pass the two one-sided t tests at ``margin`` when no arm is shifted.

    An arm passes if |mean| < h = margin - t_(1-alpha) s / sqrt(S). Given the reference arm's mean r (in standard errors) and sum of
    squares q (in path variances) arms are independent: the arm's mean is normal about -r, and s^2 (S - 1) / path_sd^2 noncentral
    chi-squared with S - 1 degrees of freedom and noncentrality q. Integrated over s, then, to the power of ``arms``, over r and q.
    For one arm this is Phillips, K. F. (1990), Journal of Pharmacokinetics and Biopharmaceutics 18, 137-144. Raises ValueError as
    paired_t_power does.
    """
    _check(path_sd, seeds)
    df = seeds - 1
    points, weights = roots_legendre(NODES)
    levels, weights = (points + 1) / 2, weights / 2
    nodes, masses = roots_hermitenorm(NODES)
    squares = chndtrix(levels, df, chdtri(df, 1 - levels)[:, np.newaxis])  # by q and level
    room = margin * np.sqrt(seeds) / path_sd - stdtrit(df, 1 - alpha) * np.sqrt(squares / df)  # h in standard errors of one arm
    room = np.maximum(room, 0)[:, np.newaxis]
    passes = (ndtr(room + nodes[:, np.newaxis]) - ndtr(-room + nodes[:, np.newaxis])) @ weights  # by q and r
    return float(weights @ passes**arms @ (masses / masses.sum()))


def seeds_needed(margin: float, path_sd: float, arms: int = 3, power: float = 0.8, alpha: float = 0.05) -> int:
    """The fewest seeds S >= 3 with S >= 2 path_sd^2 (t_(1-alpha) + t_(1-beta/2))^2 / margin^2, t with S - 1 degrees of freedom.

    1 - beta = power^(1/arms) is the power of each of ``arms`` independent tests. The rule is somewhat careful, since real arms share
    the reference arm: with it all three arms pass in 83 % or more of equivalent sweeps (``tost_power``), where 80 % are asked for.
    Julious, S. A. (2004), Statistics in Medicine 23, 1921-1986, section 5. Raises ValueError unless margin > 0 and path_sd >= 0 are
    finite.
    """
    if not (0 < margin < np.inf and 0 <= path_sd < 1e100 * margin):
        raise ValueError(f"margin={margin!r}, path_sd={path_sd!r}: the margin must be above 0, the SD at least 0, both finite")
    beta = 1 - power ** (1 / arms)

    def is_enough(seeds: int) -> bool:
        quantiles = stdtrit(float(seeds - 1), np.array([1 - alpha, 1 - beta / 2])).sum()
        return bool(seeds >= 2 * (quantiles * path_sd / margin) ** 2)

    enough = MIN_SEEDS
    while not is_enough(enough):
        enough *= 2
    short = enough // 2 if enough > MIN_SEEDS else enough - 1
    while enough - short > 1:
        middle = (enough + short) // 2
        short, enough = (short, middle) if is_enough(middle) else (middle, enough)
    return enough


def _check(path_sd: float, seeds: int) -> None:
    if seeds < 2 or not 0 < path_sd < np.inf:
        raise ValueError(f"seeds={seeds}, path_sd={path_sd!r}: two seeds and an SD above 0 are needed")
