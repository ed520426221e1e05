"""A minimum of a smooth function of a few parameters with bounds, to the precision of its gradient."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, brentq, minimize

from accum_sweeps.analysis.mean_squares import Floats

Objective = Callable[[Floats], tuple[float, Floats]]


def minimise(
    objective: Objective, start: Floats, lower: Floats | float, upper: Floats | float, precision: float = 1e-10
) -> tuple[Floats, float]:
    """(x, value) of a local minimum of ``objective``, which returns value and gradient (j,), between ``lower`` and ``upper``.

    One parameter: the zero of the derivative downhill of ``start``, bracketed, which no scaling can slow down. More of them:
    L-BFGS-B, then Newton steps on the gradient, whose zeros are found more precisely than a minimum of rounded values, until it is
    at most ``precision`` wherever no bound holds a parameter, or rounding ends it. A parameter at a bound stays exactly there.
    """
    lower, upper = np.full_like(start, lower), np.full_like(start, upper)
    if not len(start):
        return start, objective(start)[0]
    if len(start) == 1:
        best = np.array([_downhill(objective, float(np.clip(start, lower, upper)[0]), float(lower[0]), float(upper[0]))])
        return best, objective(best)[0]
    found = minimize(
        objective,
        np.clip(start, lower, upper),
        jac=True,
        method="L-BFGS-B",
        bounds=Bounds(lower, upper),
        options={"ftol": 1e-15, "gtol": max(precision, 1e-8), "maxiter": 500},
    )
    x = np.asarray(found.x, dtype=np.float64)
    value, gradient = objective(x)
    for _ in range(4):
        inside = (x > lower) & (x < upper)
        if not inside.any() or np.max(np.abs(gradient[inside])) <= precision:
            break
        step = np.zeros_like(x)
        step[inside] = np.linalg.pinv(_hessian(objective, x, lower, inside)) @ -gradient[inside]
        moved = x + step
        if (moved < lower).any() or (moved > upper).any():
            break
        moved_value, moved_gradient = objective(moved)
        if np.max(np.abs(moved_gradient[inside])) >= np.max(np.abs(gradient[inside])) or moved_value > value + 1e-9:
            break
        x, value, gradient = moved, moved_value, moved_gradient
    return x, value


def _downhill(objective: Objective, start: float, lower: float, upper: float) -> float:
    """Where the derivative first changes its sign downhill of ``start``; the bound where it does not."""

    def slope(x: float) -> float:
        return float(objective(np.array([x]))[1][0])

    here, step = slope(start), 0.25
    if here == 0:
        return start
    near = start
    while True:
        far = float(np.clip(near - np.sign(here) * step, lower, upper))
        if far == near:
            return near
        there = slope(far)
        if np.sign(there) != np.sign(here):
            return far if there == 0 else float(brentq(slope, near, far, xtol=1e-13, rtol=1e-14))
        near, step = far, 2 * step


def _hessian(objective: Objective, x: Floats, lower: Floats, inside: NDArray[np.bool_]) -> Floats:
    """Central differences of the gradient over the parameters ``inside`` their bounds."""
    rows = []
    for i in np.flatnonzero(inside):
        width = min(1e-4, float(x[i] - lower[i]) / 2)
        there, back = x.copy(), x.copy()
        there[i] += width
        back[i] -= width
        rows.append((objective(there)[1] - objective(back)[1])[inside] / (2 * width))
    return np.array(rows)
