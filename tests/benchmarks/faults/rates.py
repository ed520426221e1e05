"""A rate with two 95 % intervals: the exact binomial one, and one that knows that cases of a cluster are alike."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from scipy import stats

LEVEL = 0.95


@dataclass(frozen=True, kw_only=True)
class Rate:
    """``hits`` of ``cases`` in ``clusters``; both intervals as (lower, upper), (0, 1) without cases."""

    hits: int
    cases: int
    clusters: int
    exact: tuple[float, float]
    clustered: tuple[float, float]

    @property
    def value(self) -> float:
        """The proportion; not a number without cases."""
        return self.hits / self.cases if self.cases else float("nan")

    def __str__(self) -> str:
        if not self.cases:
            return "no case"
        exact, clustered = (f"{100 * low:.2f}-{100 * high:.2f}" for low, high in (self.exact, self.clustered))
        return f"{self.hits} of {self.cases} = {100 * self.value:.2f} % [{clustered}] ({exact})"


def rate(results: Iterable[tuple[str, bool]]) -> Rate:
    """The rate of hits among (cluster, is a hit).

    Clustered is Korn and Graubard's: the exact interval of an effective number of cases, by the variance between clusters. Where all cases
    are alike there is no variance to go by, and each cluster counts as one case.
    """
    clusters: dict[str, list[bool]] = defaultdict(list)
    for cluster, is_hit in results:
        clusters[cluster].append(is_hit)
    hits, cases = sum(map(sum, clusters.values())), sum(map(len, clusters.values()))
    effective = _effective(clusters, hits, cases)
    return Rate(
        hits=hits,
        cases=cases,
        clusters=len(clusters),
        exact=clopper_pearson(hits, cases),
        clustered=clopper_pearson(effective * hits / cases if cases else 0, effective),
    )


def _effective(clusters: dict[str, list[bool]], hits: int, cases: int) -> float:
    m = len(clusters)
    if hits in (0, cases) or m < 2:
        return m
    p = hits / cases
    between = m / (m - 1) * sum((sum(own) - p * len(own)) ** 2 for own in clusters.values()) / cases**2
    if not between:
        return m
    quantiles = [stats.t.ppf((1 + LEVEL) / 2, n - 1) for n in (cases, m)]
    return float(min(cases, p * (1 - p) / between * (quantiles[0] / quantiles[1]) ** 2))


def clopper_pearson(hits: float, cases: float) -> tuple[float, float]:
    """The exact binomial interval; both numbers may be fractions."""
    if not cases:
        return 0.0, 1.0
    tail = (1 - LEVEL) / 2
    low = stats.beta.ppf(tail, hits, cases - hits + 1) if hits > 0 else 0.0
    high = stats.beta.ppf(1 - tail, hits + 1, cases - hits) if hits < cases else 1.0
    return float(low), float(high)
